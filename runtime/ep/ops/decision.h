// Which variant of one contraction runs, and what that took.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "select/trace.h"

namespace pitc {

// How decisions are made and told.
struct SelectorOptions {
  std::string node;                // its name, for the trace
  std::shared_ptr<Trace> trace;    // or null
  std::optional<Variant> variant;  // run this one where it is offered
};

// False where the dense variant would be chosen even if nothing lived, and nobody asks for counts.
bool IsWorthALook(const CostTable& costs, const Work& unseen, const SelectorOptions& options);

class Decision {
 public:
  Decision(const CostTable& costs, const Work& work, const SelectorOptions& options);

  Variant variant() const { return choice_.variant; }
  // Takes the dense variant after all.
  void ChooseDense() { choice_.variant = Variant::kDense; }
  // The variant has run.
  void Done() const;

 private:
  const Work& work_;
  const SelectorOptions& options_;
  Choice choice_;
  std::chrono::steady_clock::time_point start_;
  double cpu_start_us_ = 0;
};

}  // namespace pitc

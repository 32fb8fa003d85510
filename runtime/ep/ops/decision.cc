#include "ops/decision.h"

namespace pitc {

bool IsWorthALook(const CostTable& costs, const Work& unseen, const SelectorOptions& options) {
  return options.trace || options.variant || Select(costs, unseen).variant != Variant::kDense;
}

Decision::Decision(const CostTable& costs, const Work& work, const SelectorOptions& options)
    : work_(work), options_(options), choice_(Select(costs, work)) {
  const bool told = options.variant && costs.lines[static_cast<int>(*options.variant)].offered;
  if (told) choice_.variant = *options.variant;
  if (options.trace) start_ = std::chrono::steady_clock::now();
}

void Decision::Done() const {
  if (!options_.trace) return;
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start_;
  options_.trace->Write(options_.node, work_, choice_, took.count());
}

}  // namespace pitc

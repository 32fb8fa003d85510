// Texts of plans: one line changed, and what is said of a text that is no plan.
#pragma once

#include <string>

#include "check.h"
#include "plan/plan.h"

namespace pitc::test {

// The text with another line, or without it.
inline std::string With(const std::string& text, const std::string& old_line,
                        const std::string& new_line) {
  const size_t at = text.find("\n" + old_line + "\n");
  CHECK(at != text.npos);
  return text.substr(0, at + 1) + new_line +
         text.substr(at + 1 + old_line.size() + (new_line.empty() ? 1 : 0));
}

inline std::string Error(const std::string& text, Machine machine = Machine::kCpu) {
  return Thrown([&] { ParsePlan(text, machine); });
}

}  // namespace pitc::test

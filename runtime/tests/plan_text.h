// Texts of plans: one line changed, and what is said of a text that is no plan.
#pragma once

#include <string>

#include "check.h"
#include "plan/plan.h"

namespace pitc::test {

inline constexpr const char* kAttention =
    "pitc-plan 9\nbias=0\nd=8\ndtype=float32\ndv=3\nheads=2\nidentity=2/x\nk_head=2\n"
    "kernels=attention:attention_d8_v3\nlibrary=kernels.so\nnan_to_zero=1\nno_keys_to_zero=0\n"
    "no_pairs=nan\nop=attention\npairs=0\nq_head=0\nscale=-0x1.8p-3\nv_head=4\nwhole=0\n";
inline constexpr const char* kPairs =
    "pitc-plan 9\nkeys=0\nop=pairs\norders=2\npairs=0\npositions=1\nprogram=3,4,0\nqueries=0\n"
    "rank=2\ntables=1\n";

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

#include "ops/decision.h"

#include <time.h>

namespace pitc {
namespace {

// CPU time of this thread: what other programs do meanwhile does not count.
double CpuMicroseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e6 + static_cast<double>(now.tv_nsec) / 1e3;
}

}  // namespace

bool IsWorthALook(const CostTable& costs, const Work& unseen, const SelectorOptions& options) {
  return options.trace || options.variant || Select(costs, unseen).variant != Variant::kDense;
}

Decision::Decision(const CostTable& costs, const Work& work, const SelectorOptions& options)
    : work_(work), options_(options), choice_(Select(costs, work)) {
  const bool told = options.variant && costs.lines[static_cast<int>(*options.variant)].offered;
  if (told) choice_.variant = *options.variant;
  if (!options.trace) return;
  if (work.threads == 1) cpu_start_us_ = CpuMicroseconds();
  start_ = std::chrono::steady_clock::now();
}

void Decision::Done() const {
  if (!options_.trace) return;
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start_;
  const double cpu_us = work_.threads == 1 ? CpuMicroseconds() - cpu_start_us_ : -1;
  options_.trace->Write(options_.node, work_, choice_, took.count(), cpu_us);
}

}  // namespace pitc

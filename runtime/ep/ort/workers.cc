#include "ort/workers.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "ort/run_context.h"

namespace pitc {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::microseconds kPatience{200}, kMostPatience{2000};  // since the last one came
constexpr unsigned kMostWorkers = 1024, kCountedCalls = 512;

int Processors() {
  static const auto found =
      static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kMostWorkers));
  return found;
}

// A task for each processor, each of which waits for the others: so that each thread gets one.
int RollCall(const RunContext& run) {
  static std::atomic<uint64_t> calls{0};
  const int most = Processors();
  const uint64_t call = ++calls;
  const Clock::time_point begin = Clock::now();
  std::atomic<int> here{0};
  std::atomic<Clock::rep> last{begin.time_since_epoch().count()};
  run.Each(most, true, [&](int64_t) {
    thread_local uint64_t answered = 0;
    if (answered == call) return;
    answered = call;
    last = Clock::now().time_since_epoch().count();
    ++here;
    while (here < most) {
      const Clock::time_point now = Clock::now(), seen{Clock::duration(last.load())};
      if (now > seen + kPatience || now > begin + kMostPatience) break;
    }
  });
  return std::max(here.load(), 1);
}

}  // namespace

int Workers::Count(const RunContext& run) {
  if (told_) return told_;
  if (calls_.load(std::memory_order_relaxed) <= kCountedCalls) {
    const unsigned call = ++calls_;
    const bool counted = call <= kCountedCalls && (call & (call - 1)) == 0;
    if (counted && most_ < Processors() && counting_.try_lock()) {
      std::lock_guard<std::mutex> held(counting_, std::adopt_lock);
      most_ = std::max(most_.load(), RollCall(run));
    }
  }
  return most_;
}

}  // namespace pitc

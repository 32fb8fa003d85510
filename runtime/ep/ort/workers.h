// How many threads work on one node: those of ONNX Runtime's pool, which does not tell.
#pragma once

#include <atomic>
#include <mutex>

namespace pitc {

class RunContext;

class Workers {
 public:
  // `told`: as many; 0: they are counted.
  explicit Workers(int told) : told_(told) {}

  // At least 1. Work may be cut by it, results may not depend on it: what is counted is who comes
  // in time. As some may be late, it is counted again in the second, fourth, eighth .. call.
  int Count(const RunContext& run);

 private:
  const int told_;
  std::atomic<int> most_{1};  // that have come
  std::atomic<unsigned> calls_{0};
  std::mutex counting_;
};

}  // namespace pitc

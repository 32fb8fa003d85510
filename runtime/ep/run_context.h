// One run of one node: its tensors, checked, and ONNX Runtime's thread pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arena.h"
#include "constants.h"
#include "tensor.h"

namespace pitc {

class RunContext {
 public:
  // Places of a node's inputs and outputs among those of the fused node: ONNX Runtime gives a value
  // that a node reads twice once, and leaves out outputs that nobody reads.
  struct Places {
    std::vector<int> inputs, outputs;                        // -1: absent
    std::vector<std::shared_ptr<const Constant>> constants;  // of each input; null: none
  };

  RunContext(OrtKernelContext* context, const Places& places)
      : context_(context), places_(places) {}

  Tensor Input(int index, const char* role) const;
  // The same, and its type and rank are as told.
  Tensor FloatInput(int index, const char* role, int least_rank,
                    int most_rank = Shape::kMostDims) const;
  Tensor Int32Input(int index, const char* role,
                    std::initializer_list<int64_t> shape) const;  // -1: any
  Tensor MaskInput(int index, const char* role) const;

  // Memory of the output; of `scratch` when nobody reads it. `bytes` is its size.
  void* Output(int index, const Shape& shape, int element_bytes, Arena::Scope& scratch) const;

  // task(0), .., task(count - 1): in order on this thread, or on ONNX Runtime's pool. A failure in
  // any comes out here; the one with the lowest number if there are several.
  template <class Task>
  void Each(int64_t count, bool parallel, const Task& task) const {
    if (!parallel || count <= 1) {
      for (int64_t i = 0; i < count; ++i) task(i);
      return;
    }
    struct Job {
      const Task& task;
      std::atomic<bool> failed{false};
      std::mutex mutex;
      size_t first = SIZE_MAX;
      std::string text;
    } job{task, {}, {}, SIZE_MAX, {}};
    auto run = [](void* data, size_t i) noexcept {
      auto* j = static_cast<Job*>(data);
      if (j->failed.load(std::memory_order_relaxed)) return;
      try {
        j->task(static_cast<int64_t>(i));
      } catch (const std::exception& e) {
        std::lock_guard<std::mutex> lock(j->mutex);
        if (i < j->first) {
          j->first = i;
          j->text = e.what();
        }
        j->failed = true;
      }
    };
    Check(ort->KernelContext_ParallelFor(context_, run, static_cast<size_t>(count), 0, &job));
    if (job.failed) throw Failure(job.text);
  }

 private:
  OrtKernelContext* context_;
  const Places& places_;
};

// Sets the bytes of `memory` to 0, in parallel when there are many.
void ZeroAll(const RunContext& run, void* memory, int64_t bytes);

// Sets those of `row_count` rows to 0 that are not among rows[0..t), which ascend.
void ZeroOtherRows(const RunContext& run, void* memory, int64_t row_bytes, int64_t row_count,
                   const int32_t* rows, int64_t t);

}  // namespace pitc

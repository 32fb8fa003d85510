// One run of one node: its tensors, checked, and ONNX Runtime's thread pool.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <vector>

#include "base/arena.h"
#include "base/float_mode.h"
#include "base/split.h"
#include "ort/constants.h"
#include "ort/run_memory.h"
#include "ort/tensor.h"
#include "ort/workers.h"
#include "select/trace.h"

namespace pitc {

// A list of numbers as it is now. Its own memory may be the host's, who may write there at any
// time: what is checked must be what is used.
const int32_t* CopyOf(const int32_t* list, int64_t n, Arena::Scope& scratch);

// What all runs of a session have in common.
struct SessionMode {
  Denormals denormals = Denormals::kKept;
  std::shared_ptr<Workers> workers;
  std::shared_ptr<Trace> tasks;  // told what each task took; null: nobody asks
};

class RunContext {
 public:
  // Places of a node's inputs and outputs among those of the fused node: ONNX Runtime gives a value
  // that a node reads twice once, and leaves out outputs that nobody reads.
  struct Places {
    std::vector<int> inputs, outputs;  // -1: absent
    // Of each input; null: it is none.
    std::vector<std::shared_ptr<const Constant>> constants;
    std::vector<std::unique_ptr<PassedConstant>> passed;
  };

  RunContext(const Host& host, OrtKernelContext* context, const Places& places,
             const SessionMode& mode)
      : host_(host), context_(context), places_(places), mode_(mode), memory_(host, context) {}

  // What a thread needs while it works for this run: how it rounds, and where memory comes from.
  class OnThread {
   public:
    explicit OnThread(const RunContext& run)
        : float_mode_(run.mode_.denormals), borrowing_(run.memory_) {}

   private:
    const FloatMode float_mode_;
    const Arena::Borrowing borrowing_;
  };

  Tensor Input(int index, const char* role) const;
  // The same, and its type and rank are as told.
  Tensor FloatInput(int index, const char* role, int least_rank,
                    int most_rank = Shape::kMostDims) const;
  Tensor Int32Input(int index, const char* role,
                    std::initializer_list<int64_t> shape) const;  // -1: any
  Tensor MaskInput(int index, const char* role) const;

  // The first numbers of a list as they are now.
  const int32_t* Copy(const Tensor& list, int64_t n, Arena::Scope& scratch) const {
    return CopyOf(list.Int32s(), n, scratch);
  }

  bool IsRead(int output) const { return places_.outputs[static_cast<size_t>(output)] >= 0; }
  // Memory of the output; of `scratch` when nobody reads it. `bytes` is its size.
  void* Output(int index, const Shape& shape, int element_bytes, Arena::Scope& scratch) const;

  // How many threads work for it, as far as is known: for a cut, never for a result. Not for tasks.
  int Threads() const { return mode_.workers->Count(*this); }
  int ThreadsFor(double flops) const { return flops < kSerialFlops ? 1 : Threads(); }

  const std::vector<Trace::Loop>& loops() const { return loops_; }

  // task(0), .., task(count - 1): in order on this thread, or on ONNX Runtime's pool. What any
  // throws comes out here; of the one with the lowest number if there are several.
  template <class Task>
  void Each(int64_t count, bool parallel, const Task& task) const {
    if (mode_.tasks) return Timed(count, parallel, task);
    if (!parallel || count <= 1) {
      for (int64_t i = 0; i < count; ++i) task(i);
      return;
    }
    Share(count, task);
  }

 private:
  template <class Task>
  void Share(int64_t count, const Task& task) const {
    struct Job {
      const RunContext& run;
      const Task& task;
      std::atomic<bool> failed{false};
      std::mutex mutex;
      size_t first = SIZE_MAX;
      std::exception_ptr thrown;
    } job{*this, task, {}, {}, SIZE_MAX, {}};
    auto run = [](void* data, size_t i) noexcept {
      auto* j = static_cast<Job*>(data);
      if (j->failed.load(std::memory_order_relaxed)) return;
      const OnThread here(j->run);
      try {
        j->task(static_cast<int64_t>(i));
      } catch (...) {
        std::lock_guard<std::mutex> lock(j->mutex);
        if (i < j->first) {
          j->first = i;
          j->thrown = std::current_exception();
        }
        j->failed = true;
      }
    };
    const auto tasks = static_cast<size_t>(count);
    Check(host_, host_.api->KernelContext_ParallelFor(context_, run, tasks, 0, &job));
    if (job.thrown) std::rethrow_exception(job.thrown);
  }

  template <class Task>
  void Timed(int64_t count, bool parallel, const Task& task) const {
    using Clock = std::chrono::steady_clock;
    using Microseconds = std::chrono::duration<double, std::micro>;
    if (!parallel || count <= 1) {
      for (int64_t i = 0; i < count; ++i) task(i);
      return;
    }
    std::vector<double> took(static_cast<size_t>(count));
    const Clock::time_point begin = Clock::now();
    Share(count, [&](int64_t i) {
      const Clock::time_point start = Clock::now();
      task(i);
      took[static_cast<size_t>(i)] = Microseconds(Clock::now() - start).count();
    });
    loops_.push_back({std::move(took), Microseconds(Clock::now() - begin).count()});
  }

  const Host& host_;
  OrtKernelContext* context_;
  const Places& places_;
  const SessionMode& mode_;
  mutable RunMemory memory_;  // it guards itself
  mutable std::vector<Trace::Loop> loops_;
};

// Sets the bytes of `memory` to 0, in parallel when there are many.
void ZeroAll(const RunContext& run, void* memory, int64_t bytes);

// Sets those of `row_count` rows to 0 that are not among rows[0..t), which ascend.
void ZeroOtherRows(const RunContext& run, void* memory, int64_t row_bytes, int64_t row_count,
                   const int32_t* rows, int64_t t);

}  // namespace pitc

// What kernels of attention and of its gradients read, on a device.
#pragma once

#include <optional>

#include "device/device_run.h"
#include "ops/attention.h"

namespace pitc::cuda {

// What tests of pairs look at: of tables and flags a row for each test and sequence.
class PairTests {
 public:
  // Throws Failure unless they are as the plan says, and rows have positions among them.
  PairTests(const DeviceRun& run, const AttentionPlan& plan,
            const AttentionOperands<DeviceInput>& all);

  void Bring(const DeviceRun& run);    // to memory of the device
  void AddTo(KernelCall* call) const;  // as kernels take them, once they are there

 private:
  // One of its inputs.
  struct Part {
    DeviceInput input;
    int64_t rows = 0;  // 0: the plan has none
    int extents = 0;   // behind rows
    const void* data = nullptr;
  };

  void ReadLines(const DeviceRun& run, int place, int64_t tests);
  Part Read(const DeviceInput& read, bool is_type, int64_t tests, int64_t* queries, int64_t* keys);

  const int64_t sequences_;
  int64_t queries_ = -1, keys_ = -1;  // positions; below 0: no table or flag has them
  Part lines_, q_tables_, k_tables_, key_flags_, query_flags_, pair_flags_;
};

// All inputs of a node, read and checked.
class AttentionInputs {
 public:
  // `plan`, `scratch`: they live as long as this.
  AttentionInputs(const DeviceRun& run, const AttentionPlan& plan, Arena::Scope& scratch);

  const AttentionOperands<DeviceInput>& all() const { return all_; }
  void Bring();  // to memory of the device, once
  // As kernels take them, once they are there.
  void AddRows(KernelCall* call) const;     // q, k and v
  void AddLists(KernelCall* call) const;    // offsets, a bias, positions, tests of pairs
  void AddStrides(KernelCall* call) const;  // of a bias

 private:
  // Where they lie on the device.
  struct Places {
    const void *q, *k, *v, *bias;
    const int32_t *q_offsets, *k_offsets, *query_positions, *key_positions;
  };

  const DeviceRun& run_;
  const AttentionPlan& plan_;
  const AttentionOperands<DeviceInput> all_;
  std::optional<PairTests> tests_;
  Places at_{};
};

}  // namespace pitc::cuda

// Operations of docs/plans.md on a device. Like those of the CPU they hold only what their plan
// says.
#pragma once

#include <memory>
#include <vector>

#include "device/dense_tiles.h"
#include "device/device_run.h"
#include "plan/plan.h"

namespace pitc::cuda {

class DeviceOperation {
 public:
  virtual ~DeviceOperation() = default;
  virtual int InputCount() const = 0;
  virtual int OutputCount() const = 0;
  virtual void Run(const DeviceRun& run) const = 0;  // throws Failure
};

// A kernel that moves rows by words of a size.
struct MoveKernel {
  int word_bytes;
  DeviceKernel kernel;
};

// pack and unpack, by the first of the kernels whose words fit; those of the last one always do.
std::unique_ptr<DeviceOperation> MakeMove(const MovePlan& plan, std::vector<MoveKernel> kernels);
// `kernels`: of each dense tile.
std::unique_ptr<DeviceOperation> MakeGatherGemm(const ContractPlan& plan,
                                                std::vector<DenseTile> tiles,
                                                std::vector<DeviceKernel> kernels);
std::unique_ptr<DeviceOperation> MakeAttention(const AttentionPlan& plan, DeviceKernel kernel);

}  // namespace pitc::cuda

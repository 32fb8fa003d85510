// Operations of docs/plans.md on a device. Like those of the CPU they hold only what their plan
// says.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "device/listed_product.h"
#include "device/live_points.h"
#include "device/product.h"
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
// `inner`: the product in front, if the plan has one. `listed`: where zeros are skipped.
std::unique_ptr<DeviceOperation> MakeContract(const ContractPlan& plan, DenseProduct dense,
                                              std::optional<DenseProduct> inner,
                                              std::optional<ListedProduct> listed);
std::unique_ptr<DeviceOperation> MakeAttention(const AttentionPlan& plan, DeviceKernel kernel);
// `queries`, `keys`: kernels of these gradients.
std::unique_ptr<DeviceOperation> MakeAttentionGrad(const AttentionGradPlan& plan,
                                                   DeviceKernel queries, DeviceKernel keys);
std::unique_ptr<DeviceOperation> MakeElementwise(const ElementwisePlan& plan, DeviceKernel kernel);
// Kernels that list rows by groups.
struct GroupKernels {
  DeviceKernel counts, rows;
};
std::unique_ptr<DeviceOperation> MakeGrouped(const GroupedPlan& plan, GroupKernels lists,
                                             DenseProduct product);
// `steps`: what each step does.
std::unique_ptr<DeviceOperation> MakeRegion(const RegionPlan& plan, LivePoints points,
                                            std::vector<std::unique_ptr<DeviceOperation>> steps);

}  // namespace pitc::cuda

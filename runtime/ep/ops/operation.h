// The operations of docs/plans.md. An operation holds only what its plan says, so that many
// threads may run it at once.
#pragma once

#include <memory>
#include <string>

#include "kernels/kernel_library.h"
#include "ops/contraction.h"
#include "ort/run_context.h"
#include "plan/plan.h"
#include "simd/primitives.h"

namespace pitc {

class Operation {
 public:
  virtual ~Operation() = default;
  virtual int InputCount() const = 0;
  virtual int OutputCount() const = 0;
  virtual void Run(const RunContext& run) const = 0;  // throws Failure
};

std::unique_ptr<Operation> MakeDetect(const DetectPlan& plan, const Primitives& simd);
std::unique_ptr<Operation> MakePack(const MovePlan& plan, Kernel kernel);
std::unique_ptr<Operation> MakeUnpack(const MovePlan& plan, Kernel kernel);
// `inner`: the kernel of the product in front, if the plan has one.
std::unique_ptr<Operation> MakeContract(const ContractPlan& plan, Kernel inner,
                                        Contraction contraction);
// Where the plan has tiles: kernels `dense` and `block`.
std::unique_ptr<Operation> MakeSampled(const ContractPlan& plan, const CostTable& costs,
                                       const Primitives& simd, ContractionKernels kernels,
                                       SelectorOptions options);
std::unique_ptr<Operation> MakePairs(const PairsPlan& plan, const Primitives& simd);
// `listed`: the kernel over lists, if the plan has pairs. `trace` may be null, here and below; it
// is told of the pairs, by the node's name.
std::unique_ptr<Operation> MakeAttention(const AttentionPlan& plan, Kernel kernel, Kernel listed,
                                         const std::string& node, std::shared_ptr<Trace> trace);
std::unique_ptr<Operation> MakeAttentionGrad(const AttentionGradPlan& plan, Kernel kernel,
                                             Kernel listed);
std::unique_ptr<Operation> MakeNorm(const NormPlan& plan, Kernel kernel);
// `listed`: under a mask; `variant`: lists are of blocks of its rows.
std::unique_ptr<Operation> MakeOuterProducts(const OuterProductsPlan& plan, const Primitives& simd,
                                             Kernel dense, Kernel listed,
                                             std::optional<Variant> variant);
// The contraction of one group, which looks for zeros where the plan says so.
std::unique_ptr<Operation> MakeGrouped(const GroupedPlan& plan, Kernel kernel,
                                       Contraction contraction, const std::string& node,
                                       std::shared_ptr<Trace> trace);
std::unique_ptr<Operation> MakeElementwise(const ElementwisePlan& plan, Kernel kernel);
std::unique_ptr<Operation> MakeSparseProduct(const SparseProductPlan& plan, const Primitives& simd);
std::unique_ptr<Operation> MakeAddRows(const AddRowsPlan& plan);
// `dense`: never choose few channels.
std::unique_ptr<Operation> MakeChooseChannels(const ChannelsPlan& plan,
                                              std::shared_ptr<Trace> trace, bool dense);

}  // namespace pitc

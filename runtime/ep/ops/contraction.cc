#include "ops/contraction.h"

#include <algorithm>

#include "base/index.h"
#include "ops/sparse_operand.h"

namespace pitc {
namespace {

constexpr int64_t kTaskPanels = 4;
constexpr int64_t kSampledRows = 512;  // at least, and one in so many
constexpr int64_t kSampledShare = 16;

}  // namespace

void Contraction::RunLeft(const RunContext& run, const LeftRows& left, const uint64_t* bits,
                          const Panels& b, const Target& target) const {
  if (!kernels_.listed) return RunGatherGemm(run, kernels_.dense, left, b, target);
  if (left.count == 0) return;
  Arena::Scope scratch;
  const StoredMatrix a{left.data, left.rows, left.count, left.k, left.k};
  SparseOperand operand(run, simd_, OperandRows(simd_, a, left.live), bits,
                        std::max(kSampledRows, left.count / kSampledShare));
  Work work = operand.Unseen(b.count, kTaskPanels);
  work.dense_tasks = SplitGemm(left.count, left.k, b.count, b.width, work.threads).Count();
  const auto run_dense = [&] { RunGatherGemm(run, kernels_.dense, left, b, target); };
  if (!IsWorthALook(costs_, work, options_)) return run_dense();
  operand.Count(&work, scratch);
  Decision decision(costs_, work, options_);
  if (decision.variant() == Variant::kDense) {
    run_dense();
  } else {
    operand.Each(decision.variant(), work,
                 [&](const BlockLists& lists, int64_t first, int64_t begin, int64_t end) {
                   lists.Run(kernels_.listed, b, target.Part(first), begin, end);
                 });
  }
  decision.Done();
}

}  // namespace pitc

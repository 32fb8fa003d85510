// What contraction nodes have in common: their operands, checked, and their output.
#pragma once

#include <cstdint>

#include "kernels/kernel_library.h"
#include "ort/run_context.h"
#include "plan/plan.h"

namespace pitc {

// The right operand, and the bias as kernels read it: one number per column of the panels.
struct Panels {
  const float* data = nullptr;
  int64_t count = 0, k = 0, width = 0;
  const float* bias = nullptr;
};

// One number per column of `columns` / 64 panels: the next input, or zeros where the plan has no
// bias.
const float* ReadBias(const RunContext& run, int* next, const GatherGemmPlan& plan, int64_t columns,
                      Arena::Scope& scratch);
// Inputs `*next` and, if there is one, the bias behind it.
Panels ReadPanels(const RunContext& run, int* next, const char* role, const GatherGemmPlan& plan,
                  Arena::Scope& scratch);

// The left operand: row i of the product is made of row rows[i] of `data`.
struct LeftRows {
  const float* data = nullptr;
  int64_t stored = 0, k = 0;  // rows and columns of `data`
  const int32_t* rows = nullptr;
  int64_t count = 0;  // rows of the product
  bool relu = false;  // elements below 0 stand for 0; gather_gemm kernels do not know
};

// Where the product goes: row i to row rows[i] of `data`, after row i of the residual was added.
struct Target {
  float* data = nullptr;
  int64_t stored = 0, n = 0;  // rows and columns of `data`
  const int32_t* rows = nullptr;
  const float* residual = nullptr;  // [count, n], or null
};

// A node that multiplies rows by panels: `a` comes first, then what `ReadPanels` reads, then the
// residual, rows and live.
class GemmOperands {
 public:
  // `gather` and `k` as the first product of the node has them, the rest as the last one.
  GemmOperands(const RunContext& run, const GatherGemmPlan& first, const GatherGemmPlan& last,
               Arena::Scope& scratch)
      : run_(run), first_(first), last_(last), scratch_(scratch) {}

  static int RowInputCount(const GatherGemmPlan& last) {
    return last.residual + 2 * (last.gather || last.scatter);
  }

  // Reads `a`, which must be the next input.
  void ReadLeft(int* next);
  // Reads the inputs behind the panels and makes the output; dead rows of it are 0.
  void ReadRows(int* next);

  const LeftRows& left() const { return left_; }
  const Target& target() const { return target_; }

 private:
  void CheckDomain(const Shape& domain) const;

  const RunContext& run_;
  const GatherGemmPlan &first_, &last_;
  Arena::Scope& scratch_;
  Tensor a_;
  LeftRows left_;
  Target target_;
};

// The operands of a node of one product.
struct ProductOperands {
  LeftRows left;
  Panels b;
  Target target;
};
ProductOperands ReadProduct(const RunContext& run, const GatherGemmPlan& plan,
                            Arena::Scope& scratch);
// How many inputs such a node has.
inline int ProductInputCount(const GatherGemmPlan& plan) {
  return 2 + plan.bias + GemmOperands::RowInputCount(plan);
}

// C = act(A @ B + bias) + residual by the gather_gemm kernel. `bits`: one word per row and panel
// for the elements that are not 0 (kernels `_bits`), or null.
void RunGatherGemm(const RunContext& run, const Kernel& kernel, const LeftRows& left,
                   const Panels& b, const Target& target, uint64_t* bits = nullptr);

// 0, 1, .., n - 1.
const int32_t* Identity(int64_t n, Arena::Scope& scratch);

}  // namespace pitc

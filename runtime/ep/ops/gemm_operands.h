// What contraction nodes have in common: their operands, checked, and their output.
#pragma once

#include <cstdint>

#include "base/split.h"
#include "detect/micro_tiles.h"
#include "kernels/kernel_library.h"
#include "ops/product.h"
#include "ort/run_context.h"
#include "plan/plan.h"

namespace pitc {

// The right operand, and the bias as kernels read it: one number per column of the panels.
struct Panels {
  const float* data = nullptr;
  int64_t count = 0, k = 0, width = 0;
  const float* bias = nullptr;
  bool rounded = false;  // words of two numbers of bfloat16, and k counts these

  // How a dense product is cut. `kernel`: that of the product.
  GemmSplit Split(int64_t rows, const Kernel& kernel, int threads) const {
    const bool tiles = kernel.level == CpuLevel::kV4Amx;
    const Multiplier pairs = tiles ? Multiplier::kTiles : Multiplier::kPairs;
    return SplitGemm(rows, k, count, width, threads, rounded ? pairs : Multiplier::kFloats);
  }
};

// One number per column of `columns` / 64 panels: that input, or zeros where the plan has no bias.
const float* ReadBias(const RunContext& run, int place, const ProductPlan& plan, int64_t columns,
                      Arena::Scope& scratch);
// Input `b` and, if there is one, its bias.
Panels ReadPanels(const RunContext& run, int b, int bias, const char* role, const ProductPlan& plan,
                  Arena::Scope& scratch);
// A right operand S that is computed when the model runs, perhaps times a factor, element by
// element.
struct StoredRight {
  const float *s, *factor;  // [k, n] or [n, k]; no factor is null
  int64_t k, n;
  bool turned;        // it lies as [n, k]
  bool mask = false;  // the product is 0 where the factor is

  // The next arguments of a kernel.
  void AddTo(KernelCall* call) const;
};
StoredRight ReadStored(const RunContext& run, const ContractPlan& plan);

// The left operand: row i of the product is made of row rows[i] of `data`.
struct LeftRows {
  const float* data = nullptr;  // or words of two numbers of bfloat16, by `live`
  int64_t stored = 0, k = 0;    // rows and columns of `data`
  const int32_t* rows = nullptr;
  int64_t count = 0;           // rows of the product
  Live live = Live::kNotZero;  // what kernels read of it: they know of a ReLU

  bool AreWords() const { return live == Live::kWords; }
};

// Where the product goes: row i to row rows[i] of `data`, after row i of the residual was added.
struct Target {
  void* data = nullptr;
  int64_t stored = 0, n = 0;  // rows and columns of `data`
  const int32_t* rows = nullptr;
  const float* residual = nullptr;   // [count, n], or null
  Element type = Element::kFloat32;  // of `data`; or bfloat16

  // Where the rows of the product from `first` on go.
  Target Part(int64_t first) const {
    return {data, stored, n, rows + first, residual ? residual + first * n : nullptr, type};
  }
};

// What stands around the right operands: `a`, the residual, rows and live.
class GemmOperands {
 public:
  GemmOperands(const RunContext& run, const ContractPlan& plan, Arena::Scope& scratch)
      : run_(run), plan_(plan), scratch_(scratch) {}

  // Reads `a`.
  void ReadLeft();
  // Reads the residual, rows and live, and makes the output; dead rows of it are 0.
  void ReadRows();

  const LeftRows& left() const { return left_; }
  const Target& target() const { return target_; }

 private:
  const RunContext& run_;
  const ContractPlan& plan_;
  Arena::Scope& scratch_;
  Tensor a_;
  LeftRows left_;
  Target target_;
};

// C = act(A @ B + bias) + residual by the gather_gemm kernel. `bits`: one word per row and panel
// for the elements that are not 0 (kernels `_bits`), or null.
void RunGatherGemm(const RunContext& run, const Kernel& kernel, const LeftRows& left,
                   const Panels& b, const Target& target, uint64_t* bits = nullptr);

}  // namespace pitc

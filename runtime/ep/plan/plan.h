// Kernel plans (docs/plans.md): the text in a node's `ep_cache_context`, read strictly.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "plans.h"

namespace pitc {

struct MovePlan {  // pack and unpack
  bool unpack;
  std::vector<DimUse> dims;
  int word_bytes;
};

// One product: columns of its operands, and whether a bias is added.
struct ProductPlan {
  int64_t k, n;
  bool bias;
  bool rounded = false;  // the right operand is bfloat16, in pairs of rows
};
inline ProductPlan ProductOf(const ContractPlan& plan) {
  return {plan.k, plan.n, plan.bias, plan.rounded.has_value()};
}
// The product in front, if there is one.
inline ProductPlan InnerOf(const ContractPlan& plan) {
  return {plan.inner.value_or(0), plan.k, plan.inner_bias};
}
// So many numbers of a row, or words of two where they are stored as bfloat16.
inline int64_t WordsOf(int64_t numbers, bool stored) { return stored ? numbers / 2 : numbers; }
inline int64_t LeftColumns(const ContractPlan& plan) { return plan.inner.value_or(plan.k); }

inline int64_t PanelCount(int64_t columns) { return StepCount(columns, kPanelWidth); }

// Convolutions one behind the other: end k is the channels of convolution k, and the filters of the
// one before.
struct ChannelsPlan {
  struct End {
    int64_t extent;
    int64_t place;  // of its first flag; -1: all of it lives
  };
  struct Convolution {
    std::string node;  // its name in the source graph
    int64_t weight;    // work of one channel and one filter
  };
  std::vector<Convolution> convolutions;
  std::vector<End> ends;  // one more
  int64_t flags;          // how many
  int64_t budget, work;   // what pays at most, and all there is
};

struct RegionStep {
  ContractPlan plan;
  KernelNames kernels;
  std::vector<StepOperand> reads;
};

// Products one behind the other, for the live points of a mask that the device finds.
struct RegionPlan {
  std::vector<RegionStep> steps;
  std::vector<int> gives;  // the steps whose results are outputs, ascending
  int inputs;
};

struct Plan {
  std::string op;
  KernelNames kernels;   // without CPU level or tile
  std::string library;   // bare file name in the model's folder; empty where there is none
  std::string identity;  // of that library
  std::variant<DetectPlan, MovePlan, ContractPlan, PairsPlan, AttentionPlan, AttentionGradPlan,
               OuterProductsPlan, GroupedPlan, ElementwisePlan, NormPlan, SparseProductPlan,
               AddRowsPlan, ChannelsPlan, RegionPlan>
      body;
};

// Throws Failure when the text is not exactly a plan for the machine: version, keys, values, and
// what fields say together.
Plan ParsePlan(std::string_view text, Machine machine = Machine::kCpu);

}  // namespace pitc

// Kernel plans (docs/plans.md): the text in a node's `ep_cache_context`, read strictly.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/element.h"
#include "cuda_tiles.h"
#include "cuda_variants.h"
#include "select/selector.h"

namespace pitc {

constexpr const char* kPlanFormat = "pitc-plan 4";  // a plan's first line
constexpr int64_t kKernelAbi = 1;                   // as `pitc/ir/kernel.py`

// Whose kernels a plan names.
enum class Machine { kCpu, kCuda };

// What one dimension of an unpacked tensor is.
struct DimUse {
  enum Kind { kCoordinate, kLinear, kOne, kRest };
  Kind kind;
  int coordinate = 0;  // which one, for kCoordinate
};

struct DetectPlan {
  int rank;
  std::string padding;  // the name of the padding mask, which holds 0 and 1 only; empty: of none
};

struct MovePlan {  // pack and unpack
  bool unpack;
  std::vector<DimUse> dims;
  int word_bytes;
};

// One product: columns of its operands, and whether a bias is added.
struct ProductPlan {
  int64_t k, n;
  bool bias;
};

// Columns of a panel, as the compiler makes them (`pitc/ir/panels.py`).
constexpr int64_t kPanelWidth = 64;
inline int64_t PanelCount(int64_t columns) { return (columns + kPanelWidth - 1) / kPanelWidth; }

// Columns of the turned product that one call of a kernel over lists computes.
constexpr int64_t kTurnedColumns = 128;

// How a right operand lies in memory: in panels, or as [k, n] or [n, k] where it is computed when
// the model runs.
enum class Order { kPanels, kKN, kNK };

// Clocks that a step of each dense tile takes on devices of an architecture, in the order of
// TilesOf.
struct TileClocks {
  int arch;  // 90: sm_90
  std::vector<int64_t> clocks;
};

// The dense tiles that a type has: by tensor cores, and of float32 by FMA units, too.
std::vector<const CudaTile*> TilesOf(Element type);

// Femtoseconds for each feature of each variant on devices of an architecture, in the order of
// OffersOf.
struct OfferPrices {
  int arch;
  std::vector<std::array<int64_t, kCudaFeatures>> prices;
};

// The variants that a type has, in each of their dense tiles.
std::vector<const CudaOffer*> OffersOf(Element type);

// Symbols of kernels on a GPU that skip zeros: how each begins.
struct ListedSymbols {
  std::string detect, choose, lists;
  std::array<std::string, kCudaCuts> products;  // by cut
};

// gather_gemm, contract, contract_right and ffn: act(A @ B + bias) + residual.
struct ContractPlan {
  ProductPlan product;
  Element type = Element::kFloat32;
  std::vector<TileClocks> clocks;   // for a GPU: at least one, oldest architecture first
  std::vector<OfferPrices> prices;  // where a GPU skips zeros, of the same architectures
  ListedSymbols listed;             // then
  bool gather, residual, scatter;
  Order order = Order::kPanels;
  bool factor = false;               // B is the product of two inputs; not in panels
  bool mask = false;                 // it is 0 where the factor is
  bool relu = false;                 // A stands for max(A, 0), as the kernels know
  std::optional<ProductPlan> inner;  // A is the ReLU of this product, which stays inside
  bool skips = false;                // zeros of A are skipped; of B where it is not in panels
  CostTable costs_v3, costs_v4;
  // Symbols without the level: of the product in front, and, behind the family, of kernels over
  // lists and of swrite_columns.
  std::string inner_kernel, listed_suffix, swrite_suffix;
  std::string rows_kernel;  // of rows of a right operand's transpose; "" where it lies so

  int64_t left_columns() const { return inner ? inner->k : product.k; }
};

struct AttentionPlan {
  // Numbers are rounded to multiples of `step`, from -below to above of them.
  struct Steps {
    double step;
    int64_t below, above;
  };
  Element type;
  int64_t d, dv, heads, q_head, k_head, v_head;
  bool bias, nan_to_zero, no_keys_to_zero;
  bool whole;  // keys and values lie as in a cache: [sequences, heads, positions, size]
  double scale;
  std::optional<Steps> score_steps, weight_steps;
  double score_scale = 1;  // of rounded scores
};

// Convolutions one behind the other: end k is the channels of convolution k, and the filters of the
// one before.
struct ChooseChannelsPlan {
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

// Where a step of a region finds an operand: an input of the node, of which 0 is the mask, the rows
// that live, or what an earlier step has made.
struct StepOperand {
  enum Kind { kInput, kRows, kStep } kind;
  int number = 0;
};

struct RegionStep {
  std::string op, kernel;  // of a product, as in Plan
  ContractPlan plan;
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
  std::string kernel;    // base symbol, without CPU level; empty where there is none
  std::string library;   // bare file name in the model's folder; empty where there is none
  std::string identity;  // of that library
  std::variant<DetectPlan, MovePlan, ContractPlan, AttentionPlan, ChooseChannelsPlan, RegionPlan>
      body;
};

// Throws Failure when the text is not exactly a plan for the machine: version, keys and values are
// all checked, and the kernel's symbol must be the one that the other fields demand.
Plan ParsePlan(std::string_view text, Machine machine = Machine::kCpu);

}  // namespace pitc

// Nodes of the plans in plans/, and random inputs that fit a plan: what the compiler's graphs feed
// to its nodes.
#pragma once

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/shape.h"
#include "check.h"
#include "fake_ort.h"
#include "plan/plan.h"

namespace pitc::test {

constexpr auto kFloatType = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
constexpr auto kInt32Type = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
constexpr auto kBoolType = ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;

// The live points of a random mask over `extents`.
struct RandomDomain {
  std::vector<int64_t> extents;
  std::vector<uint8_t> live;
  std::vector<int32_t> rows, coords, offsets{0};

  RandomDomain(Random& random, std::vector<int64_t> sizes) : extents(std::move(sizes)) {
    int64_t points = 1, sequence = extents.back();
    for (int64_t extent : extents) points *= extent;
    const int64_t density = random.Below(5);
    for (int64_t p = 0; p < points; ++p) {
      live.push_back(random.Below(4) < density ? 1 : 0);
      if (live.back()) rows.push_back(static_cast<int32_t>(p));
      if ((p + 1) % sequence == 0) offsets.push_back(static_cast<int32_t>(rows.size()));
    }
    if (sequence == 0) offsets.resize(static_cast<size_t>(Sequences()) + 1, 0);
    int64_t below = points;
    for (int64_t extent : extents) {
      below = extent ? below / extent : 0;
      for (int32_t row : rows) coords.push_back(static_cast<int32_t>(row / below % extent));
    }
  }
  int64_t Rank() const { return static_cast<int64_t>(extents.size()); }
  int64_t Count() const { return static_cast<int64_t>(rows.size()); }
  int64_t Sequences() const {
    int64_t sequences = 1;
    for (size_t d = 0; d + 1 < extents.size(); ++d) sequences *= extents[d];
    return sequences;
  }
  OrtValue Live() const { return OrtValue::Of(kBoolType, extents, live); }
  OrtValue Rows() const { return OrtValue::Of(kInt32Type, {Count()}, rows); }
  OrtValue Coords() const { return OrtValue::Of(kInt32Type, {Rank(), Count()}, coords); }
  OrtValue Offsets() const {
    return OrtValue::Of(kInt32Type, {static_cast<int64_t>(offsets.size())}, offsets);
  }
};

// The plan of a product, or null.
inline const ContractPlan* ContractOf(const Plan& plan) {
  return std::get_if<ContractPlan>(&plan.body);
}

// Prices of a node that has variants, or null.
inline const CostTable* Costs(const Plan& plan, CpuLevel level) {
  const ContractPlan* contract = ContractOf(plan);
  if (!contract || !contract->skips) return nullptr;
  return level >= CpuLevel::kV4 ? &contract->prices.v4 : &contract->prices.v3;
}

inline OrtValue RandomFloats(Random& random, std::vector<int64_t> dims) {
  int64_t count = 1;
  for (int64_t dim : dims) count *= dim;
  std::vector<float> elements(static_cast<size_t>(count));
  for (float& x : elements) x = static_cast<float>(random.Below(2001) - 1000) / 500;
  return OrtValue::Of(kFloatType, std::move(dims), elements);
}

// Many zeros, alone or in tiles, and among the others all kinds of numbers.
inline OrtValue SparseFloats(Random& random, std::vector<int64_t> dims) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kOdd[] = {-0.0f,
                            1e-41f,
                            -1e-45f,
                            1e-30f,
                            kInfinity,
                            -kInfinity,
                            std::numeric_limits<float>::quiet_NaN()};
  OrtValue value = RandomFloats(random, dims);
  const int64_t width = std::max<int64_t>(dims.empty() ? 1 : dims.back(), 1);
  auto* x = reinterpret_cast<float*>(value.bytes.data());
  const auto count = static_cast<int64_t>(value.bytes.size() / sizeof(float));
  const int64_t tile_rows = int64_t{1} << random.Below(6),
                tile_width = int64_t{1} << random.Below(7);
  const int64_t live = random.Below(11);  // tenths
  const uint64_t salt = random.Next();
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = i / width / tile_rows, column = i % width / tile_width;
    Random tile(salt + static_cast<uint64_t>(row * 1000003 + column));
    tile.Next();
    if (tile.Below(10) >= live) x[i] = 0;
    if (random.Below(300) == 0) x[i] = kOdd[random.Below(std::size(kOdd))];
  }
  return value;
}

inline OrtValue RandomPanels(Random& random, int64_t k, int64_t n, int64_t width) {
  return RandomFloats(random, {(n + width - 1) / width, k, width});
}

// Words of two rows of bfloat16 numbers, and 0 behind the last row.
inline OrtValue RandomPairs(Random& random, int64_t k, int64_t n) {
  std::vector<int64_t> dims{PanelCount(n), (k + 1) / 2, 2 * kPanelWidth};
  std::vector<uint16_t> halves(static_cast<size_t>(dims[0] * dims[1] * dims[2]));
  for (size_t i = 0; i < halves.size(); ++i) {
    const auto pair = static_cast<int64_t>(i) / dims[2] % dims[1];
    const float x = static_cast<float>(random.Below(2001) - 1000) / 500;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (2 * pair + static_cast<int64_t>(i % 2) < k) halves[i] = static_cast<uint16_t>(bits >> 16);
  }
  return OrtValue::Of(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, std::move(dims), halves);
}

// Floats as bfloat16 numbers, cut.
inline OrtValue Halves(const OrtValue& floats) {
  std::vector<uint16_t> halves(floats.bytes.size() / sizeof(float));
  for (size_t i = 0; i < halves.size(); ++i)
    memcpy(&halves[i], floats.bytes.data() + i * sizeof(float) + 2, sizeof halves[i]);
  return OrtValue::Of(ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, floats.dims, halves);
}

// What of [rows, columns] lives: numbers, and of every third run bools.
inline OrtValue RandomMask(Random& random, int64_t rows, int64_t columns) {
  OrtValue mask = SparseFloats(random, {rows, columns});
  if (random.Below(3) > 0) return mask;
  const auto* x = reinterpret_cast<const float*>(mask.bytes.data());
  std::vector<uint8_t> live(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < live.size(); ++i) live[i] = x[i] != 0;
  return OrtValue::Of(kBoolType, {rows, columns}, live);
}

// Inputs of a product of `t` rows whose right operand holds many zeros, and NaN and infinities
// among the others; where `odd`, the left one does, too.
inline std::vector<OrtValue> MakeRightInputs(const ContractPlan& plan, Random& random, int64_t t,
                                             bool odd) {
  const int64_t k = plan.k, n = plan.n;
  std::vector<int64_t> dims{t, k};
  if (t % 2) dims.insert(dims.begin(), 1);
  const bool turned = plan.right == ContractPlan::kNk;
  const auto sparse = [&] {
    return SparseFloats(random, turned ? std::vector<int64_t>{n, k} : std::vector<int64_t>{k, n});
  };
  std::vector<OrtValue> inputs{odd ? SparseFloats(random, dims) : RandomFloats(random, dims)};
  inputs.push_back(sparse());
  if (plan.factor) inputs.push_back(sparse());
  if (plan.tiles) inputs.push_back(RandomMask(random, t, n));
  if (plan.bias) inputs.push_back(RandomFloats(random, {n}));
  if (plan.residual) inputs.push_back(RandomFloats(random, {t, n}));
  return inputs;
}

// Random lists of the keys that queries of a domain see; queries of a list in any order.
inline std::vector<OrtValue> MakePairLists(Random& random, const RandomDomain& domain) {
  std::vector<int32_t> keys, seen_by, tiles, order;
  for (size_t s = 0; s + 1 < domain.offsets.size(); ++s) {
    const int32_t begin = domain.offsets[s], end = domain.offsets[s + 1];
    for (int32_t q = begin; q < end; q += static_cast<int32_t>(kListedQueries)) {
      const bool listed = random.Below(4) != 0;
      const auto first = static_cast<int32_t>(listed ? keys.size() : 0);
      for (int32_t k = begin; k < end && listed; ++k) {
        if (random.Below(2)) continue;
        keys.push_back(k - begin);
        seen_by.push_back(static_cast<int32_t>(random.Next()));
      }
      const int32_t count = listed ? static_cast<int32_t>(keys.size()) - first : end - begin;
      tiles.insert(tiles.end(), {first, count, listed});
      const int32_t last = std::min<int32_t>(end, q + static_cast<int32_t>(kListedQueries));
      for (int32_t row = q; row < last; ++row) order.push_back(row);
      if (listed) std::reverse(order.begin() + q, order.end());
    }
  }
  const auto of = [](const std::vector<int32_t>& list) {
    return OrtValue::Of(kInt32Type, {static_cast<int64_t>(list.size())}, list);
  };
  const auto count = static_cast<int64_t>(tiles.size()) / 3;
  return {of(keys), of(seen_by), OrtValue::Of(kInt32Type, {count, 3}, tiles), of(order)};
}

// What tests of a domain's pairs look at.
inline std::vector<OrtValue> MakePairTests(const PairsPlan& plan, Random& random,
                                           const RandomDomain& domain) {
  std::vector<OrtValue> inputs{domain.Offsets(), domain.Offsets(), domain.Coords(),
                               domain.Coords()};
  if (plan.positions) {
    std::vector<int64_t> numbers;
    for (int64_t i = 0; i < 3 * plan.positions; ++i) numbers.push_back(random.Below(9) - 4);
    inputs.push_back(
        OrtValue::Of(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, {plan.positions, 3}, numbers));
  }
  const auto blocks = [&](int64_t size) { return (domain.extents.back() + size - 1) / size; };
  const auto shaped = [&](int64_t tests, int sides, std::vector<int64_t>* dims) {
    *dims = domain.extents;
    dims->insert(dims->begin(), tests);
    if (sides == 2) {
      dims->back() = blocks(plan.q_block.value_or(1));
      dims->push_back(blocks(plan.k_block.value_or(1)));
    }
    int64_t count = 1;
    for (const int64_t dim : *dims) count *= dim;
    return count;
  };
  for (int side = 0; side < 2 && plan.tables > 0; ++side) {
    std::vector<int64_t> dims, numbers;
    const int64_t count = shaped(plan.tables, 1, &dims);
    for (int64_t i = 0; i < count; ++i) numbers.push_back(random.Below(5) - 2);
    inputs.push_back(OrtValue::Of(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, dims, numbers));
  }
  const auto flags = [&](int64_t tests, int sides) {
    if (tests == 0) return;
    std::vector<int64_t> dims;
    const int64_t count = shaped(tests, sides, &dims);
    std::vector<uint8_t> live;
    for (int64_t i = 0; i < count; ++i) live.push_back(random.Below(2) != 0);
    inputs.push_back(OrtValue::Of(kBoolType, dims, live));
  };
  flags(plan.keys, 1);
  flags(plan.queries, 1);
  flags(plan.pairs, 2);
  return inputs;
}

// Of a plan with more the inputs do not fit: flags are not worth the memory.
constexpr int64_t kMostFlags = 1 << 12;

// Inputs of the node that a plan describes, with extents up to `most` (1 or more).
inline std::vector<OrtValue> MakeInputs(const Plan& plan, Random& random, int64_t most) {
  const auto extent = [&] { return random.Below(most + 1); };
  if (auto* detect = std::get_if<DetectPlan>(&plan.body)) {
    std::vector<int64_t> extents;
    for (int d = 0; d < detect->rank; ++d) extents.push_back(extent());
    const OrtValue live = RandomDomain(random, extents).Live();
    if (!detect->padding) return {live};
    return {live, live};
  }
  if (auto* move = std::get_if<MovePlan>(&plan.body)) {
    int rank = 1;
    for (const DimUse& use : move->dims) rank = std::max(rank, use.coordinate + 1);
    std::vector<int64_t> extents;
    for (int d = 0; d < rank; ++d) extents.push_back(extent());
    const RandomDomain domain(random, extents);
    std::vector<int64_t> dims;
    if (move->unpack) dims.push_back(domain.Count());
    for (const DimUse& use : move->dims) {
      if (use.kind == DimUse::kRest) dims.push_back(random.Below(5));
      if (move->unpack) continue;
      if (use.kind == DimUse::kCoordinate)
        dims.push_back(extents[static_cast<size_t>(use.coordinate)]);
      if (use.kind == DimUse::kLinear) dims.push_back(static_cast<int64_t>(domain.live.size()));
      if (use.kind == DimUse::kOne) dims.push_back(1);
    }
    return {RandomFloats(random, dims), domain.Rows(), domain.Coords(), domain.Live()};
  }
  if (auto* choose = std::get_if<ChannelsPlan>(&plan.body))
    return {SparseFloats(random, {std::min<int64_t>(choose->flags, kMostFlags)})};
  if (auto* pairs = std::get_if<PairsPlan>(&plan.body)) {
    std::vector<int64_t> extents;
    for (int64_t d = 0; d < pairs->rank; ++d)
      extents.push_back(1 + random.Below(d + 1 < pairs->rank ? 3 : most));
    return MakePairTests(*pairs, random, RandomDomain(random, extents));
  }
  const RandomDomain domain(random, {1 + random.Below(3), 1 + random.Below(most)});
  if (const ContractPlan* p = ContractOf(plan)) {
    if (p->right != ContractPlan::kPanels)
      return MakeRightInputs(*p, random, domain.Count(), random.Below(4) == 0);
    const int64_t k = p->k, n = p->n;
    const int64_t width = int64_t{1} << random.Below(5), t = domain.Count();
    std::vector<int64_t> dims = p->gather ? domain.extents : std::vector<int64_t>{t};
    dims.push_back(LeftColumns(*p));
    std::vector<OrtValue> inputs;
    inputs.push_back(p->skips ? SparseFloats(random, dims) : RandomFloats(random, dims));
    if (p->stored.a) inputs.back() = Halves(inputs.back());
    if (p->inner) inputs.push_back(RandomPanels(random, *p->inner, k, 64));
    if (p->inner_bias) inputs.push_back(RandomFloats(random, {k}));
    inputs.push_back(p->rounded ? RandomPairs(random, k, n) : RandomPanels(random, k, n, width));
    if (p->bias) inputs.push_back(RandomFloats(random, {n}));
    if (p->residual) inputs.push_back(RandomFloats(random, {t, n}));
    if (p->gather || p->scatter) {
      inputs.push_back(domain.Rows());
      inputs.push_back(domain.Live());
    }
    return inputs;
  }
  if (auto* norm = std::get_if<NormPlan>(&plan.body)) {
    std::vector<OrtValue> inputs{RandomFloats(random, {domain.Count(), norm->n}),
                                 RandomFloats(random, {norm->n})};
    if (norm->bias) inputs.push_back(RandomFloats(random, {norm->n}));
    return inputs;
  }
  if (auto* add = std::get_if<AddRowsPlan>(&plan.body)) {
    const int64_t t = domain.Count(), n = add->n.value_or(1 + random.Below(50));
    std::vector<int64_t> places(static_cast<size_t>(t)), size{n};
    for (int64_t& place : places) place = random.Below(2 * n) - n;
    std::vector<OrtValue> inputs;
    inputs.push_back(OrtValue::Of(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, {t, 1}, places));
    const int64_t width = 1 + random.Below(200);
    inputs.push_back(RandomFloats(random, {t, width}));
    if (add->started) inputs.push_back(RandomFloats(random, {n, width}));
    if (add->sized) inputs.push_back(OrtValue::Of(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, {1}, size));
    if (add->scaled) inputs.push_back(RandomFloats(random, {t, 1}));
    return inputs;
  }
  if (auto* sparse = std::get_if<SparseProductPlan>(&plan.body)) {
    const int64_t m = domain.Count(), k = random.Below(90), n = random.Below(50);
    std::vector<int64_t> dims{2, m, k};
    if (sparse->turned) dims = {k, 2, m};
    return {RandomFloats(random, dims), RandomFloats(random, {k, n})};
  }
  if (auto* elementwise = std::get_if<ElementwisePlan>(&plan.body)) {
    const auto rows = static_cast<int64_t>(domain.live.size()), n = random.Below(90);
    std::vector<OrtValue> inputs;
    for (size_t kind : elementwise->kinds) {
      std::vector<int64_t> dims{rows, n};
      if (kind == ElementwisePlan::kRow) dims = {n};
      if (kind == ElementwisePlan::kColumn) dims = {rows, 1};
      if (kind == ElementwisePlan::kNumber) dims = {};
      if (kind == ElementwisePlan::kLeft || kind == ElementwisePlan::kRight) dims = {rows, 2 * n};
      std::vector<uint8_t> flags(static_cast<size_t>(rows * n));
      for (uint8_t& flag : flags) flag = random.Below(2) > 0;
      inputs.push_back(kind == ElementwisePlan::kFlags ? OrtValue::Of(kBoolType, dims, flags)
                                                       : RandomFloats(random, dims));
    }
    return inputs;
  }
  if (auto* outer = std::get_if<OuterProductsPlan>(&plan.body)) {
    const int64_t k = random.Below(3) ? domain.Count() : random.Below(900);
    const int64_t m = random.Below(150), n = random.Below(200);
    std::vector<OrtValue> inputs{RandomFloats(random, {k, m}), RandomFloats(random, {k, n})};
    if (outer->masked) inputs.push_back(RandomMask(random, m, n));
    return inputs;
  }
  if (auto* grouped = std::get_if<GroupedPlan>(&plan.body)) {
    const int64_t t = domain.Count(), j = random.Below(4), m = random.Below(4);
    std::vector<int64_t> groups(static_cast<size_t>(t * j));
    for (int64_t& group : groups) group = random.Below(2 * grouped->groups) - grouped->groups;
    std::vector<OrtValue> inputs;
    const std::vector<int64_t> a{t, random.Below(2) ? j : 1, m, grouped->k};
    inputs.push_back(grouped->skips ? SparseFloats(random, a) : RandomFloats(random, a));
    inputs.push_back(OrtValue::Of(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, {t, j}, groups));
    const int64_t panels = grouped->groups * PanelCount(grouped->n);
    inputs.push_back(grouped->rounded
                         ? RandomPairs(random, grouped->k,
                                       grouped->groups * PanelCount(grouped->n) * kPanelWidth)
                         : RandomFloats(random, {panels, grouped->k, kPanelWidth}));
    return inputs;
  }
  if (auto* grad = std::get_if<AttentionGradPlan>(&plan.body)) {
    const int64_t t = domain.Count(), sequence = domain.extents.back();
    std::vector<OrtValue> inputs{RandomFloats(random, {t, grad->heads, grad->d}),
                                 RandomFloats(random, {t, grad->heads, grad->d}),
                                 RandomFloats(random, {t, grad->heads, grad->dv}), domain.Offsets(),
                                 domain.Offsets()};
    if (grad->bias) {
      inputs.push_back(RandomFloats(random, {1, grad->heads, sequence, sequence}));
      inputs.push_back(domain.Coords());
      inputs.push_back(domain.Coords());
    }
    if (grad->pairs)
      for (OrtValue& list : MakePairLists(random, domain)) inputs.push_back(std::move(list));
    inputs.push_back(RandomFloats(random, {t, grad->heads, grad->dv}));
    return inputs;
  }
  const auto& a = std::get<AttentionPlan>(plan.body);
  const int64_t t = domain.Count(), sequence = domain.extents.back();
  const int64_t shared = a.heads / a.group.value_or(1);
  const auto keys = [&](int64_t first, int64_t size) {
    return RandomFloats(random,
                        a.whole ? std::vector<int64_t>{domain.Sequences(), shared, sequence, size}
                                : std::vector<int64_t>{t, first + shared, size});
  };
  std::vector<OrtValue> inputs{RandomFloats(random, {t, a.q_head + a.heads, a.d}),
                               keys(a.k_head, a.d), keys(a.v_head, a.dv), domain.Offsets(),
                               domain.Offsets()};
  const bool stored[] = {a.stored.q, a.stored.k, a.stored.v};
  for (size_t i = 0; i < 3; ++i)
    if (stored[i]) inputs[i] = Halves(inputs[i]);
  if (a.bias) {
    const auto one_or = [&](int64_t n) { return random.Below(2) ? n : 1; };
    inputs.push_back(RandomFloats(
        random, {one_or(domain.Sequences()), one_or(a.heads), one_or(sequence), one_or(sequence)}));
    inputs.push_back(domain.Coords());
  }
  if (a.bias || a.whole) inputs.push_back(domain.Coords());
  if (a.sinks) inputs.push_back(RandomFloats(random, {*a.sinks}));
  if (a.whole) inputs.push_back(domain.Live());
  if (a.pairs) {
    for (OrtValue& list : MakePairLists(random, domain)) inputs.push_back(std::move(list));
  }
  return inputs;
}

// How many inputs and outputs the node of a plan has.
inline int InputCount(const Plan& plan) {
  if (const ContractPlan* p = ContractOf(plan)) {
    return 2 + p->inner.has_value() + p->inner_bias + (p->factor > 0) + p->tiles + p->bias +
           p->residual + 2 * (p->gather || p->scatter);
  }
  if (auto* attention = std::get_if<AttentionPlan>(&plan.body)) return attention->Places().count;
  if (auto* add = std::get_if<AddRowsPlan>(&plan.body)) return add->Places().count;
  if (auto* sparse = std::get_if<SparseProductPlan>(&plan.body)) return sparse->Places().count;
  if (auto* grad = std::get_if<AttentionGradPlan>(&plan.body)) return grad->Places().count;
  if (auto* outer = std::get_if<OuterProductsPlan>(&plan.body)) return outer->Places().count;
  if (auto* grouped = std::get_if<GroupedPlan>(&plan.body)) return grouped->Places().count;
  if (auto* elementwise = std::get_if<ElementwisePlan>(&plan.body))
    return static_cast<int>(elementwise->kinds.size());
  if (auto* pairs = std::get_if<PairsPlan>(&plan.body)) return pairs->Places().count;
  if (auto* norm = std::get_if<NormPlan>(&plan.body)) return norm->Places().count;
  if (auto* detect = std::get_if<DetectPlan>(&plan.body)) return detect->padding ? 2 : 1;
  return plan.op == "choose_channels" ? 1 : 4;
}

inline int OutputCount(const Plan& plan) {
  if (plan.op == "pairs") return PairsPlan::kOutputs;
  if (plan.op == "norm") return NormPlan::kOutputs;
  if (auto* elementwise = std::get_if<ElementwisePlan>(&plan.body))
    return static_cast<int>(elementwise->columns.size());
  if (plan.op == "attention_grad") return AttentionGradPlan::kOutputs;
  return plan.op == "detect" ? 3 : 1;
}

// A plan of the fuzzers' seeds, and its sessions.
struct PlanCase {
  std::string name, text;
  Plan plan;

  explicit PlanCase(const std::string& file) : name(file) {
    std::ifstream stream(std::filesystem::path(PITC_TEST_PLANS) / file);
    text.assign(std::istreambuf_iterator<char>(stream), {});
    plan = ParsePlan(text);
  }
  // The same with other values of some fields, for kernels of `k` and `n`.
  PlanCase With(int64_t k, int64_t n, const std::map<std::string, std::string>& fields = {}) const {
    PlanCase other = *this;
    const auto set = [&](const std::string& key, const std::string& value) {
      const size_t at = other.text.find("\n" + key + "=") + key.size() + 2;
      other.text.replace(at, other.text.find('\n', at) - at, value);
    };
    const auto get = [&](const std::string& key) {
      const size_t at = other.text.find("\n" + key + "=") + key.size() + 2;
      return other.text.substr(at, other.text.find('\n', at) - at);
    };
    set("k", std::to_string(k));
    set("n", std::to_string(n));
    for (const auto& [key, value] : fields) {
      set(key, value);
      other.name += " " + key + "=" + value;
    }
    set("kernels", Kernels(get));
    other.plan = ParsePlan(other.text);
    return other;
  }
  // The symbols that the fields of a contraction demand, as the compiler writes them.
  template <class Get>
  static std::string Kernels(const Get& get) {
    const std::string k = "_k" + get("k"), n = "_n" + get("n"), right = get("right");
    const std::string residual = get("residual") == "1" ? "_res" : "";
    const std::string epilogue = "_" + get("activation") + residual;
    const std::string relu = get("input_relu") == "1" ? "_input_relu" : "";
    const bool computed = right != "panels", factor = get("factor") != "0";
    const std::string stored = computed ? "_" + right + (factor ? "_factor" : "") : std::string();
    const std::string listed = computed ? k + "_n128_none" : k + n + epilogue;
    std::string kernels = "dense:gather_gemm" + k + n + epilogue + relu + stored;
    if (get("tiles") == "1") return kernels + ",block:contract_block" + k + n + epilogue + stored;
    if (get("skips") == "1") {
      for (const char* const role : {"row", "tile", "block"})
        kernels += std::string(",") + role + ":contract_" + role + listed;
    }
    if (computed) {
      kernels += ",panels:panels" + k + ",swrite:swrite_columns" + n + epilogue;
      kernels += ",rows:stored_rows" + k + n + "_" + right;
      kernels += get("factor") == "2" ? "_mask" : factor ? "_factor" : "";
    }
    return kernels;
  }
  // The kernels lie beside `model`.
  std::unique_ptr<Session> Make(const Library& library, const Options& options = {},
                                const std::string& model = PITC_TEST_KERNELS) const {
    return std::make_unique<Session>(library, text, model, InputCount(plan), OutputCount(plan),
                                     options);
  }
};

}  // namespace pitc::test

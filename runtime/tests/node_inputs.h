// Random inputs that fit a plan: what the compiler's graphs feed to its nodes.
#pragma once

#include <algorithm>
#include <vector>

#include "check.h"
#include "fake_ort.h"
#include "plan.h"
#include "shape.h"

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

inline OrtValue RandomFloats(Random& random, std::vector<int64_t> dims) {
  int64_t count = 1;
  for (int64_t dim : dims) count *= dim;
  std::vector<float> elements(static_cast<size_t>(count));
  for (float& x : elements) x = static_cast<float>(random.Below(2001) - 1000) / 500;
  return OrtValue::Of(kFloatType, std::move(dims), elements);
}

// Inputs of the node that a plan describes, with extents up to `most` (1 or more).
inline std::vector<OrtValue> MakeInputs(const Plan& plan, Random& random, int64_t most) {
  const auto extent = [&] { return random.Below(most + 1); };
  if (auto* detect = std::get_if<DetectPlan>(&plan.body)) {
    std::vector<int64_t> extents;
    for (int d = 0; d < detect->rank; ++d) extents.push_back(extent());
    return {RandomDomain(random, extents).Live()};
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
  const RandomDomain domain(random, {1 + random.Below(3), 1 + random.Below(most)});
  if (auto* gemm = std::get_if<GatherGemmPlan>(&plan.body)) {
    const int64_t width = int64_t{1} << random.Below(5), t = domain.Count();
    std::vector<int64_t> dims = gemm->gather ? domain.extents : std::vector<int64_t>{t};
    dims.push_back(gemm->k);
    std::vector<OrtValue> inputs{
        RandomFloats(random, dims),
        RandomFloats(random, {(gemm->n + width - 1) / width, gemm->k, width})};
    if (gemm->bias) inputs.push_back(RandomFloats(random, {gemm->n}));
    if (gemm->residual) inputs.push_back(RandomFloats(random, {t, gemm->n}));
    if (gemm->gather || gemm->scatter) {
      inputs.push_back(domain.Rows());
      inputs.push_back(domain.Live());
    }
    return inputs;
  }
  const auto& a = std::get<AttentionPlan>(plan.body);
  const int64_t t = domain.Count(), sequence = domain.extents.back();
  std::vector<OrtValue> inputs{RandomFloats(random, {t, a.q_head + a.heads, a.d}),
                               RandomFloats(random, {t, a.k_head + a.heads, a.d}),
                               RandomFloats(random, {t, a.v_head + a.heads, a.dv}),
                               domain.Offsets(), domain.Offsets()};
  if (a.bias) {
    const auto one_or = [&](int64_t n) { return random.Below(2) ? n : 1; };
    inputs.push_back(RandomFloats(
        random, {one_or(domain.Sequences()), one_or(a.heads), one_or(sequence), one_or(sequence)}));
    inputs.push_back(domain.Coords());
    inputs.push_back(domain.Coords());
  }
  return inputs;
}

// How many inputs and outputs the node of a plan has.
inline int InputCount(const Plan& plan) {
  if (auto* gemm = std::get_if<GatherGemmPlan>(&plan.body))
    return 2 + gemm->bias + gemm->residual + 2 * (gemm->gather || gemm->scatter);
  if (auto* attention = std::get_if<AttentionPlan>(&plan.body)) return attention->bias ? 8 : 5;
  return plan.op == "detect" ? 1 : 4;
}

inline int OutputCount(const Plan& plan) { return plan.op == "detect" ? 3 : 1; }

}  // namespace pitc::test

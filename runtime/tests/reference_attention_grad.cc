// The attention_grad kernels of docs/plans.md, in float64 and as strict about arguments.
#include <limits>
#include <vector>

#include "kernel_args.h"

using pitc::test::Any;
using pitc::test::Args;
using pitc::test::Below;
using pitc::test::Data;
using pitc::test::Refuse;
using pitc::test::Tensor;

namespace {

// A head of a tensor [rows, heads, size].
struct Rows {
  const Tensor* tensor;
  int64_t head;

  float* At(int64_t row) const {
    return Data<float>(tensor) + (row * tensor->shape[1] + head) * tensor->shape[2];
  }
  bool Fits(int64_t rows, int64_t size) const {
    return tensor->shape[0] == rows && tensor->shape[2] == size && head < tensor->shape[1];
  }
};

double Product(const float* a, const float* b, int64_t size) {
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

void Add(double factor, const float* from, int64_t size, float* to) {
  for (int64_t i = 0; i < size; ++i) to[i] = static_cast<float>(to[i] + factor * from[i]);
}

int AttentionGrad(const Any* raw, int32_t count, int d, int dv, bool has_bias, bool pairs,
                  bool has_floor, bool zero) {
  Args args(raw, count);
  Rows q{args.Floats(3), 0}, k{args.Floats(3), 0}, v{args.Floats(3), 0}, g{args.Floats(3), 0};
  const Tensor* bias = has_bias ? args.Floats(1) : nullptr;
  const Tensor* q_positions = has_bias ? args.Int32s(1) : nullptr;
  const Tensor* k_positions = has_bias ? args.Int32s(1) : nullptr;
  const Tensor* listed = pairs ? args.Int32s(1) : nullptr;
  const Tensor* seen_by = pairs ? args.Int32s(1) : nullptr;
  const Tensor* order = pairs ? args.Int32s(1) : nullptr;
  Rows dq{args.Floats(3), 0}, dk{args.Floats(3), 0}, dvalue{args.Floats(3), 0};
  const double scale = args.Float();
  const double lowest = -std::numeric_limits<double>::infinity();
  const double floor = has_floor ? args.Float() : lowest;
  for (Rows* rows : {&q, &k, &v, &g}) rows->head = args.Int();
  dq.head = dk.head = dvalue.head = args.Int();
  const int64_t q0 = args.Int(), q1 = args.Int(), k0 = args.Int(), k1 = args.Int();
  const int64_t base = has_bias ? args.Int() : 0, q_stride = has_bias ? args.Int() : 0,
                k_stride = has_bias ? args.Int() : 0;
  if (!args.Good()) return -1;
  const int64_t queries = q.tensor->shape[0], keys = k.tensor->shape[0];
  args.Demand(q.Fits(queries, d) && g.Fits(queries, dv) && dq.Fits(queries, d), "rows of queries");
  args.Demand(k.Fits(keys, d) && v.Fits(keys, dv) && dk.Fits(keys, d) && dvalue.Fits(keys, dv),
              "rows of keys");
  args.Demand(0 <= q0 && q0 < q1 && q1 <= queries, "queries");
  args.Demand(0 <= k0 && k0 <= k1 && k1 <= (pairs ? listed->shape[0] : keys), "keys");
  args.Demand(!pairs || (q1 - q0 <= 32 && listed->shape[0] == seen_by->shape[0] &&
                         order->shape[0] == queries && Below(Data<int32_t>(listed), k0, k1, keys) &&
                         Below(Data<int32_t>(order), q0, q1, queries)),
              "lists");
  if (!args.Good()) return -1;
  const auto key = [&](int64_t entry) { return pairs ? Data<int32_t>(listed)[entry] : entry; };
  std::vector<double> p(static_cast<size_t>(k1 - k0)), w(p.size());
  for (int64_t lane = q0; lane < q1; ++lane) {
    const int64_t i = pairs ? Data<int32_t>(order)[lane] : lane;
    double most = lowest, sum = 0, mean = 0;
    for (size_t j = 0; j < p.size(); ++j) {
      const int64_t entry = k0 + static_cast<int64_t>(j), row = key(entry);
      p[j] = scale * Product(q.At(i), k.At(row), d);
      w[j] = Product(g.At(i), v.At(row), dv);
      if (has_bias) {
        const int64_t at = base + Data<int32_t>(q_positions)[i] * q_stride +
                           Data<int32_t>(k_positions)[row] * k_stride;
        if (at < 0 || at >= bias->shape[0]) return Refuse("bias index", 4);
        p[j] += Data<float>(bias)[at];
      }
      if (pairs && !(Data<int32_t>(seen_by)[entry] >> (lane - q0) & 1)) p[j] = lowest;
      most = std::max(most, p[j]);
    }
    const bool blind = zero && most == lowest;
    for (double& x : p) sum += x = blind ? 0 : std::exp(x - most);
    for (size_t j = 0; j < p.size(); ++j) mean += (p[j] /= blind ? 1 : sum) * w[j];
    std::fill_n(dq.At(i), d, 0.0f);
    for (size_t j = 0; j < p.size(); ++j) {
      const int64_t row = key(k0 + static_cast<int64_t>(j));
      const double by_score = has_floor && !(most > floor) ? 0 : p[j] * (w[j] - mean);
      Add(scale * by_score, k.At(row), d, dq.At(i));
      Add(scale * by_score, q.At(i), d, dk.At(row));
      Add(p[j], g.At(i), dv, dvalue.At(row));
    }
  }
  return 0;
}

}  // namespace

#define GRAD(suffix, bias, pairs, floor, zero) \
  KERNEL(attention_grad_d4_v6##suffix, AttentionGrad, 4, 6, bias, pairs, floor, zero)

GRAD(, false, false, false, false)
GRAD(_bias, true, false, false, false)
GRAD(_pairs, false, true, false, false)
GRAD(_bias_floor, true, false, true, false)
GRAD(_bias_pairs_floor, true, true, true, false)
GRAD(_zero, false, false, false, true)
GRAD(_pairs_zero, false, true, false, true)

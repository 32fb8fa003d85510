// The kernels of docs/plans.md in plain C++: slow, obvious, strict about their arguments. They
// stand in for generated kernels in tests, also under sanitizers. Shapes are in the symbols, so the
// list at the end is what tests may use.
#include <cstring>
#include <limits>
#include <vector>

#include "kernel_args.h"

using pitc::test::Activate;
using pitc::test::Activation;
using pitc::test::Any;
using pitc::test::Args;
using pitc::test::Below;
using pitc::test::Data;
using pitc::test::Refuse;
using pitc::test::Tensor;

EXPORT pitc::tvm::AllocWorkspace __TVMBackendAllocWorkspace;
EXPORT pitc::tvm::FreeWorkspace __TVMBackendFreeWorkspace;
pitc::tvm::AllocWorkspace __TVMBackendAllocWorkspace = nullptr;
pitc::tvm::FreeWorkspace __TVMBackendFreeWorkspace = nullptr;

namespace {

int Move(const Any* raw, int32_t count, int bits, bool unpack) {
  Args args(raw, count);
  const Tensor* from = args.Array(pitc::tvm::kIntCode, bits, 2);
  const Tensor* index = args.Int32s(1);
  const Tensor* to = args.Array(pitc::tvm::kIntCode, bits, 2);
  if (!args.Good()) return -1;
  const Tensor *packed = unpack ? from : to, *unpacked = unpack ? to : from;
  const int64_t n = index->shape[0], width = packed->shape[1];
  args.Demand(packed->shape[0] == n && unpacked->shape[1] == width, "shapes do not agree");
  args.Demand(n > 0 && width > 0 && Below(Data<int32_t>(index), 0, n, unpacked->shape[0]),
              "bad index");
  if (!args.Good()) return -1;
  const size_t bytes = static_cast<size_t>(width * bits / 8);
  for (int64_t i = 0; i < n; ++i) {
    const size_t row = static_cast<size_t>(i), slot = static_cast<size_t>(Data<int32_t>(index)[i]);
    memcpy(Data<char>(to) + (unpack ? slot : row) * bytes,
           Data<char>(from) + (unpack ? row : slot) * bytes, bytes);
  }
  return 0;
}

// A number of bfloat16 as a float.
float Widened(uint16_t half) {
  const uint32_t bits = uint32_t{half} << 16;
  float wide;
  memcpy(&wide, &bits, sizeof wide);
  return wide;
}

// A float as bfloat16, cut.
uint16_t Cut(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return static_cast<uint16_t>(bits >> 16);
}

// How a right operand stands in memory.
enum class Stored { kPanels, kn, nk };

constexpr int64_t kTogether = 8;  // sums that do not wait for each other

// `level` is what a kernel of Activation::level writes.
int GatherGemm(const Any* raw, int32_t count, int k, int n, Activation activation,
               bool has_residual, int level, bool has_bits = false, Stored stored = Stored::kPanels,
               bool has_factor = false, bool relu = false) {
  if (activation == Activation::fails) return Refuse("as the test wants\n\xff", 0);
  Args args(raw, count);
  const bool in_panels = stored == Stored::kPanels;
  const Tensor *a = args.Floats(2), *rows_a = args.Int32s(1), *b = args.Floats(in_panels ? 3 : 2);
  const Tensor* factor = has_factor ? args.Floats(2) : nullptr;
  const Tensor* bias = args.Floats(1);
  const Tensor* residual = has_residual ? args.Floats(2) : nullptr;
  const Tensor *rows_c = args.Int32s(1), *c = args.Floats(2);
  const Tensor* bits = has_bits ? args.Int64s(2) : nullptr;
  const int64_t i0 = args.Int(), i1 = args.Int(), j0 = args.Int(), j1 = args.Int();
  if (!args.Good()) return -1;
  const int64_t t = rows_a->shape[0], width = in_panels ? b->shape[2] : 64,
                panels = in_panels ? b->shape[0] : (n + width - 1) / width;
  args.Demand(a->shape[1] == k && c->shape[1] == n, "k or n");
  for (const Tensor* s : {b, factor}) {
    if (!s) continue;
    const bool good = in_panels              ? s->shape[1] == k
                      : stored == Stored::kn ? s->shape[0] == k && s->shape[1] == n
                                             : s->shape[0] == n && s->shape[1] == k;
    args.Demand(good, "the right operand");
  }
  args.Demand(rows_c->shape[0] == t && bias->shape[0] == panels * width && panels * width >= n,
              "shapes do not agree");
  args.Demand(!residual || (residual->shape[0] == t && residual->shape[1] == n), "residual");
  args.Demand(!bits || (bits->shape[0] == t && bits->shape[1] == panels && width == 64), "bits");
  args.Demand(0 <= i0 && i0 < i1 && i1 <= t && 0 <= j0 && j0 < j1 && j1 <= panels, "range");
  if (!args.Good()) return -1;
  args.Demand(Below(Data<int32_t>(rows_a), i0, i1, a->shape[0]) &&
                  Below(Data<int32_t>(rows_c), i0, i1, c->shape[0]),
              "bad index");
  for (int64_t j = n; j < panels * width; ++j)
    args.Demand(Data<float>(bias)[j] == 0, "bias is not padded with 0");
  if (!args.Good()) return -1;
  // What a loop reads from where it need not: under a sanitizer each read is a call.
  const float *right = Data<float>(b), *factors = factor ? Data<float>(factor) : nullptr;
  for (int64_t i = i0; i < i1; ++i) {
    const float* x = Data<float>(a) + int64_t{Data<int32_t>(rows_a)[i]} * k;
    float* y = Data<float>(c) + int64_t{Data<int32_t>(rows_c)[i]} * n;
    if (bits) std::fill_n(Data<uint64_t>(bits) + i * panels + j0, j1 - j0, 0);
    const int64_t end = std::min<int64_t>(j1 * width, n), step = in_panels              ? width
                                                                 : stored == Stored::kn ? n
                                                                                        : 1;
    for (int64_t first = j0 * width; first < end; first += kTogether) {
      double sums[kTogether];
      int64_t places[kTogether];
      for (int64_t m = 0; m < kTogether; ++m) {
        const int64_t j = std::min(first + m, end - 1);
        sums[m] = Data<float>(bias)[j];
        places[m] = in_panels              ? j / width * k * width + j % width
                    : stored == Stored::kn ? j
                                           : j * k;
      }
      for (int64_t l = 0; l < k; ++l) {
        const float v = relu && x[l] < 0 ? 0 : x[l];
        for (int64_t m = 0; m < kTogether; ++m) {
          const int64_t at = places[m] + l * step;
          sums[m] += static_cast<double>(v) * (right[at] * (factors ? factors[at] : 1));
        }
      }
      for (int64_t j = first; j < std::min(first + kTogether, end); ++j) {
        double sum = Activate(activation, sums[j - first]);
        if (residual) sum += Data<float>(residual)[i * n + j];
        y[j] =
            activation == Activation::level ? static_cast<float>(level) : static_cast<float>(sum);
        if (bits) Data<uint64_t>(bits)[i * panels + j / 64] |= uint64_t{y[j] != 0} << j % 64;
      }
    }
  }
  return 0;
}

// The same of words of two bfloat16 numbers.
int RoundedGemm(const Any* raw, int32_t count, int k, int n, Activation activation) {
  if (count < 3 || raw[2].type_index != pitc::tvm::kTensorPtr) return Refuse("words", 2);
  const auto* const words = static_cast<const Tensor*>(raw[2].v_ptr);
  const bool floats = words->code == pitc::tvm::kFloatCode && words->bits == 32;
  if (!floats || words->ndim != 3 || words->shape[1] != (k + 1) / 2 || words->shape[2] != 64)
    return Refuse("words of two rows", 2);
  const int64_t panels = words->shape[0], pairs = words->shape[1], width = words->shape[2];
  std::vector<float> wide(static_cast<size_t>(panels * k * width));
  for (int64_t j = 0; j < panels; ++j) {
    for (int64_t l = 0; l < k; ++l) {
      for (int64_t i = 0; i < width; ++i) {
        const int64_t word = (j * pairs + l / 2) * width + i;
        wide[static_cast<size_t>((j * k + l) * width + i)] =
            Widened(Data<uint16_t>(words)[2 * word + l % 2]);
      }
    }
  }
  int64_t shape[] = {panels, k, width};
  Tensor b = *words;
  b.data = wide.data();
  b.shape = shape;
  std::vector<Any> given(raw, raw + count);
  given[2].v_ptr = &b;
  return GatherGemm(given.data(), count, k, n, activation, false, 0);
}

// The same where `a` and C are such numbers, too: the rows of the call as floats, 0, 1, .. Other
// rows may be of other threads.
int StoredGemm(const Any* raw, int32_t count, int k, int n, Activation activation) {
  Args args(raw, count);
  const Tensor *a = args.Floats(2), *rows_a = args.Int32s(1), *b = args.Floats(3),
               *bias = args.Floats(1), *rows_c = args.Int32s(1),
               *c = args.Array(pitc::tvm::kUIntCode, 16, 2);
  const int64_t i0 = args.Int(), i1 = args.Int(), j0 = args.Int(), j1 = args.Int();
  if (!args.Good()) return -1;
  const int64_t t = rows_a->shape[0];
  args.Demand(a->shape[1] * 2 == k && c->shape[1] == n && rows_c->shape[0] == t, "k, n or rows");
  args.Demand(0 <= i0 && i0 < i1 && i1 <= t && 0 <= j0 && j0 < j1, "range");
  if (!args.Good()) return -1;
  args.Demand(Below(Data<int32_t>(rows_a), i0, i1, a->shape[0]) &&
                  Below(Data<int32_t>(rows_c), i0, i1, c->shape[0]),
              "bad index");
  if (!args.Good()) return -1;
  int64_t left_shape[] = {i1 - i0, k}, result_shape[] = {i1 - i0, n};
  std::vector<float> left(static_cast<size_t>((i1 - i0) * k)),
      result(static_cast<size_t>((i1 - i0) * n));
  std::vector<int32_t> every(static_cast<size_t>(i1 - i0));
  for (int64_t i = i0; i < i1; ++i) {
    every[static_cast<size_t>(i - i0)] = static_cast<int32_t>(i - i0);
    const auto* x = Data<uint16_t>(a) + int64_t{Data<int32_t>(rows_a)[i]} * k;
    for (int64_t l = 0; l < k; ++l) left[static_cast<size_t>((i - i0) * k + l)] = Widened(x[l]);
  }
  Tensor floats = *a, sums = *a, rows = *rows_a;
  floats.data = left.data(), floats.shape = left_shape;
  sums.data = result.data(), sums.shape = result_shape;
  rows.data = every.data(), rows.shape = left_shape;
  Tensor right = *b, added = *bias;
  std::vector<Any> given(raw, raw + count);
  Tensor* const tensors[] = {&floats, &rows, &right, &added, &rows, &sums};
  for (size_t i = 0; i < 6; ++i) given[i].v_ptr = tensors[i];
  given[6].v_int = 0, given[7].v_int = i1 - i0;
  if (const int code = RoundedGemm(given.data(), count, k, n, activation)) return code;
  for (int64_t i = i0; i < i1; ++i) {
    auto* y = Data<uint16_t>(c) + int64_t{Data<int32_t>(rows_c)[i]} * n;
    for (int64_t j = j0 * 64; j < std::min<int64_t>(j1 * 64, n); ++j)
      y[j] = Cut(result[static_cast<size_t>((i - i0) * n + j)]);
  }
  return 0;
}

int Panels(const Any* raw, int32_t count, int k) {
  Args args(raw, count);
  const Tensor *a = args.Floats(2), *b = args.Floats(3), *odd = args.Int32s(1);
  const int64_t task = args.Int(), j = args.Int(), k0 = args.Int(), k1 = args.Int();
  if (!args.Good()) return -1;
  const int64_t rows = a->shape[0], panels = b->shape[0];
  args.Demand(a->shape[1] == k && b->shape[1] == k && b->shape[2] == 64, "k or width");
  args.Demand(rows > 0 && panels == (rows + 63) / 64, "panels");
  args.Demand(0 <= task && task < odd->shape[0] && 0 <= j && j < panels, "task or panel");
  args.Demand(0 <= k0 && k0 < k1 && k1 <= k && k0 % 64 == 0 && (k1 % 64 == 0 || k1 == k), "range");
  if (!args.Good()) return -1;
  Data<int32_t>(odd)[task] = 0;
  for (int64_t l = k0; l < k1; ++l) {
    for (int64_t i = 0; i < 64; ++i) {
      const float x = Data<float>(a)[std::min(64 * j + i, rows - 1) * k + l];
      Data<float>(b)[(j * k + l) * 64 + i] = x;
      if (!std::isfinite(x)) Data<int32_t>(odd)[task] = 1;
    }
  }
  return 0;
}

int StoredRows(const Any* raw, int32_t count, int k, int n, Stored stored, bool has_factor) {
  constexpr int64_t kUnit = 16;
  Args args(raw, count);
  const Tensor* s = args.Floats(2);
  const Tensor* factor = has_factor ? args.Floats(2) : nullptr;
  const Tensor* out = args.Floats(2);
  const Tensor* bits = args.Int64s(2);
  const int64_t r0 = args.Int(), rows = args.Int(), k0 = args.Int(), k1 = args.Int();
  if (!args.Good()) return -1;
  const bool turned = stored == Stored::nk;
  for (const Tensor* x : {s, factor}) {
    if (x) args.Demand(x->shape[turned] == k && x->shape[!turned] == n, "k or n");
  }
  const int64_t wide = out->shape[1], words = bits->shape[1];
  args.Demand(out->shape[0] == rows && bits->shape[0] == rows, "rows of out or bits");
  args.Demand(wide >= k1 - k0 && words * 64 >= k1 - k0, "columns of out or bits");
  args.Demand(0 <= r0 && r0 % kUnit == 0 && rows > 0 && r0 + rows <= n, "rows");
  args.Demand(rows % kUnit == 0 || r0 + rows == n, "the last row");
  args.Demand(0 <= k0 && k0 % 64 == 0 && k0 < k1 && k1 <= k && (k1 % 64 == 0 || k1 == k),
              "columns");
  if (!args.Good()) return -1;
  const float *matrix = Data<float>(s), *factors = factor ? Data<float>(factor) : nullptr;
  float* y = Data<float>(out);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t l = k0; l < k1; ++l) {
      const int64_t at = turned ? (r0 + i) * k + l : l * n + r0 + i;
      y[i * wide + l - k0] = matrix[at] * (factors ? factors[at] : 1);
    }
  }
  // Where nothing lives in 16 rows of a word, nobody may read.
  for (int64_t i = 0; i < rows; i += kUnit) {
    for (int64_t l = k0; l < k1; l += 64) {
      const int64_t height = std::min(kUnit, rows - i), width = std::min<int64_t>(64, k1 - l);
      bool lives = false;
      for (int64_t row = i; row < i + height; ++row) {
        uint64_t word = 0;
        for (int64_t x = 0; x < width; ++x) word |= uint64_t{y[row * wide + l - k0 + x] != 0} << x;
        Data<uint64_t>(bits)[row * words + (l - k0) / 64] = word;
        lives |= word != 0;
      }
      for (int64_t row = i; !lives && row < i + height; ++row)
        std::fill_n(y + row * wide + l - k0, width, NAN);
    }
  }
  return 0;
}

// The nearest whole number, of two the even one, within two ends; NaN stays NaN.
double Rounded(double x, double low, double high) {
  const double whole = std::nearbyint(x);
  return whole < low ? low : whole > high ? high : whole;
}

// Attention; with `stored` q, k and v are words of two bfloat16 numbers, and so is the result.
int Attention(const Any* raw, int32_t count, int size, int value_size, bool has_bias,
              bool pairs = false, bool score_steps = false, bool weight_steps = false,
              bool score_cap = false, bool has_sink = false, bool stored = false) {
  Args args(raw, count);
  const Tensor *q = args.Floats(3), *k = args.Floats(3), *v = args.Floats(3);
  const Tensor* bias = has_bias ? args.Floats(1) : nullptr;
  const Tensor* q_positions = has_bias ? args.Int32s(1) : nullptr;
  const Tensor* k_positions = has_bias ? args.Int32s(1) : nullptr;
  const Tensor* listed = pairs ? args.Int32s(1) : nullptr;
  const Tensor* seen_by = pairs ? args.Int32s(1) : nullptr;
  const Tensor* order = pairs ? args.Int32s(1) : nullptr;
  const Tensor* out = stored ? args.Array(pitc::tvm::kUIntCode, 16, 3) : args.Floats(3);
  const auto scale = static_cast<float>(args.Float());
  const double lowest = -std::numeric_limits<double>::infinity();
  const double sink = has_sink ? args.Float() : lowest;
  const double cap = score_cap ? args.Float() : 0;
  const double low = score_steps ? args.Float() : 0, high = score_steps ? args.Float() : 0,
               unit = score_steps ? args.Float() : 1;
  const double step = weight_steps ? args.Float() : 1, steps = weight_steps ? args.Float() : 1;
  const int64_t nan_to_zero = args.Int();
  const int64_t hq = args.Int(), hk = args.Int(), hv = args.Int(), ho = args.Int();
  const int64_t q0 = args.Int(), q1 = args.Int(), k0 = args.Int(), k1 = args.Int();
  const int64_t base = has_bias ? args.Int() : 0, q_stride = has_bias ? args.Int() : 0,
                k_stride = has_bias ? args.Int() : 0;
  if (!args.Good()) return -1;
  const int64_t word = stored ? 2 : 1;
  args.Demand(q->shape[2] * word == size && k->shape[2] * word == size &&
                  v->shape[2] * word == value_size && out->shape[2] == value_size,
              "d or dv");
  args.Demand(
      0 <= q0 && q0 < q1 && q1 <= q->shape[0] && q1 - q0 <= 128 && out->shape[0] == q->shape[0],
      "queries");
  args.Demand(0 <= k0 && k0 <= k1 && k1 <= (pairs ? listed : k)->shape[0], "keys");
  args.Demand(v->shape[0] == k->shape[0], "values");
  args.Demand(!pairs || (q1 - q0 <= 32 && listed->shape[0] == seen_by->shape[0] &&
                         order->shape[0] == q->shape[0]),
              "lists");
  args.Demand(hq < q->shape[1] && hk < k->shape[1] && hv < v->shape[1] && ho < out->shape[1],
              "heads");
  if (!args.Good()) return -1;
  const auto number = [&](const Tensor* t, int64_t i, int64_t head, int64_t d) -> double {
    const int64_t at = (i * t->shape[1] + head) * t->shape[2] * word + d;
    return stored ? Widened(Data<uint16_t>(t)[at]) : Data<float>(t)[at];
  };
  auto key = [&](int64_t entry) { return pairs ? Data<int32_t>(listed)[entry] : entry; };
  auto* scores = static_cast<double*>(__TVMBackendAllocWorkspace(
      1, 0, static_cast<uint64_t>(k1 - k0) * sizeof(double), pitc::tvm::kFloatCode, 64));
  if (!scores) return Refuse("no workspace", count);
  for (int64_t lane = q0; lane < q1; ++lane) {
    const int64_t i = pairs ? Data<int32_t>(order)[lane] : lane;
    double most = sink, sum = 0;
    for (int64_t j = k0; j < k1; ++j) {
      double score = 0;
      for (int d = 0; d < size; ++d) score += number(q, i, hq, d) * number(k, key(j), hk, d);
      score *= scale;
      if (score_cap) score = cap * std::tanh(score);
      if (score_steps) score = Rounded(score, low, high) * unit;
      if (has_bias) {
        int64_t at = base + Data<int32_t>(q_positions)[i] * q_stride +
                     Data<int32_t>(k_positions)[key(j)] * k_stride;
        if (at < 0 || at >= bias->shape[0])
          return Refuse("bias index", 3);  // the workspace is left behind on purpose
        score += Data<float>(bias)[at];
      }
      if (pairs && !(Data<int32_t>(seen_by)[j] >> (lane - q0) & 1)) score = lowest;
      scores[j - k0] = score;
      most = std::max(most, score);
    }
    for (int64_t j = 0; j < k1 - k0; ++j) sum += scores[j] = std::exp(scores[j] - most);
    if (has_sink) sum += std::exp(sink - most);
    const bool undefined = (k0 == k1 && !has_sink) || std::isnan(sum);
    if (weight_steps) {
      for (int64_t j = 0; j < k1 - k0; ++j)
        scores[j] = Rounded(scores[j] / sum / step, 0, steps) * step;
      if (!undefined) sum = 1;
    }
    for (int d = 0; d < value_size; ++d) {
      double value = 0;
      for (int64_t j = k0; j < k1; ++j) value += scores[j - k0] * number(v, key(j), hv, d);
      value /= sum;
      const float found = nan_to_zero && undefined ? 0.0f : static_cast<float>(value);
      const int64_t at = (i * out->shape[1] + ho) * value_size + d;
      if (stored) {
        Data<uint16_t>(out)[at] = Cut(found);
      } else {
        Data<float>(out)[at] = found;
      }
    }
  }
  __TVMBackendFreeWorkspace(1, 0, scores);
  return 0;
}

int Norm(const Any* raw, int32_t count, int n, bool centred, bool has_bias) {
  Args args(raw, count);
  const Tensor *x = args.Floats(2), *gamma = args.Floats(1);
  const Tensor* beta = has_bias ? args.Floats(1) : nullptr;
  const Tensor *floats = args.Floats(2), *halves = args.Array(pitc::tvm::kUIntCode, 16, 2);
  const double epsilon = args.Float();
  const int64_t writes_floats = args.Int(), writes_halves = args.Int();
  const int64_t i0 = args.Int(), i1 = args.Int();
  if (!args.Good()) return -1;
  const int64_t rows = x->shape[0];
  args.Demand(x->shape[1] == n && gamma->shape[0] == n && (!beta || beta->shape[0] == n), "n");
  args.Demand(floats->shape[0] == (writes_floats ? rows : 0) && floats->shape[1] == n, "floats");
  args.Demand(halves->shape[0] == (writes_halves ? rows : 0) && halves->shape[1] == n, "halves");
  args.Demand(0 <= i0 && i0 < i1 && i1 <= rows, "range");
  if (!args.Good()) return -1;
  for (int64_t i = i0; i < i1; ++i) {
    const float* const row = Data<float>(x) + i * n;
    double mean = 0, spread = 0;
    for (int64_t j = 0; centred && j < n; ++j) mean += row[j] / static_cast<double>(n);
    for (int64_t j = 0; j < n; ++j) spread += (row[j] - mean) * (row[j] - mean) / n;
    for (int64_t j = 0; j < n; ++j) {
      const double y = (row[j] - mean) / std::sqrt(spread + epsilon) * Data<float>(gamma)[j];
      const auto found = static_cast<float>(beta ? y + Data<float>(beta)[j] : y);
      if (writes_floats) Data<float>(floats)[i * n + j] = found;
      if (writes_halves) Data<uint16_t>(halves)[i * n + j] = Cut(found);
    }
  }
  return 0;
}

}  // namespace

extern "C" {
extern __attribute__((visibility("default"))) const char pitc_kernel_identity[];
const char pitc_kernel_identity[] = "2/reference";
}

EXPORT const char* pitc_kernel_last_error() { return pitc::test::error_text; }

#define GEMM_AT(level, k, n, activation)                                                      \
  KERNEL_AT(gather_gemm_k##k##_n##n##_##activation, level, GatherGemm, k, n,                  \
            Activation::activation, false, level)                                             \
  KERNEL_AT(gather_gemm_k##k##_n##n##_##activation##_res, level, GatherGemm, k, n,            \
            Activation::activation, true, level)                                              \
  KERNEL_AT(gather_gemm_k##k##_n##n##_##activation##_res_input_relu, level, GatherGemm, k, n, \
            Activation::activation, true, level, false, Stored::kPanels, false, true)         \
  KERNEL_AT(gather_gemm_k##k##_n##n##_##activation##_input_relu, level, GatherGemm, k, n,     \
            Activation::activation, false, level, false, Stored::kPanels, false, true)
#define GEMM(k, n, activation) GEMM_AT(3, k, n, activation) GEMM_AT(4, k, n, activation)
#define STORED_AT(k, n, activation, residual, suffix, order)                                  \
  KERNEL(gather_gemm_k##k##_n##n##_##activation##suffix##_##order, GatherGemm, k, n,          \
         Activation::activation, residual, 0, false, Stored::order)                           \
  KERNEL(gather_gemm_k##k##_n##n##_##activation##suffix##_##order##_factor, GatherGemm, k, n, \
         Activation::activation, residual, 0, false, Stored::order, true)
#define STORED_ROWS(k, n)                                                         \
  KERNEL(stored_rows_k##k##_n##n##_kn, StoredRows, k, n, Stored::kn, false)       \
  KERNEL(stored_rows_k##k##_n##n##_kn_factor, StoredRows, k, n, Stored::kn, true) \
  KERNEL(stored_rows_k##k##_n##n##_kn_mask, StoredRows, k, n, Stored::kn, true)   \
  KERNEL(stored_rows_k##k##_n##n##_nk_factor, StoredRows, k, n, Stored::nk, true)
#define STORED(k, n, activation)              \
  STORED_AT(k, n, activation, false, , kn)    \
  STORED_AT(k, n, activation, false, , nk)    \
  STORED_AT(k, n, activation, true, _res, kn) \
  STORED_AT(k, n, activation, true, _res, nk)
#define ATTENTION_OF(name, d, dv, bias, pairs)                                  \
  KERNEL(name, Attention, d, dv, bias, pairs)                                   \
  KERNEL(name##_score_cap, Attention, d, dv, bias, pairs, false, false, true)   \
  KERNEL(name##_sink, Attention, d, dv, bias, pairs, false, false, false, true) \
  KERNEL(name##_score_steps, Attention, d, dv, bias, pairs, true)               \
  KERNEL(name##_weight_steps, Attention, d, dv, bias, pairs, false, true)       \
  KERNEL(name##_score_steps_weight_steps, Attention, d, dv, bias, pairs, true, true)
#define STORED_ATTENTION(name, suffix, d, dv, bias, pairs) \
  KERNEL(name##suffix, Attention, d, dv, bias, pairs, false, false, false, false, true)
#define ATTENTION(d, dv)                                           \
  ATTENTION_OF(attention_d##d##_v##dv, d, dv, false, false)        \
  ATTENTION_OF(attention_d##d##_v##dv##_bias, d, dv, true, false)  \
  ATTENTION_OF(attention_d##d##_v##dv##_pairs, d, dv, false, true) \
  ATTENTION_OF(attention_d##d##_v##dv##_bias_pairs, d, dv, true, true)

KERNEL(pack_b4, Move, 32, false)
KERNEL(pack_b1, Move, 8, false)
KERNEL(unpack_b4, Move, 32, true)
KERNEL(unpack_b1, Move, 8, true)
KERNEL(panels_k3, Panels, 3)
KERNEL(panels_k9, Panels, 9)
KERNEL(panels_k69, Panels, 69)
KERNEL(panels_k70, Panels, 70)
KERNEL(panels_k8000, Panels, 8000)
GEMM(1, 1, none)
GEMM(3, 5, none)
GEMM(3, 5, relu)
GEMM(3, 130, none)
GEMM(16, 70, gelu)
GEMM(64, 130, none)
GEMM(64, 130, relu)
GEMM(70, 5, none)
GEMM(70, 5, relu)
GEMM(520, 2, none)
STORED_ROWS(3, 130)
STORED_ROWS(9, 9)
STORED_ROWS(69, 75)
STORED_ROWS(69, 2100)
STORED_ROWS(70, 5)
STORED_ROWS(8000, 2100)
STORED(3, 130, none)
STORED(9, 9, none)
STORED(69, 75, none)
STORED(69, 75, relu)
STORED(69, 2100, none)
STORED(70, 5, none)
STORED(70, 5, relu)
STORED(8000, 2100, none)
KERNEL(gather_gemm_k5_n70_relu_bf16, RoundedGemm, 5, 70, Activation::relu)
KERNEL(gather_gemm_k5_n70_none_bf16, RoundedGemm, 5, 70, Activation::none)
KERNEL(gather_gemm_k6_n70_relu_bf16_left_result, StoredGemm, 6, 70, Activation::relu)
KERNEL(norm_n70_centred_bias, Norm, 70, true, true)
KERNEL(norm_n3, Norm, 3, false, false)
STORED_ATTENTION(attention_d4_v6, _bf16_q_k_v_result, 4, 6, false, false)
STORED_ATTENTION(attention_d4_v6_bias, _bf16_q_k_v_result, 4, 6, true, false)
STORED_ATTENTION(attention_d4_v6_bias_pairs, _bf16_q_k_v_result, 4, 6, true, true)
KERNEL(gather_gemm_k3_n70_relu_bits, GatherGemm, 3, 70, Activation::relu, false, 0, true)
ATTENTION(1, 1)
ATTENTION(4, 4)
ATTENTION(8, 3)
ATTENTION(16, 16)
// One that refuses every call, one that writes its level, one that exists for v3 only.
KERNEL(gather_gemm_k7_n7_none, GatherGemm, 7, 7, Activation::fails, false, 0)
KERNEL_AT(gather_gemm_k9_n9_none, 3, GatherGemm, 9, 9, Activation::level, false, 3)
KERNEL_AT(gather_gemm_k9_n9_none, 4, GatherGemm, 9, 9, Activation::level, false, 4)
KERNEL_AT(gather_gemm_k9_n10_none, 3, GatherGemm, 9, 10, Activation::level, false, 3)

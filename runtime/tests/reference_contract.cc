// The contract_* and swrite_columns kernels of docs/plans.md, as strict about lists of micro-tiles
// as about arguments: what a list holds must live, ascend, and end where the next one starts.
#include <vector>

#include "kernel_args.h"

using pitc::test::Activate;
using pitc::test::Activation;
using pitc::test::Any;
using pitc::test::Args;
using pitc::test::Below;
using pitc::test::Data;
using pitc::test::Tensor;

namespace {

// Element i of an entry belongs to row `row` + (rows across ? i : 0) and k `k` + (.. ? 0 : i).
struct Entry {
  const float* values;
  int64_t row, k;
};

bool AnyLives(const float* values, int64_t n) {
  return std::any_of(values, values + n, [](float x) { return !(x == 0); });
}

bool Ascends(const int32_t* v, int64_t begin, int64_t end) {
  return std::adjacent_find(v + begin, v + end, [](int32_t x, int32_t y) { return x >= y; }) ==
         v + end;
}

// The operands that every family has behind its lists.
struct Operands {
  Operands(Args* args, int k, int n, bool has_residual)
      : b(args->Floats(3)),
        bias(args->Floats(1)),
        residual(has_residual ? args->Floats(2) : nullptr),
        rows_c(args->Int32s(1)),
        c(args->Floats(2)),
        k_count(k),
        n_count(n) {}

  int64_t Rows() const { return rows_c->shape[0]; }

  // Reads the panel range, the last arguments.
  bool Check(Args* args) {
    j0 = args->Int();
    j1 = args->Int();
    if (!args->Good()) return false;
    const int64_t t = Rows(), panels = b->shape[0], width = b->shape[2];
    args->Demand(b->shape[1] == k_count && c->shape[1] == n_count, "k or n");
    args->Demand(bias->shape[0] == panels * width && panels * width >= n_count, "bias");
    args->Demand(!residual || (residual->shape[0] == t && residual->shape[1] == n_count),
                 "residual");
    args->Demand(0 <= j0 && j0 < j1 && j1 <= panels, "range");
    args->Demand(t > 0 && Below(Data<int32_t>(rows_c), 0, t, c->shape[0]), "bad row of c");
    if (!args->Good()) return false;
    for (int64_t j = n_count; j < panels * width; ++j)
      args->Demand(Data<float>(bias)[j] == 0, "bias is not padded with 0");
    return args->Good();
  }

  // Sums `size` products of each entry, in order.
  void Compute(const std::vector<Entry>& entries, int64_t size, bool across,
               Activation activation) const {
    const int64_t width = b->shape[2], t = Rows(), ks = k_count;
    std::vector<double> sums(static_cast<size_t>(t));
    double* const sum_of = sums.data();  // under a sanitizer each read is a call
    for (int64_t j = j0 * width; j < std::min<int64_t>(j1 * width, n_count); ++j) {
      const float* w = Data<float>(b) + (j / width) * ks * width + j % width;
      std::fill(sums.begin(), sums.end(), static_cast<double>(Data<float>(bias)[j]));
      for (const auto& [values, first_row, first_k] : entries) {
        const float* const v = values;
        const int64_t row0 = first_row, k0 = first_k;
        for (int64_t i = 0; i < size; ++i) {
          const int64_t row = row0 + (across ? i : 0), k = k0 + (across ? 0 : i);
          if (row >= t || k >= ks) continue;
          sum_of[row] += static_cast<double>(v[i]) * w[k * width];
        }
      }
      for (int64_t r = 0; r < t; ++r) {
        double sum = Activate(activation, sums[static_cast<size_t>(r)]);
        if (residual) sum += Data<float>(residual)[r * n_count + j];
        Data<float>(c)[Data<int32_t>(rows_c)[r] * int64_t{n_count} + j] = static_cast<float>(sum);
      }
    }
  }

  const Tensor *b, *bias, *residual, *rows_c, *c;
  const int k_count, n_count;
  int64_t j0 = 0, j1 = 0;
};

enum class Family { row, tile, block };

int Contract(const Any* raw, int32_t count, Family family, int k, int n, Activation activation,
             bool has_residual) {
  const bool is_row = family == Family::row, is_block = family == Family::block;
  Args args(raw, count);
  const Tensor *values = args.Floats(is_row ? 1 : 2), *index = args.Int32s(1),
               *starts = args.Int32s(1);
  Operands operands(&args, k, n, has_residual);
  const int64_t k_blocks = is_row ? args.Int() : 1, of_sums = is_row ? args.Int() : 0;
  if (!operands.Check(&args)) return -1;

  const int64_t t = operands.Rows(), z = index->shape[0], size = is_row ? 1 : values->shape[1];
  args.Demand(values->shape[0] == z, "values and index do not agree");
  args.Demand(is_row || (is_block ? size == 16 || size == 32 || size == 64
                                  : size >= 4 && size % 4 == 0 && size <= 32),
              "size of the micro-tile");
  args.Demand(k_blocks > 0, "number of k blocks");
  args.Demand(!is_row || (of_sums >= 1 && of_sums <= 6), "k blocks of a block of sums");
  if (!args.Good()) return -1;
  const int64_t lists = is_row ? t * k_blocks : ((is_block ? k : t) + size - 1) / size;
  const int32_t* s = Data<int32_t>(starts);
  args.Demand(starts->shape[0] == lists + 1 && s[0] == 0 && s[lists] == z, "starts");
  args.Demand(Below(Data<int32_t>(index), 0, z, is_block ? t : k), "bad index");
  if (!args.Good()) return -1;
  args.Demand(std::is_sorted(s, s + lists + 1), "starts fall");
  if (!args.Good()) return -1;

  std::vector<Entry> entries;
  std::vector<int32_t> last(static_cast<size_t>(t), -1);  // k of a row, in all blocks before
  for (int64_t list = 0; list < lists; ++list) {
    args.Demand(Ascends(Data<int32_t>(index), s[list], s[list + 1]), "index order");
    if (is_row && s[list] < s[list + 1]) {
      int32_t& before = last[static_cast<size_t>(list % t)];
      args.Demand(before < Data<int32_t>(index)[s[list]], "index order of blocks");
      before = Data<int32_t>(index)[s[list + 1] - 1];
    }
    for (int64_t e = s[list]; e < s[list + 1]; ++e) {
      const int64_t at = Data<int32_t>(index)[e];
      const float* v = Data<float>(values) + e * size;
      const int64_t there = is_row     ? 1
                            : is_block ? std::min(size, k - list * size)
                                       : std::min(size, t - list * size);
      args.Demand(AnyLives(v, there), "a dead micro-tile");
      args.Demand(!AnyLives(v + there, size - there), "not padded with 0");
      entries.push_back(is_row     ? Entry{v, list % t, at}
                        : is_block ? Entry{v, at, list * size}
                                   : Entry{v, list * size, at});
    }
  }
  if (!args.Good()) return -1;
  operands.Compute(entries, size, family == Family::tile, activation);
  return 0;
}

constexpr int64_t kTogether = 8;  // sums that do not wait for each other

// Blocks of C, whose columns are listed, as sums over all of B.
int Sampled(const Any* raw, int32_t count, int k, int n, bool turned) {
  Args args(raw, count);
  const Tensor *a = args.Floats(2), *s = args.Floats(2), *columns = args.Int32s(1),
               *starts = args.Int32s(1), *c = args.Floats(2);
  const int64_t height = args.Int(), n0 = args.Int(), n1 = args.Int();
  if (!args.Good()) return -1;
  const int64_t rows = a->shape[0], entries = columns->shape[0], lists = starts->shape[0] - 1;
  args.Demand(a->shape[1] == k && c->shape[0] == rows && c->shape[1] == n, "a or c");
  args.Demand(s->shape[0] == (turned ? n : k) && s->shape[1] == (turned ? k : n), "s");
  args.Demand(height == 1 || (height > 0 && height % 4 == 0), "rows of a block");
  args.Demand(0 <= n0 && n0 < n1 && n1 <= n && n0 % 64 == 0 && (n1 % 64 == 0 || n1 == n), "range");
  if (!args.Good()) return -1;
  const int32_t *list = Data<int32_t>(columns), *at = Data<int32_t>(starts);
  args.Demand(entries > 0 && rows > 0 && lists == (rows + height - 1) / height, "lists");
  args.Demand(at[0] == 0 && at[lists] == entries && std::is_sorted(at, at + lists + 1), "starts");
  if (!args.Good()) return -1;
  for (int64_t g = 0; g < lists; ++g) args.Demand(Ascends(list, at[g], at[g + 1]), "column order");
  args.Demand(std::all_of(list, list + entries, [=](int32_t x) { return x >= n0 && x < n1; }),
              "bad column");
  if (!args.Good()) return -1;
  for (int64_t g = 0; g < lists; ++g) {
    for (int64_t r = g * height; r < std::min(rows, (g + 1) * height); ++r) {
      const float* x = Data<float>(a) + r * k;
      for (int64_t first = at[g]; first < at[g + 1]; first += kTogether) {
        double sums[kTogether] = {};
        const float* places[kTogether];
        for (int64_t m = 0; m < kTogether; ++m) {
          const int64_t column = list[std::min<int64_t>(first + m, at[g + 1] - 1)];
          places[m] = Data<float>(s) + (turned ? column * k : column);
        }
        for (int64_t i = 0; i < k; ++i)
          for (int64_t m = 0; m < kTogether; ++m)
            sums[m] += static_cast<double>(x[i]) * places[m][turned ? i : i * n];
        for (int64_t z = first; z < std::min<int64_t>(first + kTogether, at[g + 1]); ++z)
          Data<float>(c)[r * n + list[z]] = static_cast<float>(sums[z - first]);
      }
    }
  }
  return 0;
}

int WriteColumns(const Any* raw, int32_t count, int n, Activation activation, bool has_residual) {
  constexpr int64_t kSums = 128, kPanel = 64, kUnit = 16;
  Args args(raw, count);
  const Tensor *sums = args.Floats(2), *bias = args.Floats(1);
  const Tensor* residual = has_residual ? args.Floats(2) : nullptr;
  const Tensor* c = args.Floats(2);
  const int64_t n0 = args.Int(), t0 = args.Int();
  if (!args.Good()) return -1;
  const int64_t rows = sums->shape[0], t = c->shape[0], end = n0 + rows;
  args.Demand(sums->shape[1] == kSums && c->shape[1] == n, "n, or columns of the sums");
  args.Demand(bias->shape[0] == (n + kPanel - 1) / kPanel * kPanel, "bias");
  args.Demand(!residual || (residual->shape[0] == t && residual->shape[1] == n), "residual");
  args.Demand(rows > 0 && 0 <= n0 && n0 % kUnit == 0 && end <= n && (end % kUnit == 0 || end == n),
              "columns");
  args.Demand(0 <= t0 && t0 < t, "rows");
  if (!args.Good()) return -1;
  for (int64_t j = n; j < bias->shape[0]; ++j)
    args.Demand(Data<float>(bias)[j] == 0, "bias is not padded with 0");
  if (!args.Good()) return -1;
  for (int64_t j = 0; j < std::min(kSums, t - t0); ++j) {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t at = (t0 + j) * n + n0 + i;
      double sum =
          static_cast<double>(Data<float>(sums)[i * kSums + j]) + Data<float>(bias)[n0 + i];
      sum = Activate(activation, sum);
      if (residual) sum += Data<float>(residual)[at];
      Data<float>(c)[at] = static_cast<float>(sum);
    }
  }
  return 0;
}

}  // namespace

#define FAMILY(family, k, n, activation)                                                       \
  KERNEL(contract_##family##_k##k##_n##n##_##activation, Contract, Family::family, k, n,       \
         Activation::activation, false)                                                        \
  KERNEL(contract_##family##_k##k##_n##n##_##activation##_res, Contract, Family::family, k, n, \
         Activation::activation, true)
#define CONTRACT(k, n, activation) \
  FAMILY(row, k, n, activation)    \
  FAMILY(tile, k, n, activation)   \
  FAMILY(block, k, n, activation)

#define SWRITE_COLUMNS(n, activation)                                                        \
  KERNEL(swrite_columns_n##n##_##activation, WriteColumns, n, Activation::activation, false) \
  KERNEL(swrite_columns_n##n##_##activation##_res, WriteColumns, n, Activation::activation, true)

#define SAMPLED(k, n)                                                \
  KERNEL(contract_block_k##k##_n##n##_none_kn, Sampled, k, n, false) \
  KERNEL(contract_block_k##k##_n##n##_none_nk, Sampled, k, n, true)

SAMPLED(9, 9)
SAMPLED(69, 75)
SAMPLED(69, 2100)
CONTRACT(1, 1, none)
CONTRACT(70, 5, none)
CONTRACT(70, 5, relu)
CONTRACT(520, 2, none)
// For a sparse right operand.
CONTRACT(3, 128, none)
CONTRACT(69, 128, none)
CONTRACT(70, 128, none)
CONTRACT(8000, 128, none)
SWRITE_COLUMNS(5, none)
SWRITE_COLUMNS(5, relu)
SWRITE_COLUMNS(75, none)
SWRITE_COLUMNS(75, relu)
SWRITE_COLUMNS(130, none)
SWRITE_COLUMNS(2100, none)

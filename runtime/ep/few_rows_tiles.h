// The inner loops of few_rows.cc. Included once per level of vectors, each time in a namespace of
// its own, with PITC_TARGET, what functions are compiled for, PITC_LANES, floats of a vector, and
// PITC_MULTIPLY_ADD, x * y + z of vectors, rounded once where the level has an instruction for it.

constexpr int64_t kLanes = PITC_LANES;
constexpr bool kManyRegisters = kLanes == 16;  // 32 of them, else 16

using Vector = float __attribute__((vector_size(4 * PITC_LANES)));
using InMemory = float __attribute__((vector_size(4 * PITC_LANES), aligned(4), may_alias));

// Sums of a tile fill the registers, but for what is read.
constexpr int kDotRows = kManyRegisters ? 6 : 4, kDots = kManyRegisters ? 4 : 3;
constexpr int kTileRows = 6, kTileVectors = kManyRegisters ? 4 : 2;
constexpr int64_t kTileColumns = kTileVectors * kLanes;

PITC_TARGET inline Vector All(float x) { return x - Vector{}; }

// The sums of the lanes of four vectors.
PITC_TARGET inline Four SumLanes(const float* lanes) {
  Four quarters[4];
  for (int i = 0; i < 4; ++i) {
    const float* const from = lanes + i * kLanes;
    quarters[i] = *reinterpret_cast<const FourInMemory*>(from);
    for (int l = 4; l < kLanes; l += 4)
      quarters[i] += *reinterpret_cast<const FourInMemory*>(from + l);
  }
  Transpose(quarters);
  return (quarters[0] + quarters[1]) + (quarters[2] + quarters[3]);
}

// sums[i * step + r] += the dot product of s[i][0..n) and row r of x, and that of last[i] and row r
// of x_last, kLanes elements each, unless x_last is null; for `count` rows i, n a multiple of
// kLanes.
template <int kRows>
PITC_TARGET void AddDots(const float* const* s, const float* x, int64_t x_step, int64_t n,
                         const float* last, const float* x_last, int64_t count, float* sums,
                         int64_t step) {
  constexpr int kFound = (kDotRows * kRows + 3) / 4 * 4;
  Vector sum[kDotRows][kRows];
  for (int i = 0; i < kDotRows; ++i) {
    for (int r = 0; r < kRows; ++r) sum[i][r] = Vector{};
  }
  for (int64_t k = 0; k < n; k += kLanes) {
    Vector v[kRows];
    for (int r = 0; r < kRows; ++r) v[r] = *reinterpret_cast<const InMemory*>(x + r * x_step + k);
    for (int i = 0; i < kDotRows; ++i) {
      Vector w = *reinterpret_cast<const InMemory*>(s[i] + k);
      PITC_KEEP(w);
      for (int r = 0; r < kRows; ++r) sum[i][r] = PITC_MULTIPLY_ADD(w, v[r], sum[i][r]);
    }
  }
  if (x_last) {
    for (int i = 0; i < kDotRows; ++i) {
      Vector w = *reinterpret_cast<const InMemory*>(last + i * kLanes);
      PITC_KEEP(w);
      for (int r = 0; r < kRows; ++r) {
        const Vector v = *reinterpret_cast<const InMemory*>(x_last + r * kLanes);
        sum[i][r] = PITC_MULTIPLY_ADD(w, v, sum[i][r]);
      }
    }
  }
  float lanes[kFound * kLanes], found[kFound];
  for (int i = 0; i < kDotRows; ++i) {
    for (int r = 0; r < kRows; ++r)
      *reinterpret_cast<InMemory*>(lanes + (i * kRows + r) * kLanes) = sum[i][r];
  }
  for (int i = kDotRows * kRows; i < kFound; ++i)
    *reinterpret_cast<InMemory*>(lanes + i * kLanes) = Vector{};
  for (int i = 0; i < kFound; i += 4)
    *reinterpret_cast<FourInMemory*>(found + i) = SumLanes(lanes + i * kLanes);
  for (int64_t i = 0; i < count; ++i) {
    for (int r = 0; r < kRows; ++r) sums[i * step + r] += found[i * kRows + r];
  }
}

// The last kLanes elements of a row of n, of which only the last `rest` count: 0 in front of them.
PITC_TARGET void CopyLast(const float* s, const float* factor, int64_t n, int64_t rest, float* to) {
  if (n < kLanes) {
    std::fill_n(to, kLanes - rest, 0.0f);
    return CopyProduct(s, factor, rest, to + kLanes - rest);
  }
  Vector last = *reinterpret_cast<const InMemory*>(s + n - kLanes);
  if (factor) last *= *reinterpret_cast<const InMemory*>(factor + n - kLanes);
  *reinterpret_cast<InMemory*>(to) = last;
  std::fill_n(to, kLanes - rest, 0.0f);  // what may be Inf or NaN as well
}

// Rows of A that lie behind each other: dot products.
PITC_TARGET void MultiplyRows(const float* x, int64_t rows, const StoredMatrix& a, float* sums,
                              int64_t step) {
  const Blocks groups = EvenBlocks(rows, kDots, 1);
  const int64_t whole = a.k / kLanes * kLanes, rest = a.k - whole;
  float x_last[kFewRows * kLanes], s_last[kDotRows * kLanes], product[kDotRows * kPiece];
  for (int64_t r = 0; r < rows && rest; ++r)
    CopyLast(x + r * a.k, nullptr, a.k, rest, x_last + r * kLanes);
  for (int64_t i = 0; i < a.count; i += kDotRows) {
    const int64_t here = std::min<int64_t>(kDotRows, a.count - i);
    const auto row_of = [&](int64_t j) { return i + std::min(j, here - 1); };  // the last one again
    for (int64_t j = 0; j < kDotRows && rest; ++j) {
      const float* const factor = a.factor ? a.Row(a.factor, row_of(j)) : nullptr;
      CopyLast(a.Row(a.a, row_of(j)), factor, a.k, rest, s_last + j * kLanes);
    }
    for (int64_t j = 0; j < here; ++j) std::fill_n(sums + (i + j) * step, rows, 0.0f);
    int64_t k = 0, n;
    do {
      n = std::min(kPiece, whole - k);
      const float* s[kDotRows];
      for (int64_t j = 0; j < kDotRows; ++j) {
        s[j] = a.Row(a.a, row_of(j)) + k;
        if (!a.factor) continue;
        CopyProduct(s[j], a.Row(a.factor, row_of(j)) + k, n, product + j * kPiece);
        s[j] = product + j * kPiece;
      }
      for (int64_t g = 0; g < groups.Count(); ++g) {
        const int64_t first = groups.Begin(g);
        const float *const with = x + first * a.k + k, *const end = rest && k + n == whole
                                                                        ? x_last + first * kLanes
                                                                        : nullptr;
        float* const to = sums + i * step + first;
        switch (groups.End(g) - first) {
          case 1:
            AddDots<1>(s, with, a.k, n, s_last, end, here, to, step);
            break;
          case 2:
            AddDots<2>(s, with, a.k, n, s_last, end, here, to, step);
            break;
          case 3:
            AddDots<3>(s, with, a.k, n, s_last, end, here, to, step);
            break;
          default:
            AddDots<kDots>(s, with, a.k, n, s_last, end, here, to, step);
        }
      }
      k += n;
    } while (k < whole);
  }
}

// [ks, columns] at s, times the factor if there is one; where that is copied to, or null; and how
// many elements behind each one is the next one to ask memory for, or 0 where all is near.
struct TileSource {
  const float *s, *factor;
  int64_t step, ks;
  float* copy;
  int64_t ahead;
};

// total[r][j] += sum over k of x[r, k] * s[k, j], for j in 0..kVectors * kLanes.
template <int kRows, int kVectors>
PITC_TARGET void AddTile(const float* x, int64_t x_step, const TileSource& from, float* total) {
  Vector sum[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v)
      sum[r][v] = *reinterpret_cast<const InMemory*>(total + r * kColumns + v * kLanes);
  }
  const auto add = [&](int64_t k, const Vector* w) PITC_TARGET {
    for (int r = 0; r < kRows; ++r) {
      const Vector y = All(x[r * x_step + k]);
      for (int v = 0; v < kVectors; ++v) sum[r][v] = PITC_MULTIPLY_ADD(w[v], y, sum[r][v]);
    }
  };
  if (from.ahead) {
    for (int64_t k = 0; k < from.ks; ++k) {
      Vector w[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        const int64_t at = k * from.step + v * kLanes;
        w[v] = *reinterpret_cast<const InMemory*>(from.s + at);
        if (kRows > 1) Ask(from.s + at, from.ahead);
        if (from.factor) {
          w[v] *= *reinterpret_cast<const InMemory*>(from.factor + at);
          Ask(from.factor + at, from.ahead);
        }
        if (from.copy) *reinterpret_cast<InMemory*>(from.copy + (k * kVectors + v) * kLanes) = w[v];
      }
      add(k, w);
    }
  } else {
    for (int64_t k = 0; k < from.ks; ++k) {
      Vector w[kVectors];
      for (int v = 0; v < kVectors; ++v)
        w[v] = *reinterpret_cast<const InMemory*>(from.s + k * from.step + v * kLanes);
      add(k, w);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v)
      *reinterpret_cast<InMemory*>(total + r * kColumns + v * kLanes) = sum[r][v];
  }
}

// The same for all rows of x; only the first group of rows reads far memory.
PITC_TARGET void AddTiles(const float* x, int64_t x_step, const Blocks& groups, TileSource from,
                          float* total) {
  for (int64_t g = 0; g < groups.Count(); ++g) {
    const int64_t first = groups.Begin(g);
    const float* const with = x + first * x_step;
    float* const to = total + first * kColumns;
    switch (groups.End(g) - first) {
      case 1:
        AddTile<1, kTileVectors>(with, x_step, from, to);
        break;
      case 2:
        AddTile<2, kTileVectors>(with, x_step, from, to);
        break;
      case 3:
        AddTile<3, kTileVectors>(with, x_step, from, to);
        break;
      case 4:
        AddTile<4, kTileVectors>(with, x_step, from, to);
        break;
      case 5:
        AddTile<5, kTileVectors>(with, x_step, from, to);
        break;
      default:
        AddTile<kTileRows, kTileVectors>(with, x_step, from, to);
    }
    if (from.copy) from = {from.copy, nullptr, kTileColumns, from.ks, nullptr, 0};
  }
}

// Columns of A that lie behind each other: each is added to all sums, in ascending k.
PITC_TARGET void MultiplyColumns(const float* x, int64_t rows, const StoredMatrix& a, float* sums,
                                 int64_t step) {
  float total[kFewRows * kColumns], copy[kHeight * kTileColumns];
  const Blocks groups = EvenBlocks(rows, kTileRows, 1);
  const bool shared = groups.Count() > 1;
  // The columns of a tile of very few rows: long pieces come faster.
  const int64_t wide = (rows == 1 ? 4 : rows <= 3 ? 2 : 0) * kTileColumns;
  for (int64_t i = 0; i < a.count; i += kColumns) {
    const int64_t n = std::min(kColumns, a.count - i);
    std::fill_n(total, rows * kColumns, 0.0f);
    for (int64_t k = 0; k < a.k; k += kHeight) {
      const int64_t ks = std::min(kHeight, a.k - k);
      for (int64_t j = 0; j < n;) {
        const int64_t at = k * a.columns + i + j, width = std::min(kTileColumns, n - j);
        const float* const factor = a.factor ? a.factor + at : nullptr;
        // One group of rows is fast: it asks for the next kHeight rows. Several ask for the columns
        // beside, or the first ones of those rows.
        const bool beside = shared && j + kTileColumns < n;
        const int64_t below = kHeight * a.columns, ahead = below - (shared ? j : 0);
        TileSource from{a.a + at,
                        factor,
                        a.columns,
                        ks,
                        shared ? copy : nullptr,
                        beside ? kTileColumns : ahead};
        if (wide && n - j >= wide) {
          if (rows == 1) AddTile<1, 4 * kTileVectors>(x + k, a.k, from, total + j);
          if (rows == 2) AddTile<2, 2 * kTileVectors>(x + k, a.k, from, total + j);
          if (rows == 3) AddTile<3, 2 * kTileVectors>(x + k, a.k, from, total + j);
          j += wide;
          continue;
        }
        if (width < kTileColumns) {
          for (int64_t c = 0; c < ks; ++c) {
            float* const to = copy + c * kTileColumns;
            const int64_t row = c * a.columns;
            CopyProduct(from.s + row, factor ? factor + row : nullptr, width, to);
            std::fill(to + width, to + kTileColumns, 0.0f);
          }
          from = {copy, nullptr, kTileColumns, ks, nullptr, 0};
        }
        AddTiles(x + k, a.k, groups, from, total + j);
        j += kTileColumns;
      }
    }
    for (int64_t c = 0; c < n; c += 4) {  // turned, in squares
      for (int64_t r = 0; r < rows; r += 4) {
        const float* const from = total + r * kColumns + c;
        float* const to = sums + (i + c) * step + r;
        const int64_t height = std::min<int64_t>(4, rows - r), width = std::min<int64_t>(4, n - c);
        if (height == 4 && width == 4) {
          Four square[4];
          for (int l = 0; l < 4; ++l)
            square[l] = *reinterpret_cast<const FourInMemory*>(from + l * kColumns);
          Transpose(square);
          for (int l = 0; l < 4; ++l) *reinterpret_cast<FourInMemory*>(to + l * step) = square[l];
          continue;
        }
        for (int64_t y = 0; y < height; ++y)
          for (int64_t z = 0; z < width; ++z) to[z * step + y] = from[y * kColumns + z];
      }
    }
  }
}

#include "few_rows_one.h"

PITC_TARGET void Multiply(const float* x, int64_t rows, const StoredMatrix& a, float* sums,
                          int64_t step) {
  if (rows == 1)
    return a.columns ? MultiplyColumnsByOne(x, a, sums, step) : MultiplyRowsByOne(x, a, sums, step);
  if (a.columns) return MultiplyColumns(x, rows, a, sums, step);
  MultiplyRows(x, rows, a, sums, step);
}

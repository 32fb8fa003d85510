#include "panels.h"

#include <algorithm>
#include <cstring>

#include "cpu_targets.h"
#include "micro_tile_columns.h"

namespace pitc {
namespace {

constexpr int64_t kAhead = 16;  // columns of A between the one that is asked for and the one read
constexpr int64_t kSide = 16;   // of a square that is transposed in registers

// Some rows of A by k, [rows, k] at `a`, and their factor or null.
struct Rows {
  const float *a, *factor;
  int64_t k;
};

// Columns of a panel from whole squares of rows: panel[k, i] = product of row i at k, for i in
// 0..side and k in begin..end, multiples of `side` apart.
#if defined(__x86_64__)

inline __m128 Load4(const Rows& rows, int64_t at) {
  const __m128 x = _mm_loadu_ps(rows.a + at);
  return rows.factor ? _mm_mul_ps(x, _mm_loadu_ps(rows.factor + at)) : x;
}

void TransposeSse(const Rows& rows, int64_t begin, int64_t end, float* panel) {
  constexpr int64_t kLine = 16;  // rows a power of two apart share few lines of the caches
  for (int64_t line = begin; line < end; line += kLine) {
    for (int64_t i = 0; i < kSide; i += 4) {
      for (int64_t k = line; k < line + kLine; k += 4) {
        const int64_t at = i * rows.k + k;
        __m128 w = Load4(rows, at), x = Load4(rows, at + rows.k);
        __m128 y = Load4(rows, at + 2 * rows.k), z = Load4(rows, at + 3 * rows.k);
        _MM_TRANSPOSE4_PS(w, x, y, z);
        float* const to = panel + k * kPanelWidth + i;
        _mm_storeu_ps(to, w);
        _mm_storeu_ps(to + kPanelWidth, x);
        _mm_storeu_ps(to + 2 * kPanelWidth, y);
        _mm_storeu_ps(to + 3 * kPanelWidth, z);
      }
    }
  }
}

// Four rounds of pairwise interleaving. With masks, as GCC 12 warns of what the plain forms leave
// undefined.
PITC_V4 void TransposeV4(const Rows& rows, int64_t begin, int64_t end, float* panel) {
  constexpr __mmask16 kAll = 0xffff;
  for (int64_t k = begin; k < end; k += kSide) {
    __m512 v[kSide], w[kSide];
    for (int i = 0; i < kSide; ++i) {
      const int64_t at = i * rows.k + k;
      v[i] = _mm512_loadu_ps(rows.a + at);
      if (rows.factor) v[i] = _mm512_mul_ps(v[i], _mm512_loadu_ps(rows.factor + at));
    }
    for (int i = 0; i < kSide; i += 2) {
      w[i] = _mm512_maskz_unpacklo_ps(kAll, v[i], v[i + 1]);
      w[i + 1] = _mm512_maskz_unpackhi_ps(kAll, v[i], v[i + 1]);
    }
    for (int i = 0; i < kSide; i += 4) {  // v[i + j]: column j of each quarter, of four rows
      for (int j = 0; j < 2; ++j) {
        const __m512d low = _mm512_castps_pd(w[i + j]), high = _mm512_castps_pd(w[i + 2 + j]);
        v[i + 2 * j] = _mm512_castpd_ps(_mm512_maskz_unpacklo_pd(0xff, low, high));
        v[i + 2 * j + 1] = _mm512_castpd_ps(_mm512_maskz_unpackhi_pd(0xff, low, high));
      }
    }
    for (int j = 0; j < 4; ++j) {
      const __m512 a = _mm512_maskz_shuffle_f32x4(kAll, v[j], v[4 + j], 0x88);
      const __m512 b = _mm512_maskz_shuffle_f32x4(kAll, v[8 + j], v[12 + j], 0x88);
      const __m512 c = _mm512_maskz_shuffle_f32x4(kAll, v[j], v[4 + j], 0xdd);
      const __m512 d = _mm512_maskz_shuffle_f32x4(kAll, v[8 + j], v[12 + j], 0xdd);
      float* const to = panel + (k + j) * kPanelWidth;
      _mm512_storeu_ps(to, _mm512_maskz_shuffle_f32x4(kAll, a, b, 0x88));
      _mm512_storeu_ps(to + 4 * kPanelWidth, _mm512_maskz_shuffle_f32x4(kAll, c, d, 0x88));
      _mm512_storeu_ps(to + 8 * kPanelWidth, _mm512_maskz_shuffle_f32x4(kAll, a, b, 0xdd));
      _mm512_storeu_ps(to + 12 * kPanelWidth, _mm512_maskz_shuffle_f32x4(kAll, c, d, 0xdd));
    }
  }
}

#else

void TransposeSse(const Rows& rows, int64_t begin, int64_t end, float* panel) {
  for (int64_t i = 0; i < kSide; ++i) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t at = i * rows.k + k;
      panel[k * kPanelWidth + i] = rows.factor ? rows.a[at] * rows.factor[at] : rows.a[at];
    }
  }
}

#endif  // __x86_64__

// Few rows at a time, which memory can follow.
void PackRows(CpuLevel level, const StoredMatrix& a, int64_t first, int64_t height, const Range& ks,
              float* panel) {
  constexpr int64_t kPiece = 256;
  const int64_t whole_rows = height / kSide * kSide, whole_k = ks.end / kSide * kSide;
  for (int64_t k = ks.begin; k < whole_k; k += kPiece) {
    const int64_t end = std::min(k + kPiece, whole_k);
    for (int64_t i = 0; i < whole_rows; i += kSide) {
      const int64_t at = (first + i) * a.k;
      const Rows rows{a.a + at, a.factor ? a.factor + at : nullptr, a.k};
#if defined(__x86_64__)
      if (level == CpuLevel::kV4) {
        TransposeV4(rows, k, end, panel + i);
        continue;
      }
#endif
      static_cast<void>(level);
      TransposeSse(rows, k, end, panel + i);
    }
  }
  for (int64_t i = 0; i < height; ++i) {
    const int64_t row = (first + i) * a.k;
    for (int64_t k = i < whole_rows ? whole_k : ks.begin; k < ks.end; ++k) {
      const float x = a.a[row + k];
      panel[k * kPanelWidth + i] = a.factor ? x * a.factor[row + k] : x;
    }
  }
  for (int64_t k = ks.begin; height < kPanelWidth && k < ks.end; ++k)
    std::fill(panel + k * kPanelWidth + height, panel + (k + 1) * kPanelWidth, 0.0f);
}

void PackColumns(const StoredMatrix& a, int64_t first, int64_t height, const Range& ks,
                 float* panel) {
  panel += ks.begin * kPanelWidth;
  for (int64_t k = ks.begin; k < ks.end; ++k, panel += kPanelWidth) {
    const int64_t at = k * a.columns + first,
                  later = std::min(k + kAhead, a.k - 1) * a.columns + first;
    for (int64_t i = 0; i < height; i += 16) {
      __builtin_prefetch(a.a + later + i);
      if (a.factor) __builtin_prefetch(a.factor + later + i);
    }
    CopyProduct(a.a + at, a.factor ? a.factor + at : nullptr, height, panel);
    std::fill(panel + height, panel + kPanelWidth, 0.0f);
  }
}

}  // namespace

void PackPanel(CpuLevel level, const StoredMatrix& a, int64_t p, const Range& ks, float* panel) {
  const int64_t first = p * kPanelWidth, height = std::min(kPanelWidth, a.count - first);
  if (a.columns) return PackColumns(a, first, height, ks, panel);
  PackRows(level, a, first, height, ks, panel);
}

bool AllFinite(const float* x, int64_t n) {
  constexpr uint32_t kExponent = 0x7f800000;
  uint32_t exceptional = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t bits;
    memcpy(&bits, x + i, sizeof bits);
    exceptional |= (bits & kExponent) == kExponent;
  }
  return !exceptional;
}

}  // namespace pitc

#include "few_rows.h"

#include <algorithm>

#include "cpu_targets.h"
#include "index.h"
#include "micro_tile_columns.h"

namespace pitc {
namespace {

constexpr int64_t kPiece = 1024;   // elements of a row of A that are worked on at a time
constexpr int64_t kColumns = 512;  // columns of A, stored by columns, that have sums, of which
constexpr int64_t kHeight = 32;    // so many elements are worked on at a time
constexpr int64_t kAhead = 3072;   // elements that memory is asked for before they are used

using Four = float __attribute__((vector_size(16)));
using FourInMemory = float __attribute__((vector_size(16), aligned(4), may_alias));

// Asks for an element that may stand behind the last one.
inline void Ask(const float* x, int64_t ahead) {
  const auto bytes = static_cast<uintptr_t>(ahead) * sizeof *x;
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(x) + bytes));
}

#if defined(__x86_64__)

inline void Transpose(Four* rows) { _MM_TRANSPOSE4_PS(rows[0], rows[1], rows[2], rows[3]); }

// Keeps GCC from reading `vector` from memory again wherever it is used.
#define PITC_KEEP(vector) asm("" : "+v"(vector))

namespace v4 {
#define PITC_TARGET PITC_V4
#define PITC_LANES 16
#define PITC_MULTIPLY_ADD(x, y, z) _mm512_fmadd_ps(x, y, z)
#include "few_rows_tiles.h"
#undef PITC_TARGET
#undef PITC_LANES
#undef PITC_MULTIPLY_ADD
}  // namespace v4

namespace v3 {
#define PITC_TARGET PITC_V3
#define PITC_LANES 8
#define PITC_MULTIPLY_ADD(x, y, z) _mm256_fmadd_ps(x, y, z)
#include "few_rows_tiles.h"
#undef PITC_TARGET
#undef PITC_LANES
#undef PITC_MULTIPLY_ADD
}  // namespace v3

#else

inline void Transpose(Four* rows) {
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < i; ++j) {
      const float x = rows[i][j];
      rows[i][j] = rows[j][i];
      rows[j][i] = x;
    }
  }
}

#define PITC_KEEP(vector)

#endif  // __x86_64__

namespace baseline {
#define PITC_TARGET
#define PITC_LANES 4
#define PITC_MULTIPLY_ADD(x, y, z) ((x) * (y) + (z))
#include "few_rows_tiles.h"
}  // namespace baseline

}  // namespace

void MultiplyFew(CpuLevel level, const float* x, int64_t rows, const StoredMatrix& a, float* sums,
                 int64_t step) {
#if defined(__x86_64__)
  if (level == CpuLevel::kV4) return v4::Multiply(x, rows, a, sums, step);
  if (level == CpuLevel::kV3) return v3::Multiply(x, rows, a, sums, step);
#endif
  static_cast<void>(level);
  baseline::Multiply(x, rows, a, sums, step);
}

}  // namespace pitc

/* What one core can do: multiply-adds from registers, and reading memory. */
#include <stddef.h>

#if defined(__AVX512F__)
enum { kLanes = 16, kChains = 20 };
#else
enum { kLanes = 8, kChains = 12 };
#endif

typedef float Vector __attribute__((vector_size(4 * kLanes)));

/* Flops done in `steps` rounds of kChains independent multiply-adds; `out` keeps the work alive. */
double multiply_add(long steps, float x, float y, float* out) {
  Vector acc[kChains], vx = x - (Vector){0}, vy = y - (Vector){0};
  for (int i = 0; i < kChains; ++i) acc[i] = (float)i - (Vector){0};
  for (long s = 0; s < steps; ++s) {
#pragma GCC unroll 32
    for (int i = 0; i < kChains; ++i) acc[i] = acc[i] * vx + vy;
  }
  for (int i = 0; i < kChains; ++i)
    for (int j = 0; j < kLanes; ++j) *out += acc[i][j];
  return 2.0 * kLanes * kChains * (double)steps;
}

/* Adds up n floats; n is a multiple of 8 vectors. */
float read_all(const float* data, size_t n) {
  Vector acc[8] = {0};
  for (size_t i = 0; i < n; i += 8 * kLanes) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      Vector v;
      __builtin_memcpy(&v, data + i + (size_t)j * kLanes, sizeof v);
      acc[j] += v;
    }
  }
  float sum = 0;
  for (int i = 0; i < 8; ++i)
    for (int j = 0; j < kLanes; ++j) sum += acc[i][j];
  return sum;
}

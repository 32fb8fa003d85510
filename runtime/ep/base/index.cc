#include "base/index.h"

#include "base/failure.h"

namespace pitc {

int64_t Product(std::initializer_list<int64_t> factors, const char* what, int64_t most) {
  int64_t product = 1;
  bool fits = true, zero = false;
  for (int64_t factor : factors) {
    zero = zero || factor == 0;
    fits = fits && factor >= 0 && !__builtin_mul_overflow(product, factor, &product) &&
           product <= most;
  }
  if (zero) return 0;
  if (!fits) Fail("expected at most ", most, " elements in ", what, ", got more");
  return product;
}

int64_t Numbered(int64_t count, const char* what) {
  if (count > kInt32Max) Fail("expected at most ", kInt32Max, " ", what, ", got ", count);
  return count;
}

void CheckBelow(const int32_t* v, int64_t n, int64_t limit, const char* role) {
  // The sign bit of v | (limit - 1 - v) is set exactly when v is out of range: one pass that
  // compilers vectorise.
  const uint32_t last = static_cast<uint32_t>(std::min(limit, kInt32Max)) - 1;
  uint32_t bad = 0;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t u = static_cast<uint32_t>(v[i]);
    bad |= u | (last - u);
  }
  if (!(bad >> 31) && (limit > 0 || n == 0)) return;
  for (int64_t i = 0; i < n; ++i) {
    if (v[i] < 0 || v[i] >= limit) {
      Fail("expected 0 <= ", role, "[", i, "] < ", limit, ", got ", v[i]);
    }
  }
}

void CheckAscending(const int32_t* v, int64_t n, int64_t limit, const char* role) {
  CheckBelow(v, n, limit, role);
  uint32_t bad = 0;
  for (int64_t i = 0; i + 1 < n; ++i) {
    bad |= static_cast<uint32_t>(v[i + 1]) - static_cast<uint32_t>(v[i]) - 1;
  }
  if (!(bad >> 31)) return;
  for (int64_t i = 0; i + 1 < n; ++i) {
    if (v[i] >= v[i + 1]) {
      Fail("expected ", role, " to ascend, got ", v[i], ", ", v[i + 1], " at [", i, "]");
    }
  }
}

void CheckOffsets(const int32_t* v, int64_t n, int64_t total, const char* role) {
  if (v[0] != 0) Fail("expected ", role, "[0] = 0, got ", v[0]);
  for (int64_t i = 0; i < n; ++i) {
    if (v[i + 1] < v[i])
      Fail("expected ", role, " not to fall, got ", v[i], ", ", v[i + 1], " at [", i, "]");
  }
  if (v[n] != total) Fail("expected ", role, "[", n, "] = ", total, " (all rows), got ", v[n]);
}

Blocks EvenBlocks(int64_t total, int64_t most, int64_t unit) {
  if (total <= 0) return {0, std::max<int64_t>(unit, 1)};
  int64_t count = (total + most - 1) / most;
  int64_t size = (total + count - 1) / count;
  return {total, (size + unit - 1) / unit * unit};
}

}  // namespace pitc

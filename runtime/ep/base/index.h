// Integer work on index lists: bounds scans, products that cannot overflow, deterministic blocks of
// work.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

namespace pitc {

constexpr int64_t kInt32Max = INT32_MAX;
constexpr int64_t kMostElements = int64_t{1} << 40;  // of a tensor

// The product of non-negative numbers; throws Failure when it does not fit in `most`.
int64_t Product(std::initializer_list<int64_t> factors, const char* what,
                int64_t most = kMostElements);

// How many things lists number in int32; throws Failure where they are too many for that.
int64_t Numbered(int64_t count, const char* what);

// Throws Failure, naming `role`, the element and its value, unless 0 <= v[i] < limit for all i.
void CheckBelow(const int32_t* v, int64_t n, int64_t limit, const char* role);

// The same, and v[i] < v[i + 1]: no two points share a row.
void CheckAscending(const int32_t* v, int64_t n, int64_t limit, const char* role);

// Throws Failure unless v is [n + 1], starts at 0, never falls and ends at `total`.
void CheckOffsets(const int32_t* v, int64_t n, int64_t total, const char* role);

// `total` things in blocks of `size`; the last block may be smaller.
struct Blocks {
  int64_t total, size;
  int64_t Count() const { return (total + size - 1) / size; }
  int64_t Begin(int64_t block) const { return block * size; }
  int64_t End(int64_t block) const { return std::min(total, (block + 1) * size); }
};

// Blocks of about equal size, at most `most` each, sizes a multiple of `unit`.
Blocks EvenBlocks(int64_t total, int64_t most, int64_t unit);

}  // namespace pitc

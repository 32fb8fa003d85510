// The shape of a tensor, without memory of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <string>

namespace pitc {

struct Shape {
  static constexpr int kMostDims = 16;
  int rank = 0;
  int64_t dims[kMostDims] = {};

  Shape() = default;
  Shape(std::initializer_list<int64_t> list) {
    for (int64_t dim : list) Add(dim);
  }
  void Add(int64_t dim);  // throws Failure beyond kMostDims
  void Append(const Shape& other, int begin, int end);
  int64_t Elements(int begin,
                   int end) const;  // product of dims[begin..end); throws Failure when it is huge
  int64_t Elements() const { return Elements(0, rank); }
  bool operator==(const Shape& other) const {
    return rank == other.rank && std::equal(dims, dims + rank, other.dims);
  }
  std::string Text() const;  // `[3, 4]`; a negative extent is `*`
};

}  // namespace pitc

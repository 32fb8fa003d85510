#include "base/shape.h"

#include "base/failure.h"
#include "base/index.h"

namespace pitc {

void Shape::Add(int64_t dim) {
  if (rank == kMostDims) Fail("expected at most ", kMostDims, " dimensions, got more");
  dims[rank++] = dim;
}

void Shape::Append(const Shape& other, int begin, int end) {
  for (int i = begin; i < end; ++i) Add(other.dims[i]);
}

int64_t Shape::Elements(int begin, int end) const {
  int64_t product = 1;
  for (int i = begin; i < end; ++i) product = Product({product, dims[i]}, "a tensor");
  return product;
}

std::string Shape::Text() const {
  std::string text = "[";
  for (int i = 0; i < rank; ++i)
    text += (i ? ", " : "") + (dims[i] < 0 ? "*" : std::to_string(dims[i]));
  return text + "]";
}

}  // namespace pitc

// A tensor as ONNX Runtime gives it, and what messages say of it.
#pragma once

#include <cstdint>
#include <string>

#include "base/failure.h"
#include "base/shape.h"
#include "machines.h"
#include "ort/ort.h"

namespace pitc {

struct Tensor {
  const char* role = "";  // the input's name in docs/plans.md
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  Shape shape;
  const void* data = nullptr;

  Tensor As(const char* other_role) const {
    Tensor same = *this;
    same.role = other_role;
    return same;
  }
  const float* Floats() const { return static_cast<const float*>(data); }
  const int32_t* Int32s() const { return static_cast<const int32_t*>(data); }
  const uint8_t* Bytes() const { return static_cast<const uint8_t*>(data); }
};

ONNXTensorElementDataType OnnxType(Element type);

// Bytes per element: 1, 2, 4 or 8; 0 for types that cannot be moved as plain bytes.
int ElementBytes(ONNXTensorElementDataType type);

// Bits of an element that are all 0 where it is: not the sign of -0.0. None: it is no number.
uint64_t MaskBits(ONNXTensorElementDataType type);

// `float32 [3, 4]`
std::string Describe(ONNXTensorElementDataType type, const Shape& shape);

// Throws Failure `expected ROLE EXPECTED, got TYPE [DIMS]` unless `good`. The parts of EXPECTED
// become text only then.
template <class... Parts>
void Expect(bool good, const Tensor& tensor, const Parts&... expected) {
  if (!good) {
    Fail("expected ", tensor.role, " ", Text(expected...), ", got ",
         Describe(tensor.type, tensor.shape));
  }
}

// Each throws Failure unless the tensor is such a one.
void ExpectNumbers(const Tensor& tensor, Element type, int least_rank,
                   int most_rank = Shape::kMostDims);
void ExpectInt32s(const Tensor& tensor, std::initializer_list<int64_t> shape);  // -1: any
void ExpectMask(const Tensor& tensor);

// Throws Failure for a rank beyond Shape's. Strings have no data.
Tensor ReadTensor(const Host& host, const OrtValue* value, const char* role);

}  // namespace pitc

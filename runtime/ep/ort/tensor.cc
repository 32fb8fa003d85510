#include "ort/tensor.h"

#include <algorithm>

namespace pitc {
namespace {

const struct {
  ONNXTensorElementDataType type;
  const char* name;
  int bytes;
} kTypes[] = {
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, "float32", 4},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, "uint8", 1},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, "int8", 1},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, "uint16", 2},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, "int16", 2},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, "int32", 4},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, "int64", 8},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, "string", 0},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, "bool", 1},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, "float16", 2},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, "float64", 8},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, "uint32", 4},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, "uint64", 8},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64, "complex64", 8},
    {ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, "bfloat16", 2},
};

void SetRank(size_t rank, Tensor* tensor) {
  if (rank > Shape::kMostDims)
    Fail("expected ", tensor->role, " of rank <= ", Shape::kMostDims, ", got ", rank);
  tensor->shape.rank = static_cast<int>(rank);
}

// Type and shape, where they lie in the value.
void ReadShape(const Host& host, const OrtValue* value, Tensor* tensor) {
  const int64_t* dims = nullptr;
  size_t rank = 0;
  Check(host,
        host.api->GetTensorElementTypeAndShapeDataReference(value, &tensor->type, &dims, &rank));
  SetRank(rank, tensor);
  std::copy_n(dims, rank, tensor->shape.dims);
}

// The same in ONNX Runtime 1.23, which allocates a copy of them.
void CopyShape(const Host& host, const OrtValue* value, Tensor* tensor) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  Check(host, host.api->GetTensorTypeAndShape(value, &info));
  struct Release {
    const Host& host;
    OrtTensorTypeAndShapeInfo* info;
    ~Release() { host.api->ReleaseTensorTypeAndShapeInfo(info); }
  } release{host, info};
  size_t rank = 0;
  Check(host, host.api->GetTensorElementType(info, &tensor->type));
  Check(host, host.api->GetDimensionsCount(info, &rank));
  SetRank(rank, tensor);
  Check(host, host.api->GetDimensions(info, tensor->shape.dims, rank));
}

}  // namespace

ONNXTensorElementDataType OnnxType(Element type) {
  switch (type) {
    case Element::kFloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    case Element::kBfloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
    case Element::kFloat32:
      break;
  }
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
}

int ElementBytes(ONNXTensorElementDataType type) {
  for (const auto& entry : kTypes) {
    if (entry.type == type) return entry.bytes;
  }
  return 0;
}

uint64_t MaskBits(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64:
      return 0;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return (uint64_t{1} << (8 * ElementBytes(type) - 1)) - 1;
    default:
      break;
  }
  const int bytes = ElementBytes(type);
  return bytes == 0 ? 0 : ~uint64_t{0} >> (64 - 8 * bytes);
}

std::string Describe(ONNXTensorElementDataType type, const Shape& shape) {
  std::string name = Text("element type ", static_cast<int>(type));
  for (const auto& entry : kTypes) {
    if (entry.type == type) name = entry.name;
  }
  return name + " " + shape.Text();
}

void ExpectNumbers(const Tensor& t, Element type, int least_rank, int most_rank) {
  const bool good = t.type == OnnxType(type);
  const char* const name = RecordOf(type).name;
  if (least_rank == most_rank)
    Expect(good && t.shape.rank == least_rank, t, "as ", name, " of rank ", least_rank);
  Expect(good && t.shape.rank >= least_rank, t, "as ", name, " of rank >= ", least_rank);
}

void ExpectInt32s(const Tensor& t, std::initializer_list<int64_t> shape) {
  bool good = t.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32 &&
              t.shape.rank == static_cast<int>(shape.size());
  int at = 0;
  for (int64_t extent : shape) {
    good = good && (extent < 0 || extent == t.shape.dims[at]);
    ++at;
  }
  if (!good) Expect(false, t, "as ", Describe(ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, Shape(shape)));
}

void ExpectMask(const Tensor& t) { Expect(MaskBits(t.type) != 0, t, "as bools or numbers"); }

Tensor ReadTensor(const Host& host, const OrtValue* value, const char* role) {
  Tensor tensor{role, ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED, {}, nullptr};
  if (host.version >= 24) {
    ReadShape(host, value, &tensor);
  } else {
    CopyShape(host, value, &tensor);
  }
  if (tensor.type != ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING)
    Check(host, host.api->GetTensorData(value, &tensor.data));
  return tensor;
}

}  // namespace pitc

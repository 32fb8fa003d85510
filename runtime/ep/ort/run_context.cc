#include "ort/run_context.h"

#include <cstring>

#include "base/index.h"

namespace pitc {
namespace {

constexpr int64_t kZeroBlockBytes = int64_t{1} << 18;
constexpr int64_t kSerialZeroBytes = int64_t{1} << 20;

}  // namespace

Tensor RunContext::Input(int index, const char* role) const {
  const auto at = static_cast<size_t>(index);
  if (const auto& constant = places_.constants[at]) return constant->tensor().As(role);
  PassedConstant* const passed = places_.passed[at].get();
  if (const Tensor* found = passed ? passed->Found() : nullptr) return found->As(role);
  const OrtValue* value = nullptr;
  const int place = places_.inputs[at];
  if (place >= 0)
    Check(host_, host_.api->KernelContext_GetInput(context_, static_cast<size_t>(place), &value));
  if (!value) Fail("expected input ", role, ", got none");
  const Tensor tensor = ReadTensor(host_, value, role);
  if (passed) passed->Find(tensor);
  return tensor;
}

Tensor RunContext::FloatInput(int index, const char* role, int least_rank, int most_rank) const {
  const Tensor t = Input(index, role);
  ExpectNumbers(t, Element::kFloat32, least_rank, most_rank);
  return t;
}

Tensor RunContext::Int32Input(int index, const char* role,
                              std::initializer_list<int64_t> shape) const {
  const Tensor t = Input(index, role);
  ExpectInt32s(t, shape);
  return t;
}

Tensor RunContext::MaskInput(int index, const char* role) const {
  const Tensor t = Input(index, role);
  ExpectMask(t);
  return t;
}

void* RunContext::Output(int index, const Shape& shape, int element_bytes,
                         Arena::Scope& scratch) const {
  int place = places_.outputs[static_cast<size_t>(index)];
  if (place < 0) return scratch.Array<char>(shape.Elements() * element_bytes);
  OrtValue* value = nullptr;
  void* memory = nullptr;
  Check(host_, host_.api->KernelContext_GetOutput(context_, static_cast<size_t>(place), shape.dims,
                                                  static_cast<size_t>(shape.rank), &value));
  if (!value) return scratch.Array<char>(shape.Elements() * element_bytes);
  Check(host_, host_.api->GetTensorMutableData(value, &memory));
  return memory;
}

const int32_t* CopyOf(const int32_t* list, int64_t n, Arena::Scope& scratch) {
  auto* copy = scratch.Array<int32_t>(n);
  std::copy_n(list, n, copy);
  return copy;
}

void ZeroAll(const RunContext& run, void* memory, int64_t bytes) {
  ZeroOtherRows(run, memory, 1, bytes, nullptr, 0);
}

void ZeroOtherRows(const RunContext& run, void* memory, int64_t row_bytes, int64_t row_count,
                   const int32_t* rows, int64_t t) {
  if (row_bytes == 0 || row_count == 0) return;
  char* base = static_cast<char*>(memory);
  const int32_t* end = rows + t;
  Blocks blocks = EvenBlocks(row_count, std::max<int64_t>(1, kZeroBlockBytes / row_bytes), 1);
  run.Each(blocks.Count(), row_bytes * row_count > kSerialZeroBytes, [&](int64_t block) {
    int64_t at = blocks.Begin(block), stop = blocks.End(block);
    for (const int32_t* row = std::lower_bound(rows, end, at); at < stop; ++row) {
      int64_t next = row == end ? stop : std::min<int64_t>(*row, stop);
      memset(base + at * row_bytes, 0, static_cast<size_t>((next - at) * row_bytes));
      if (row == end) break;
      at = next + 1;
    }
  });
}

}  // namespace pitc

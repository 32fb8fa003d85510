// detect: live mask -> rows, coords, offsets. It also holds a padding mask to its contract.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <string>
#include <type_traits>

#include "base/index.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr int64_t kSerialPoints = int64_t{1}
                                  << 18;  // below it, one thread is done sooner than others wake up
constexpr int64_t kBlockPoints = int64_t{1} << 16;

// The bits of an element that holds 1.
uint64_t OneBits(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return 0x3c00;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return 0x3f80;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return 0x3f800000;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return 0x3ff0000000000000;
    default:
      return 1;
  }
}

// Fills live[begin..end-1]; not 0 where an element is neither 0 nor 1.
template <class Word>
Word FindLive(const Tensor& mask, int64_t begin, int64_t end, uint8_t* live) {
  const auto* const words = static_cast<const Word*>(mask.data);
  const auto bits = static_cast<Word>(MaskBits(mask.type)),
             one = static_cast<Word>(OneBits(mask.type));
  Word found = 0;
  if (one == 1) {  // of integers, any other bit tells: no comparison is needed
    for (int64_t i = begin; i < end; ++i) {
      live[i] = words[i] != 0;
      found |= words[i];
    }
    return static_cast<Word>(found & ~one);
  }
  for (int64_t i = begin; i < end; ++i) {
    const Word word = words[i];
    const bool lives = (word & bits) != 0;
    live[i] = lives;
    found |= static_cast<Word>(lives ? word ^ one : 0);
  }
  return found;
}

struct Bytes {
  const uint8_t* live;  // not 0 where something lives
  bool only_01;         // the mask holds nothing but 0 and 1
};

// A mask as bytes: its own, or those of `scratch`, of which begin..end-1 are filled.
Bytes LiveBytes(const Tensor& mask, int64_t begin, int64_t end, uint8_t* scratch) {
  switch (ElementBytes(mask.type)) {
    case 2:
      return {scratch, FindLive<uint16_t>(mask, begin, end, scratch) == 0};
    case 4:
      return {scratch, FindLive<uint32_t>(mask, begin, end, scratch) == 0};
    case 8:
      return {scratch, FindLive<uint64_t>(mask, begin, end, scratch) == 0};
    default:
      break;
  }
  uint8_t all = 0;
  for (int64_t i = begin; i < end; ++i) all |= mask.Bytes()[i];
  return {mask.Bytes(), all <= 1};
}

// What the first element of a mask that is neither 0 nor 1 holds, and where: ` 2 at [0, 5]`.
template <class Number>
std::string FirstOther(const Tensor& mask) {
  const auto* const numbers = static_cast<const Number*>(mask.data);
  const int64_t count = mask.shape.Elements();
  const auto* const other =
      std::find_if(numbers, numbers + count, [](Number x) { return !(x == 0 || x == 1); });
  if (other == numbers + count) return "";  // the host has written there meanwhile
  Shape place = mask.shape;
  int64_t rest = other - numbers;
  for (int d = place.rank - 1; d >= 0; --d) {
    place.dims[d] = rest % mask.shape.dims[d];
    rest /= mask.shape.dims[d];
  }
  std::string number;
  if constexpr (std::is_floating_point_v<Number>) {
    char digits[32];
    snprintf(digits, sizeof digits, "%g", static_cast<double>(*other));
    number = std::isnan(*other) ? "NaN" : digits;  // some are told as -nan
  } else {
    number = std::to_string(*other);
  }
  return " " + number + " at " + place.Text();
}

std::string FirstOther(const Tensor& mask) {
  switch (mask.type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return FirstOther<float>(mask);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE:
      return FirstOther<double>(mask);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
      return FirstOther<int8_t>(mask);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
      return FirstOther<uint8_t>(mask);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16:
      return FirstOther<int16_t>(mask);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16:
      return FirstOther<uint16_t>(mask);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return FirstOther<int32_t>(mask);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32:
      return FirstOther<uint32_t>(mask);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return FirstOther<int64_t>(mask);
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64:
      return FirstOther<uint64_t>(mask);
    default:  // C++ has no such type: half precision
      return "";
  }
}

class Detect final : public Operation {
 public:
  Detect(const DetectPlan& plan, const Primitives& simd)
      : plan_(plan),
        rank_(static_cast<int>(plan.rank)),
        padding_(plan.padding.value_or("")),
        simd_(simd) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return DetectPlan::kOutputs; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const Tensor live = run.MaskInput(plan_.Places().live, "live");
    Expect(live.shape.rank == rank_, live, "of rank ", rank_);
    // The padding mask: that which is read here, or the one behind it.
    const Tensor padding =
        padding_.empty() ? live : run.MaskInput(plan_.Places().padding, "padding");
    const bool is_live = padding.data == live.data && padding.type == live.type;
    if (!is_live) ExpectOnly01(run, padding);
    const int64_t length = live.shape.dims[rank_ - 1];
    const int64_t sequences = live.shape.Elements(0, rank_ - 1);
    const int64_t points = Numbered(live.shape.Elements(), "points of live");
    Product({sequences}, "offsets", kInt32Max - 1);
    const bool parallel = points >= kSerialPoints;
    const Blocks blocks =
        EvenBlocks(sequences, std::max<int64_t>(1, kBlockPoints / std::max<int64_t>(length, 1)), 1);

    // Outputs are only written: like the mask, they may lie in memory that the host writes as well.
    const int64_t words = BitWords(length);
    auto* bits = scratch.Array<uint64_t>(sequences * words);
    auto* starts = scratch.Array<int32_t>(sequences + 1);
    auto* const bytes = scratch.Array<uint8_t>(ElementBytes(live.type) == 1 ? 0 : points);
    std::atomic<bool> only_01{true};
    starts[0] = 0;
    run.Each(blocks.Count(), parallel, [&](int64_t block) {
      for (int64_t s = blocks.Begin(block); s < blocks.End(block); ++s) {
        const int64_t begin = s * length;
        const Bytes found = LiveBytes(live, begin, begin + length, bytes);
        if (!found.only_01) only_01.store(false, std::memory_order_relaxed);
        const uint8_t* const sequence = found.live + begin;
        starts[s + 1] = static_cast<int32_t>(simd_.mask_bits(sequence, length, bits + s * words));
      }
    });
    if (!padding_.empty() && is_live && !only_01) FailsContract(padding);
    for (int64_t s = 0; s < sequences; ++s) starts[s + 1] += starts[s];
    const int64_t t = starts[sequences];
    void* const offsets = run.Output(2, {sequences + 1}, sizeof(int32_t), scratch);
    std::copy_n(starts, sequences + 1, static_cast<int32_t*>(offsets));
    auto* rows = static_cast<int32_t*>(run.Output(0, {t}, sizeof(int32_t), scratch));
    auto* coords = static_cast<int32_t*>(run.Output(1, {rank_, t}, sizeof(int32_t), scratch));
    if (t == 0) return;
    run.Each(blocks.Count(), parallel, [&](int64_t block) {
      for (int64_t s = blocks.Begin(block); s < blocks.End(block); ++s) {
        const int64_t at = starts[s], count = starts[s + 1] - at;
        int32_t* const positions = coords + (rank_ - 1) * t + at;
        simd_.PositionsFor(count, words)(bits + s * words, words, 0, positions, count);
        const auto row = static_cast<int32_t>(s * length);
        for (int64_t j = 0; j < count; ++j) rows[at + j] = row + positions[j];
        int64_t rest = s;  // the sequence's own coordinates, last first
        for (int c = rank_ - 2; c >= 0; --c) {
          std::fill_n(coords + c * t + at, count, static_cast<int32_t>(rest % live.shape.dims[c]));
          rest /= live.shape.dims[c];
        }
      }
    });
  }

 private:
  // What was proven of the model rests on it: where the padding mask is not 0, it is 1.
  [[noreturn]] void FailsContract(const Tensor& padding) const {
    const std::string found = FirstOther(padding);
    Fail("expected the padding mask ", Quoted(padding_), " to hold 0 and 1 only, as the model was ",
         "compiled with it as padding, got", found.empty() ? " another number" : found);
  }

  void ExpectOnly01(const RunContext& run, const Tensor& padding) const {
    Arena::Scope scratch;
    const int64_t points = Numbered(padding.shape.Elements(), "points of padding");
    auto* const bytes = scratch.Array<uint8_t>(ElementBytes(padding.type) == 1 ? 0 : points);
    const Blocks blocks = EvenBlocks(points, kBlockPoints, 1);
    std::atomic<bool> only_01{true};
    run.Each(blocks.Count(), points >= kSerialPoints, [&](int64_t block) {
      if (!LiveBytes(padding, blocks.Begin(block), blocks.End(block), bytes).only_01)
        only_01.store(false, std::memory_order_relaxed);
    });
    if (!only_01) FailsContract(padding);
  }

  const DetectPlan plan_;
  const int rank_;
  const std::string padding_;  // the name of a mask that holds 0 and 1 only; empty: of none
  const Primitives& simd_;
};

}  // namespace

std::unique_ptr<Operation> MakeDetect(const DetectPlan& plan, const Primitives& simd) {
  return std::make_unique<Detect>(plan, simd);
}

}  // namespace pitc

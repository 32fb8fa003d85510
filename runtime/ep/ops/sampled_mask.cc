#include "ops/sampled_mask.h"

#include <cstring>

#include "ops/sparse_operand.h"

namespace pitc {
namespace {

constexpr int64_t kRows = 64;  // of a task

template <class Word>
void FindLive(const char* from, uint64_t bits, int64_t n, uint8_t* live) {
  for (int64_t i = 0; i < n; ++i) {
    Word word;
    memcpy(&word, from + i * static_cast<int64_t>(sizeof word), sizeof word);
    live[i] = (word & static_cast<Word>(bits)) != 0;
  }
}

// The bits of elements of a mask that are not 0.
void LiveBits(const Primitives& simd, ONNXTensorElementDataType type, const char* from, int64_t n,
              uint64_t* bits) {
  constexpr int64_t kPart = 4096;
  const int bytes = ElementBytes(type);
  uint8_t live[kPart];
  for (int64_t i = 0; i < n; i += kPart) {
    const int64_t here = std::min(kPart, n - i);
    const char* const part = from + i * bytes;
    const auto find = [&](auto word) {
      FindLive<decltype(word)>(part, MaskBits(type), here, live);
    };
    if (bytes == 2) find(uint16_t{});
    if (bytes == 4) find(uint32_t{});
    if (bytes == 8) find(uint64_t{});
    const uint8_t* const found = bytes == 1 ? reinterpret_cast<const uint8_t*>(part) : live;
    simd.mask_bits(found, here, bits + i / 64);
  }
}

}  // namespace

SampledMask ReadSampledMask(const RunContext& run, const Primitives& simd, int place, int64_t rows,
                            int64_t columns, Arena::Scope& scratch) {
  const Tensor read = run.MaskInput(place, "mask");
  const int last = read.shape.rank - 1;
  Expect(last >= 0 && read.shape.dims[last] == columns && read.shape.Elements(0, last) == rows,
         read, "of ", rows, " rows of ", columns);
  auto* const bits = scratch.Array<uint64_t>(rows * BitWords(columns));
  const SampledMask mask{bits, rows, columns, BitWords(columns)};
  const Blocks blocks{rows, kRows};
  const int64_t row_bytes = columns * ElementBytes(read.type);
  run.Each(blocks.Count(), rows * columns > kSerialScan, [&](int64_t i) {
    for (int64_t r = blocks.Begin(i); r < blocks.End(i); ++r) {
      const char* const from = static_cast<const char*>(read.data) + r * row_bytes;
      LiveBits(simd, read.type, from, columns, bits + r * mask.words);
    }
  });
  return mask;
}

void KeepLive(const uint64_t* bits, const uint64_t* written, int64_t n, float* c) {
  constexpr uint32_t kNo = 0, kAll = ~uint32_t{0};
  constexpr uint32_t kKept[16][4] = {
      {kNo, kNo, kNo, kNo},    {kAll, kNo, kNo, kNo},   {kNo, kAll, kNo, kNo},
      {kAll, kAll, kNo, kNo},  {kNo, kNo, kAll, kNo},   {kAll, kNo, kAll, kNo},
      {kNo, kAll, kAll, kNo},  {kAll, kAll, kAll, kNo}, {kNo, kNo, kNo, kAll},
      {kAll, kNo, kNo, kAll},  {kNo, kAll, kNo, kAll},  {kAll, kAll, kNo, kAll},
      {kNo, kNo, kAll, kAll},  {kAll, kNo, kAll, kAll}, {kNo, kAll, kAll, kAll},
      {kAll, kAll, kAll, kAll}};
  for (int64_t w = 0; w < BitWords(n); ++w) {
    const uint64_t live = bits[w];
    if (((written ? written[w] : ~uint64_t{0}) & ~live) == 0) continue;
    float* const at = c + w * 64;
    if (n - w * 64 < 64) {
      for (int64_t i = 0; i < n - w * 64; ++i) {
        if (!(live >> i & 1)) at[i] = 0;
      }
      continue;
    }
    for (int64_t i = 0; i < 64; i += 4) {
      uint32_t four[4];
      memcpy(four, at + i, sizeof four);
      for (int j = 0; j < 4; ++j) four[j] &= kKept[live >> i & 15][j];
      memcpy(at + i, four, sizeof four);
    }
  }
}

}  // namespace pitc

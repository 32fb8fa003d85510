// detect: live mask -> rows, coords, offsets.
#include <algorithm>

#include "base/index.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr int64_t kSerialPoints = int64_t{1}
                                  << 18;  // below it, one thread is done sooner than others wake up
constexpr int64_t kBlockPoints = int64_t{1} << 16;

template <class Word>
void FindLive(const Tensor& mask, int64_t begin, int64_t end, uint8_t* live) {
  const auto* const words = static_cast<const Word*>(mask.data);
  const auto bits = static_cast<Word>(MaskBits(mask.type));
  for (int64_t i = begin; i < end; ++i) live[i] = (words[i] & bits) != 0;
}

// A mask as bytes that are not 0 where something lives: its own, or those of `scratch`, of which
// begin..end-1 are filled.
const uint8_t* LiveBytes(const Tensor& mask, int64_t begin, int64_t end, uint8_t* scratch) {
  switch (ElementBytes(mask.type)) {
    case 2:
      FindLive<uint16_t>(mask, begin, end, scratch);
      break;
    case 4:
      FindLive<uint32_t>(mask, begin, end, scratch);
      break;
    case 8:
      FindLive<uint64_t>(mask, begin, end, scratch);
      break;
    default:
      return mask.Bytes();
  }
  return scratch;
}

class Detect final : public Operation {
 public:
  Detect(const DetectPlan& plan, const Primitives& simd) : rank_(plan.rank), simd_(simd) {}
  int InputCount() const override { return 1; }
  int OutputCount() const override { return 3; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const Tensor live = run.MaskInput(0, "live");
    Expect(live.shape.rank == rank_, live, "of rank ", rank_);
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
    starts[0] = 0;
    run.Each(blocks.Count(), parallel, [&](int64_t block) {
      for (int64_t s = blocks.Begin(block); s < blocks.End(block); ++s) {
        const int64_t begin = s * length;
        const uint8_t* const sequence = LiveBytes(live, begin, begin + length, bytes) + begin;
        starts[s + 1] = static_cast<int32_t>(simd_.mask_bits(sequence, length, bits + s * words));
      }
    });
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
  const int rank_;
  const Primitives& simd_;
};

}  // namespace

std::unique_ptr<Operation> MakeDetect(const DetectPlan& plan, const Primitives& simd) {
  return std::make_unique<Detect>(plan, simd);
}

}  // namespace pitc

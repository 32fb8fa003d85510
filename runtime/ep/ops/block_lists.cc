#include "ops/block_lists.h"

namespace pitc {
namespace {

// Bytes of the cache lines that hold so many numbers.
int64_t Lines(int64_t numbers) { return (numbers + 15) / 16 * 64; }

}  // namespace

BlockLists::BlockLists(const Primitives& simd, Variant variant, const DetectedRows& rows,
                       int64_t k_block)
    : simd_(simd),
      record_(RecordOf(variant)),
      rows_(rows),
      k_block_(k_block),
      width_(record_.size) {
  lists_ = IsRow()    ? rows.Count() * KBlocks()
           : IsTile() ? (rows.Count() + width_ - 1) / width_
                      : (rows.K() + width_ - 1) / width_;
}

void BlockLists::Count() {
  MicroTileCounts live;
  simd_.count_micro_tiles(rows_.bits, rows_.Count(), rows_.K(), nullptr, &live);
  Count(live);
}

void BlockLists::Count(const MicroTileCounts& live) {
  const int place = record_.place;
  entries_ = IsRow() ? live.elements : IsTile() ? live.strips[place] : live.segments[place];
}

int64_t BlockLists::Bytes() const {
  return Lines(entries_ * width_) + Lines(entries_) + Lines(lists_ + 1);
}

void BlockLists::Take(char* memory) {
  values_ = reinterpret_cast<float*>(memory);
  index_ = reinterpret_cast<int32_t*>(memory += Lines(entries_ * width_));
  starts_ = reinterpret_cast<int32_t*>(memory + Lines(entries_));
}

void BlockLists::Fill() const {
  if (IsRow()) return FillRowLists(simd_, rows_, k_block_, entries_, values_, index_, starts_);
  if (IsTile()) {
    FillTileLists(simd_, rows_, width_, entries_, values_, index_, starts_);
  } else {
    FillBlockLists(rows_, width_, values_, index_, starts_);
  }
}

void BlockLists::Run(const ListKernels& kernels, const Panels& b, const Target& target,
                     int64_t panel_begin, int64_t panel_end) const {
  KernelCall call;
  if (IsRow()) {
    call.Floats(values_, {entries_});
  } else {
    call.Floats(values_, {entries_, width_});
  }
  call.Int32s(index_, {entries_}).Int32s(starts_, {lists_ + 1});
  call.Floats(b.data, {b.count, b.k, b.width}).Floats(b.bias, {b.count * b.width});
  if (target.residual) call.Floats(target.residual, {rows_.Count(), target.n});
  call.Int32s(target.rows, {rows_.Count()});
  call.Floats(target.data, {target.stored, target.n});
  if (IsRow()) call.Int(KBlocks()).Int(std::max<int64_t>(1, OfSums()));
  call.Int(panel_begin).Int(panel_end);
  call.Run(IsRow() ? kernels.row : IsTile() ? kernels.tile : kernels.block);
}

}  // namespace pitc

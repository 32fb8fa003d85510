#include "ops/block_lists.h"

namespace pitc {

BlockLists::BlockLists(const Primitives& simd, Variant variant, const DetectedRows& rows,
                       int64_t k_block, bool relu)
    : simd_(simd),
      record_(RecordOf(variant)),
      rows_(rows),
      k_block_(k_block),
      relu_(relu),
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

void BlockLists::Take(Arena::Scope& scratch) {
  values_ = scratch.Array<float>(entries_ * width_);
  index_ = scratch.Array<int32_t>(entries_);
  starts_ = scratch.Array<int32_t>(lists_ + 1);
}

void BlockLists::Fill() const {
  if (IsRow()) return FillRowLists(simd_, rows_, k_block_, entries_, values_, index_, starts_);
  if (IsTile()) {
    FillTileLists(simd_, rows_, width_, entries_, values_, index_, starts_);
  } else {
    FillBlockLists(rows_, width_, values_, index_, starts_);
  }
  if (relu_) Relu(values_, entries_ * width_, values_);  // dead elements came along
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
  if (IsRow()) call.Int(KBlocks());
  call.Int(panel_begin).Int(panel_end);
  call.Run(IsRow() ? kernels.row : IsTile() ? kernels.tile : kernels.block);
}

void Relu(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] < 0 ? 0 : x[i];
}

}  // namespace pitc

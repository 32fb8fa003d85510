#include "block_lists.h"

namespace pitc {

void BlockLists::Count() {
  switch (variant_) {
    case Variant::kRow:
      entries_ = CountBits(level_, rows_.bits, rows_.Count() * BitWords(rows_.K()));
      lists_ = rows_.Count() * KBlocks();
      break;
    case Variant::kTile8:
    case Variant::kTile32:
      width_ = kStripHeights[variant_ == Variant::kTile32];
      entries_ = CountStrips(level_, rows_.bits, rows_.Count(), rows_.K(), width_);
      lists_ = (rows_.Count() + width_ - 1) / width_;
      break;
    default: {
      const int place = static_cast<int>(variant_) - static_cast<int>(Variant::kBlock16);
      width_ = kSegmentWidths[place];
      entries_ = CountSegments(level_, rows_.bits, rows_.Count(), rows_.K(), width_);
      lists_ = (rows_.K() + width_ - 1) / width_;
    }
  }
}

void BlockLists::Take(Arena::Scope& scratch) {
  values_ = scratch.Array<float>(entries_ * width_);
  index_ = scratch.Array<int32_t>(entries_);
  starts_ = scratch.Array<int32_t>(lists_ + 1);
}

void BlockLists::Fill() const {
  switch (variant_) {
    case Variant::kRow:
      return FillRowLists(level_, rows_, k_block_, entries_, values_, index_, starts_);
    case Variant::kTile8:
    case Variant::kTile32:
      FillTileLists(level_, rows_, width_, entries_, values_, index_, starts_);
      break;
    default:
      FillBlockLists(rows_, width_, values_, index_, starts_);
  }
  if (relu_) Relu(values_, entries_ * width_, values_);  // dead elements came along
}

void BlockLists::Run(const ListKernels& kernels, const Panels& b, const Target& target,
                     int64_t panel_begin, int64_t panel_end) const {
  const bool row = variant_ == Variant::kRow;
  const bool tile = variant_ == Variant::kTile8 || variant_ == Variant::kTile32;
  KernelCall call;
  if (row) {
    call.Floats(values_, {entries_});
  } else {
    call.Floats(values_, {entries_, width_});
  }
  call.Int32s(index_, {entries_}).Int32s(starts_, {lists_ + 1});
  call.Floats(b.data, {b.count, b.k, b.width}).Floats(b.bias, {b.count * b.width});
  if (target.residual) call.Floats(target.residual, {rows_.Count(), target.n});
  call.Int32s(target.rows, {rows_.Count()});
  call.Floats(target.data, {target.stored, target.n});
  if (row) call.Int(KBlocks());
  call.Int(panel_begin).Int(panel_end);
  call.Run(row ? kernels.row : tile ? kernels.tile : kernels.block);
}

void Relu(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] < 0 ? 0 : x[i];
}

}  // namespace pitc

// The lists of one block of rows of a sparse operand, and the kernels that read them.
#pragma once

#include "detect/micro_tiles.h"
#include "ops/gemm_operands.h"
#include "select/selector.h"

namespace pitc {

// One kernel per family of micro-tiles; none where no zeros are skipped.
struct ListKernels {
  Kernel row, tile, block;

  explicit operator bool() const { return row.function != nullptr; }
};

class BlockLists {
 public:
  // `k_block`: how many k share a list of a row: a divisor of kFold, or all.
  BlockLists(const Primitives& simd, Variant variant, const DetectedRows& rows, int64_t k_block);

  // In this order: counts entries, or is told what lives; is given so many bytes of memory for
  // them, 64-byte aligned, and makes them there.
  void Count();
  void Count(const MicroTileCounts& live);
  int64_t Bytes() const;
  void Take(char* memory);
  void Fill() const;

  int64_t Rows() const { return rows_.Count(); }

  // Panels panel_begin..panel_end of the rows' product, whose target rows and residual are given.
  void Run(const ListKernels& kernels, const Panels& b, const Target& target, int64_t panel_begin,
           int64_t panel_end) const;

 private:
  int64_t KBlocks() const { return (rows_.K() + k_block_ - 1) / k_block_; }
  // How many k blocks are a block of sums, where there are several.
  int64_t OfSums() const { return kFold / k_block_; }
  bool IsRow() const { return record_.cut == Cut::kRow; }
  bool IsTile() const { return record_.cut == Cut::kTile; }

  const Primitives& simd_;
  const VariantRecord& record_;
  DetectedRows rows_;
  int64_t k_block_;
  int64_t width_, lists_ = 0, entries_ = 0;
  float* values_ = nullptr;
  int32_t *index_ = nullptr, *starts_ = nullptr;
};

}  // namespace pitc

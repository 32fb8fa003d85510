#include "split.h"

#include <algorithm>

namespace pitc {
namespace {

// Measured with generated kernels on one core: blocks of 96 to 192 rows are equal, tasks of all
// panels are up to a tenth slower when B is larger than the second-level cache.
constexpr int64_t kRowBlock = 96;                   // 16 register tiles of 6 rows
constexpr int64_t kRowUnit = 12;                    // only the last block has a partial tile
constexpr int64_t kPanelFloats = int64_t{1} << 18;  // 1 MiB of B
constexpr int64_t kLeastColumns = 256;              // but so many columns at least
constexpr double kSerialFlops = 4e6;                // about 20 us on one thread

}  // namespace

GemmSplit SplitGemm(int64_t rows, int64_t k, int64_t panels, int64_t width) {
  const double flops = 2.0 * static_cast<double>(rows) * static_cast<double>(k) *
                       static_cast<double>(panels * width);
  if (flops < kSerialFlops)
    return {{rows, std::max<int64_t>(rows, 1)}, {panels, std::max<int64_t>(panels, 1)}, false};
  const int64_t by_columns = (kLeastColumns + width - 1) / width;
  const int64_t by_cache = kPanelFloats / std::max<int64_t>(k * width, 1);
  return {EvenBlocks(rows, kRowBlock, kRowUnit),
          EvenBlocks(panels, std::max(by_columns, by_cache), 1), true};
}

GemmSplit::Part GemmSplit::At(int64_t task) const {
  const int64_t panel = task / rows.Count(), row = task % rows.Count();
  return {rows.Begin(row), rows.End(row), panels.Begin(panel), panels.End(panel)};
}

AttentionSplit::AttentionSplit(const int32_t* q_offsets, int64_t sequences, int64_t heads,
                               int64_t* first_task)
    : q_offsets_(q_offsets), sequences_(sequences), first_task_(first_task) {
  first_task[0] = 0;
  for (int64_t s = 0; s < sequences; ++s) {
    const Blocks blocks = EvenBlocks(q_offsets[s + 1] - q_offsets[s], kQueryBlock, kQueryUnit);
    first_task[s + 1] = first_task[s] + blocks.Count() * heads;
  }
}

AttentionSplit::Part AttentionSplit::At(int64_t task) const {
  const int64_t* after = std::upper_bound(first_task_, first_task_ + sequences_ + 1, task);
  const int64_t s = after - first_task_ - 1, local = task - first_task_[s];
  const Blocks blocks = EvenBlocks(q_offsets_[s + 1] - q_offsets_[s], kQueryBlock, kQueryUnit);
  const int64_t block = local % blocks.Count(), start = q_offsets_[s];
  return {s, local / blocks.Count(), start + blocks.Begin(block), start + blocks.End(block)};
}

}  // namespace pitc

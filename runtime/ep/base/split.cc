#include "base/split.h"

#include <algorithm>

namespace pitc {
namespace {

// Measured with generated kernels on one core: blocks of 96 to 192 rows are equal, tasks of all
// panels are up to a tenth slower when B is larger than the second-level cache; of bfloat16 they
// are the fastest (Zen 4). A matrix unit is so fast that B must be read rarely.
constexpr int64_t kRowBlock = 96;  // 16 register tiles of 6 rows
constexpr int64_t kRowUnit = 12;   // only the last block has a partial tile
constexpr int64_t kTiledRows = 512, kTileUnit = 32;
constexpr int64_t kPanelFloats = int64_t{1} << 18;  // 1 MiB of B
constexpr int64_t kLeastColumns = 256;              // but so many columns at least
constexpr int64_t kThreadTasks = 4;  // of each thread: the last one to end is not far behind
constexpr int64_t kLeastRows = 24;   // of a task, where threads are many

// The same for lists. One thread gains nothing from short blocks, and reads B once per block.
constexpr int64_t kListRows = 2048;
constexpr int64_t kListed = int64_t{1} << 30;       // elements of A in a block
constexpr int64_t kLeastListed = int64_t{1} << 14;  // that are worth a block
constexpr int64_t kThreadBlocks = 2;                // of each thread, as making lists takes long
constexpr int64_t kSharedRows = 128;                // of a block, but where a thread had none
constexpr int64_t kLeastTaskPanels = 2;             // that a kernel does at once

// Where rows are made: those of a block stay in the second-level cache, or the panels of a task.
constexpr int64_t kMadeListed = int64_t{3} << 17;
constexpr int64_t kLeastMadeRows = 64;  // fewer share too little of B
constexpr int64_t kNearPanelFloats = int64_t{1} << 17;

}  // namespace

GemmSplit SplitGemm(int64_t rows, int64_t k, int64_t panels, int64_t width, int threads,
                    Multiplier multiplier) {
  if (GemmFlops(rows, k, panels * width) < kSerialFlops)
    return {{rows, std::max<int64_t>(rows, 1)}, {panels, std::max<int64_t>(panels, 1)}, false};
  const int64_t by_columns = (kLeastColumns + width - 1) / width;
  const int64_t by_cache = kPanelFloats / std::max<int64_t>(k * width, 1);
  const bool tiles = multiplier == Multiplier::kTiles;
  const int64_t unit = tiles ? kTileUnit : kRowUnit;
  int64_t most_rows = tiles ? kTiledRows : kRowBlock, most_panels = std::max(by_columns, by_cache);
  if (multiplier != Multiplier::kFloats) most_panels = panels;
  const auto split = [&] {
    return GemmSplit{EvenBlocks(rows, most_rows, unit), EvenBlocks(panels, most_panels, 1),
                     threads > 1};
  };
  const auto few = [&] { return threads > 1 && split().Count() < kThreadTasks * threads; };
  while (few() && most_panels > 1) most_panels = (most_panels + 1) / 2;
  while (few() && most_rows > kLeastRows) most_rows /= 2;
  return split();
}

ListSplit SplitLists(int64_t rows, int64_t k, int64_t panels, int64_t unit, int64_t task_panels,
                     int threads) {
  int64_t most = std::max(unit, std::min(kListRows, kListed / k / unit * unit));
  if (threads > 1) {
    const int64_t wanted = kThreadTasks * threads;
    const auto groups = [&] { return (panels + task_panels - 1) / task_panels; };
    if (EvenBlocks(rows, most, unit).Count() * groups() < wanted)
      task_panels = std::min(task_panels, kLeastTaskPanels);
    if ((rows + kListUnit - 1) / kListUnit * groups() < wanted) task_panels = 1;
    const int64_t fitting = std::max<int64_t>(threads, rows / kSharedRows);
    const int64_t blocks =
        std::max(std::min(kThreadBlocks * threads, fitting), (wanted + groups() - 1) / groups());
    if (rows / blocks < unit) unit = kListUnit;
    const int64_t worth = (kLeastListed / k + unit - 1) / unit * unit;
    most = std::min(most, std::max({unit, worth, rows / blocks / unit * unit}));
  }
  const Blocks blocks = EvenBlocks(rows, most, unit);
  Numbered(std::min(rows, blocks.size) * k, "elements in a block of lists");
  return {blocks, {panels, task_panels}};
}

ListSplit SplitMadeLists(int64_t rows, int64_t k, int64_t panels, int64_t width, int64_t unit,
                         int64_t task_panels, int threads) {
  int64_t most = kMadeListed / k;
  if (threads > 1) most = std::min(most, rows / (kThreadTasks * threads));
  const Blocks blocks = EvenBlocks(rows, std::max(kLeastMadeRows, most / unit * unit), unit);
  if (threads > 1 && blocks.Count() < kThreadTasks * threads) {
    task_panels = std::clamp<int64_t>(kNearPanelFloats / (k * width), 1, task_panels);
    return SplitLists(rows, k, panels, unit, task_panels, threads);
  }
  Numbered(std::min(rows, blocks.size) * k, "elements in a block of lists");
  return {blocks, {panels, panels}};
}

GemmSplit::Part GemmSplit::At(int64_t task) const {
  const int64_t panel = task / rows.Count(), row = task % rows.Count();
  return {rows.Begin(row), rows.End(row), panels.Begin(panel), panels.End(panel)};
}

void FindFirstBlocks(const int32_t* offsets, int64_t sequences, int64_t size, int64_t* first) {
  first[0] = 0;
  for (int64_t s = 0; s < sequences; ++s)
    first[s + 1] = first[s] + Blocks{offsets[s + 1] - offsets[s], size}.Count();
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

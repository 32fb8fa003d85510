#include "ops/sparse_operand.h"

#include <algorithm>
#include <bitset>
#include <new>
#include <type_traits>

#include "base/index.h"

namespace pitc {
namespace {

constexpr int64_t kLeastMade = 128;  // columns of rows that are made, at a time
constexpr int64_t kMadeRows = 512;   // rows
constexpr int64_t kLeastStrip = 64;
constexpr int64_t kMakes = 4;       // of each thread
constexpr int64_t kWave = 1 << 24;  // elements of A whose lists exist at the same time
constexpr int64_t kMadeWave =
    1 << 18;  // of one that is made, for each thread: they are to stay in a cache
constexpr int64_t kSerialCount = 1 << 22;  // bits

// A strip reads all its rows of a column in which one lives, and a made row may lack what lies in a
// dead piece of kListUnit rows.
constexpr bool StripsLieInPieces() {
  for (int64_t height : kStripHeights) {
    if (kListUnit % height) return false;
  }
  return true;
}
static_assert(StripsLieInPieces());

// How long k blocks of row lists are, in rows of B that are used and in entries of a row; measured.
struct NearBlocks {
  double rows;     // so many stay in the first cache, beside the rest
  double entries;  // shorter runs are not worth a block
  double most;     // with more rows they come from the second cache anyhow
  double least;    // of a block of sums; with fewer entries one list of all k costs less
};
constexpr NearBlocks kNearBlocks[] = {{64, 13, 192, 5}, {192, 20, 384, 3}};  // v4; v3, half as wide
constexpr double kFarRows = 1024;  // half of the second cache

// How many k share a list of a row: 64, 128, 192 or 384, which are parts of a block of sums, or
// all; few where many live, all where few do.
int64_t KBlock(CpuLevel level, const Work& work) {
  const NearBlocks& near = kNearBlocks[level != CpuLevel::kV4];
  const auto share = [](int64_t live, int64_t all) {
    return static_cast<double>(std::max<int64_t>(live, 1)) / static_cast<double>(all);
  };
  const double used = share(work.live_columns, work.k),
               live = share(work.counts.elements, work.k) / static_cast<double>(work.rows);
  const int64_t all = BitWords(work.k);
  if (live * static_cast<double>(kFold) < near.least) return all * 64;
  double block = std::max(near.rows / used, near.entries / live);
  if (block * used > near.most) block = std::max(block, kFarRows / used);
  const auto words = static_cast<int64_t>(std::min(block / 64 + 0.5, 1e9));
  if (2 * words > all) return all * 64;
  return words > 3 ? kFold : std::max<int64_t>(words, 1) * 64;
}

// How many stretches of pieces of `width` bits of words[0..n) have a bit that is set.
int64_t CountRuns(const uint64_t* words, int64_t n, int64_t width) {
  uint64_t firsts = 0, before = 0;  // before: the last piece of the word in front
  for (int64_t i = 0; i < 64; i += width) firsts |= uint64_t{1} << i;
  int64_t runs = 0;
  for (int64_t w = 0; w < n; ++w) {
    uint64_t any = words[w];
    for (int64_t shift = 1; shift < width; shift *= 2) any |= any >> shift;
    const uint64_t live = any & firsts, behind = width < 64 ? live << width | before : before;
    runs += static_cast<int64_t>(std::bitset<64>(live & ~behind).count());
    before = live >> (64 - width);
  }
  return runs;
}

}  // namespace

OperandRows::OperandRows(const Primitives& simd, const StoredRight& right, const Kernel& kernel)
    : simd_(simd), matrix_{right.s, nullptr, right.n, right.k, right.k}, right_(right) {
  if (right.turned && !right.factor) return;
  kernel_ = &kernel;
  matrix_.stride = (right.k + 15) / 16 * 16 + 16;  // no power of two
}

void OperandRows::Read(const Range& rows, const Range& ks, float* room, uint64_t* bits,
                       int64_t words) const {
  if (!kernel_) return MatrixBits(simd_, live_, matrix_.Part(rows, ks), bits, words);
  const int64_t count = rows.end - rows.begin;
  KernelCall call;
  right_.AddTo(&call);
  call.Floats(room, {count, matrix_.stride}).Int64s(bits, {count, words});
  call.Int(rows.begin).Int(count).Int(ks.begin).Int(ks.end);
  call.Run(*kernel_);
}

void SparseOperand::Make(const Range& all, int threads, float* room, uint64_t* bits) const {
  const int64_t k = rows_.Matrix().k, stride = rows_.Matrix().stride, words = BitWords(k);
  const int64_t made = all.end - all.begin, wanted = kMakes * threads;
  const int64_t by_columns = std::max<int64_t>(1, k / kLeastMade);
  const Blocks strips =
      EvenBlocks(made, std::clamp(made * by_columns / wanted, kLeastStrip, kMadeRows), kLeastStrip);
  const int64_t parts = std::max<int64_t>(1, wanted / strips.Count());
  const Blocks ks = EvenBlocks(k, std::max(kLeastMade, k / parts), 64);
  run_.Each(strips.Count() * ks.Count(), threads > 1, [&](int64_t task) {
    const int64_t s = task / ks.Count(), part = task % ks.Count(), begin = strips.Begin(s);
    const Range rows{all.begin + begin, all.begin + strips.End(s)};
    const Range here{ks.Begin(part), ks.End(part)};
    rows_.Read(rows, here, room + begin * stride + here.begin,
               bits + begin * words + here.begin / 64, words);
  });
}

Work SparseOperand::Unseen(int64_t panels, int64_t task_panels) const {
  const int64_t rows = rows_.Matrix().count, k = rows_.Matrix().k;
  const int threads = run_.ThreadsFor(GemmFlops(rows, k, panels * kPanelWidth));
  const ListSplit split =
      rows_.AreMade() ? SplitMadeLists(rows, k, panels, kPanelWidth, kGroup, task_panels, threads)
                      : SplitLists(rows, k, panels, kGroup, task_panels, threads);
  Work work{rows, k, panels, split.rows.size, 1, bits_ == nullptr, 0, {}};
  work.threads = threads;
  work.task_panels = split.panels.size;
  return work;
}

void SparseOperand::Count(Work* work, Arena::Scope& scratch) {
  const auto& [memory, listed, count, k, stride] = rows_.Matrix();
  const int64_t words = BitWords(k), group = kGroup, groups = (count + group - 1) / group;
  const int64_t sampled = bits_ ? groups : std::min(groups, (sampled_rows_ + group - 1) / group);
  auto* counts = scratch.Array<MicroTileCounts>(sampled);
  uint64_t* found = bits_ ? nullptr : scratch.Array<uint64_t>(sampled * group * words);
  auto* live = scratch.Array<uint64_t>(sampled * words);  // columns of each group
  std::fill_n(live, sampled * words, 0);
  const bool parallel =
      work->threads > 1 && sampled * group * k > (bits_ ? kSerialCount : SerialElements());
  const auto first_of = [=](int64_t s) { return s * groups / sampled * group; };
  const auto rows_of = [=](int64_t s) { return std::min(group, count - first_of(s)); };
  float* const room =
      found && rows_.AreMade() ? scratch.Array<float>(sampled * group * stride) : nullptr;
  const int64_t part_k = room && parallel ? k * sampled / (kMakes * work->threads) : k;
  const Blocks ks = EvenBlocks(k, std::max<int64_t>(part_k, 1), 64);
  if (found) {
    run_.Each(sampled * ks.Count(), parallel, [&](int64_t task) {
      const int64_t s = task / ks.Count(), part = task % ks.Count(), first = first_of(s);
      const Range here{ks.Begin(part), ks.End(part)};
      float* const made = room ? room + s * group * stride + here.begin : nullptr;
      rows_.Read({first, first + rows_of(s)}, here, made,
                 found + s * group * words + here.begin / 64, words);
    });
  }
  run_.Each(sampled, parallel, [&](int64_t s) {
    const uint64_t* here = bits_ ? bits_ + first_of(s) * words : found + s * group * words;
    counts[s] = {};
    simd_.count_micro_tiles(here, rows_of(s), k, live + s * words, counts + s);
  });
  int64_t rows = 0;
  for (int64_t s = 0; s < sampled; ++s) {
    work->counts += counts[s];
    rows += rows_of(s);
    for (int64_t w = 0; s > 0 && w < words; ++w) live[w] |= live[s * words + w];
  }
  MicroTileCounts columns;
  simd_.count_micro_tiles(live, 1, k, nullptr, &columns);
  work->live_columns = columns.elements;
  std::copy(std::begin(columns.segments), std::end(columns.segments), work->live_pieces);
  work->live_runs[0] = CountRuns(live, words, 1);
  for (size_t i = 0; i < std::size(kSegmentWidths); ++i)
    work->live_runs[i + 1] = CountRuns(live, words, kSegmentWidths[i]);
  if (rows < count) {
    work->counts.Scale(static_cast<double>(count), static_cast<double>(rows));
  } else {
    work->scanned = false;
    if (!bits_) bits_ = found;
    counts_ = counts;
    made_ = room;
  }
  const int64_t k_block = KBlock(simd_.level, *work);
  work->k_blocks = (k + k_block - 1) / k_block;
}

int64_t SparseOperand::PerWave(const Work& work) const {
  const int64_t most = rows_.AreMade() ? kMadeWave * work.threads : kWave;
  return std::max<int64_t>(1, most / (work.row_block * work.k));
}

const BlockLists* SparseOperand::MakeLists(Variant variant, const Work& work, int64_t first_block,
                                           int64_t count, int threads,
                                           Arena::Scope& scratch) const {
  static_assert(std::is_trivially_destructible_v<BlockLists>, "they lie in scratch memory");
  const int64_t k = rows_.Matrix().k, stride = rows_.Matrix().stride, words = BitWords(k);
  const int64_t k_block = KBlock(simd_.level, work);
  const Blocks blocks{rows_.Matrix().count, work.row_block};
  const Range all{blocks.Begin(first_block), blocks.End(first_block + count - 1)};
  const int64_t all_rows = all.end - all.begin;
  const bool parallel = threads > 1 && all_rows * k > SerialElements();
  uint64_t* const found = bits_ ? nullptr : scratch.Array<uint64_t>(all_rows * words);
  const uint64_t* const bits = bits_ ? bits_ + all.begin * words : found;
  const float* made = made_ ? made_ + all.begin * stride : nullptr;
  if (found && rows_.AreMade()) {
    auto* const room = scratch.Array<float>(all_rows * stride);
    Make(all, parallel ? threads : 1, room, found);
    made = room;
  }
  const StoredMatrix matrix =
      made ? StoredMatrix{made, nullptr, all_rows, k, stride} : rows_.Matrix().Part(all, {0, k});
  const bool told = counts_ && work.row_block % kGroup == 0;
  auto* const lists = scratch.Array<BlockLists>(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t begin = blocks.Begin(first_block + i), end = blocks.End(first_block + i);
    const Range rows{begin - all.begin, end - all.begin};
    const DetectedRows detected{matrix.Part(rows, {0, k}), bits + rows.begin * words,
                                rows_.WhatLives()};
    new (lists + i) BlockLists(simd_, variant, detected, k_block);
    if (!told) continue;
    MicroTileCounts live;
    for (int64_t g = begin / kGroup; g * kGroup < end; ++g) live += counts_[g];
    lists[i].Count(live);
  }
  if (!told) {
    run_.Each(count, parallel, [&](int64_t i) {
      const int64_t begin = blocks.Begin(first_block + i) - all.begin,
                    end = blocks.End(first_block + i) - all.begin;
      if (!made && found)
        rows_.Read({all.begin + begin, all.begin + end}, {0, k}, nullptr, found + begin * words,
                   words);
      lists[i].Count();
    });
  }
  // One piece for all: the session's allocator takes its time for each.
  int64_t bytes = 0;
  for (int64_t i = 0; i < count; ++i) bytes += lists[i].Bytes();
  auto* memory = scratch.Array<char>(bytes);
  for (int64_t i = 0; i < count; memory += lists[i++].Bytes()) lists[i].Take(memory);
  run_.Each(count, parallel, [&](int64_t i) { lists[i].Fill(); });
  return lists;
}

}  // namespace pitc

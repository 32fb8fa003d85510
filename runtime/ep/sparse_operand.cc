#include "sparse_operand.h"

#include <algorithm>
#include <bitset>
#include <vector>

#include "index.h"

namespace pitc {
namespace {

constexpr int64_t kGroup = 32;         // rows of the highest micro-tile
constexpr int64_t kColumnGroup = 64;   // rows of an A stored by columns that share its lines
constexpr int64_t kScanColumns = 512;  // of such an A: bits of a line
constexpr int64_t kListRows = 2048;    // rows that share lists, and a pass over B
constexpr int64_t kListed = 1 << 30;   // elements of A per block of rows: lists count in int32
constexpr int64_t kWave = 1 << 24;     // elements of A whose lists exist at the same time
constexpr double kSerialSteps = 3e4;
constexpr int64_t kSerialCount = 1 << 22;  // bits

int64_t RowsPerBlock(int64_t rows, int64_t k) {
  const int64_t most = std::max(kGroup, std::min(kListRows, kListed / k / kGroup * kGroup));
  return EvenBlocks(rows, most, kGroup).size;
}

// How long k blocks of row lists are, in rows of B that are used and in entries of a row; measured.
struct NearBlocks {
  double rows;     // so many stay in the first cache, beside the rest
  double entries;  // shorter runs are not worth a block
  double most;     // with more rows they come from the second cache anyhow
};
constexpr NearBlocks kNearBlocks[] = {{64, 13, 192}, {192, 20, 384}};  // v4; v3, half as wide
constexpr double kFarRows = 1024;                                      // half of the second cache

// How many k share a list of a row, a multiple of 64: few where many live.
int64_t KBlock(CpuLevel level, const Work& work) {
  const NearBlocks& near = kNearBlocks[level != CpuLevel::kV4];
  const auto share = [](int64_t live, int64_t all) {
    return static_cast<double>(std::max<int64_t>(live, 1)) / static_cast<double>(all);
  };
  const double used = share(work.live_columns, work.k),
               live = share(work.counts.elements, work.k) / static_cast<double>(work.rows);
  double block = std::max(near.rows / used, near.entries / live);
  if (block * used > near.most) block = std::max(block, kFarRows / used);
  const auto words = static_cast<int64_t>(std::min(block / 64 + 0.5, 1e9));
  const int64_t all = BitWords(work.k);
  return (2 * words > all ? all : std::max<int64_t>(words, 1)) * 64;
}

// What `found` of `rows` rows would be of `all`.
int64_t Scaled(int64_t found, int64_t rows, int64_t all) {
  return static_cast<int64_t>(static_cast<double>(found) * static_cast<double>(all) /
                              static_cast<double>(rows));
}

void Scale(MicroTileCounts* counts, int64_t rows, int64_t all) {
  counts->elements = Scaled(counts->elements, rows, all);
  for (int64_t& n : counts->strips) n = Scaled(n, rows, all);
  for (int64_t& n : counts->segments) n = Scaled(n, rows, all);
}

// Stretches of bits of words[0..n) that are set, and of pieces of 16, 32 and 64 bits with one.
void CountRuns(const uint64_t* words, int64_t n, int64_t* runs) {
  constexpr uint64_t kFirst16 = 0x0001000100010001, kFirst32 = 0x0000000100000001;
  uint64_t before[4] = {};  // the last piece of the word in front
  for (int64_t w = 0; w < n; ++w) {
    uint64_t any = words[w];
    for (int shift = 1; shift < 16; shift *= 2) any |= any >> shift;
    const uint64_t live16 = any & kFirst16, live32 = (live16 | live16 >> 16) & kFirst32;
    const uint64_t live[] = {words[w], live16, live32, words[w] != 0};
    for (int i = 0; i < 4; ++i) {
      const int width = i == 0 ? 1 : 8 << i;
      const uint64_t behind = width < 64 ? live[i] << width | before[i] : before[i];
      runs[i] += static_cast<int64_t>(std::bitset<64>(live[i] & ~behind).count());
      before[i] = width < 64 ? live[i] >> (64 - width) : live[i];
    }
  }
}

}  // namespace

void SparseOperand::Scan(const Range& rows, const Range& ks, uint64_t* bits) const {
  MatrixBits(level_, relu_ ? Live::kPositive : Live::kNotZero, matrix_, rows, ks, bits);
}

void SparseOperand::ScanAll(const Range& rows, uint64_t* bits) const {
  const int64_t count = rows.end - rows.begin, k = matrix_.k;
  const bool parallel = count * k > kSerialScan;
  if (matrix_.columns) {
    const Blocks parts{k, kScanColumns};
    return run_.Each(parts.Count(), parallel,
                     [&](int64_t p) { Scan(rows, {parts.Begin(p), parts.End(p)}, bits); });
  }
  const Blocks groups{count, kGroup};
  run_.Each(groups.Count(), parallel, [&](int64_t g) {
    const Range here{rows.begin + groups.Begin(g), rows.begin + groups.End(g)};
    Scan(here, {0, k}, bits + groups.Begin(g) * BitWords(k));
  });
}

Work SparseOperand::Unseen(int64_t panels) const {
  const int64_t block = RowsPerBlock(matrix_.count, matrix_.k);
  return {matrix_.count, matrix_.k, panels, block, 1, bits_ == nullptr, 0, {}};
}

void SparseOperand::Count(Work* work, Arena::Scope& scratch) {
  const int64_t count = matrix_.count, k = matrix_.k, words = BitWords(k);
  const int64_t group = matrix_.columns ? kColumnGroup : kGroup;
  const int64_t groups = (count + group - 1) / group;
  const int64_t sampled = bits_ ? groups : std::min(groups, (sampled_rows_ + group - 1) / group);
  auto* counts = scratch.Array<MicroTileCounts>(sampled);
  uint64_t* found = bits_ ? nullptr : scratch.Array<uint64_t>(sampled * group * words);
  auto* live = scratch.Array<uint64_t>(sampled * words);  // columns of each group
  std::fill_n(live, sampled * words, 0);
  const bool parallel = sampled * group * k > (bits_ ? kSerialCount : kSerialScan);
  const auto first_of = [=](int64_t s) { return s * groups / sampled * group; };
  const auto rows_of = [=](int64_t s) { return std::min(group, count - first_of(s)); };
  run_.Each(sampled, parallel, [&](int64_t s) {
    const uint64_t* here = bits_ ? bits_ + first_of(s) * words : found + s * group * words;
    const Range here_rows{first_of(s), first_of(s) + rows_of(s)};
    if (!bits_) Scan(here_rows, {0, k}, found + s * group * words);
    counts[s] = CountMicroTiles(level_, here, rows_of(s), k, live + s * words);
  });
  int64_t rows = 0;
  for (int64_t s = 0; s < sampled; ++s) {
    work->counts += counts[s];
    rows += rows_of(s);
    for (int64_t w = 0; s > 0 && w < words; ++w) live[w] |= live[s * words + w];
  }
  work->live_columns = CountBits(level_, live, words);
  const MicroTileCounts columns = CountMicroTiles(level_, live, 1, k);
  std::copy_n(columns.segments, 3, work->live_pieces);
  CountRuns(live, words, work->live_runs);
  if (rows < count) {
    Scale(&work->counts, rows, count);
  } else {
    work->scanned = false;
    if (!bits_) bits_ = found;
  }
  const int64_t k_block = KBlock(level_, *work);
  work->k_blocks = (k + k_block - 1) / k_block;
}

void SparseOperand::Each(Variant variant, const Work& work, int64_t task_panels,
                         const Task& task) const {
  const int64_t words = BitWords(matrix_.k);
  const Blocks blocks{matrix_.count, work.row_block};
  const int64_t per_wave = std::max<int64_t>(1, kWave / (blocks.size * matrix_.k));
  const double steps = FeaturesOf(variant, work).amount[static_cast<int>(Feature::kSteps)];
  const bool parallel = steps > kSerialSteps;
  for (int64_t wave = 0; wave < blocks.Count(); wave += per_wave) {
    Arena::Scope scratch;
    const int64_t count = std::min(per_wave, blocks.Count() - wave);
    const int64_t first = blocks.Begin(wave), last = blocks.End(wave + count - 1);
    const uint64_t* here = bits_ ? bits_ + first * words : nullptr;
    if (!bits_) {
      auto* found = scratch.Array<uint64_t>((last - first) * words);
      ScanAll({first, last}, found);
      here = found;
    }
    std::vector<BlockLists> lists;
    for (int64_t i = wave; i < wave + count; ++i) {
      const int64_t begin = blocks.Begin(i);
      const StoredMatrix part = matrix_.Part(begin, blocks.End(i) - begin);
      const DetectedRows rows{part, here + (begin - first) * words};
      lists.emplace_back(level_, variant, rows, KBlock(level_, work), relu_);
    }
    run_.Each(count, true, [&](int64_t i) { lists[i].Count(); });
    for (BlockLists& l : lists) l.Take(scratch);
    run_.Each(count, true, [&](int64_t i) { lists[i].Fill(); });

    const Blocks panels{work.panels, parallel ? task_panels : work.panels};
    run_.Each(count * panels.Count(), parallel, [&](int64_t t) {
      const int64_t i = t % count, p = t / count;
      task(lists[i], blocks.Begin(wave + i), panels.Begin(p), panels.End(p));
    });
  }
}

}  // namespace pitc

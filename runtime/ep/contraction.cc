#include "contraction.h"

#include <algorithm>
#include <bitset>
#include <chrono>
#include <vector>

#include "index.h"

namespace pitc {
namespace {

constexpr int64_t kGroup = 32;          // rows of the highest micro-tile
constexpr int64_t kListRows = 2048;     // rows that share lists, and a pass over B
constexpr double kRunEntries = 13;      // of a row in a k block, measured: B stays near, runs long
constexpr int64_t kListed = 1 << 30;    // elements of A per block of rows: lists count in int32
constexpr int64_t kWave = 1 << 24;      // elements of A whose lists exist at the same time
constexpr int64_t kSampledGroups = 16;  // at least
constexpr int64_t kSampledShare = 16;   // one group in so many
constexpr int64_t kTaskPanels = 4;
// Below these, one thread is done sooner than others wake up.
constexpr double kSerialSteps = 3e4;
constexpr int64_t kSerialScan = 1 << 17;   // elements
constexpr int64_t kSerialCount = 1 << 22;  // bits

constexpr int64_t kTileHeights[] = {8, 32}, kBlockWidths[] = {16, 32, 64};

int64_t RowsPerBlock(int64_t rows, int64_t k) {
  const int64_t most = std::max(kGroup, std::min(kListRows, kListed / k / kGroup * kGroup));
  return EvenBlocks(rows, most, kGroup).size;
}

// How many k share a list of a row: few where many are live, a multiple of 64.
int64_t KBlock(const Work& work) {
  const double live = static_cast<double>(std::max<int64_t>(work.counts.elements, 1)) /
                      (static_cast<double>(work.rows) * static_cast<double>(work.k));
  const auto words = static_cast<int64_t>(std::min(kRunEntries / live / 64 + 0.5, 1e9));
  const int64_t all = BitWords(work.k);
  return (2 * words > all ? all : std::max<int64_t>(words, 1)) * 64;
}

double Microseconds(std::chrono::steady_clock::duration d) {
  return std::chrono::duration<double, std::micro>(d).count();
}

// max(x, 0); NaN stays NaN.
void Relu(const float* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] < 0 ? 0 : x[i];
}

// The lists of one block of rows, and the kernel that reads them.
class BlockLists {
 public:
  BlockLists(CpuLevel level, Variant variant, const DetectedRows& rows, int64_t k_block, bool relu)
      : level_(level), variant_(variant), rows_(rows), k_block_(k_block), relu_(relu) {}

  // Counts entries, so that memory can be taken.
  void Count() {
    switch (variant_) {
      case Variant::kRow:
        entries_ = CountBits(level_, rows_.bits, rows_.count * BitWords(rows_.k));
        lists_ = rows_.count * KBlocks();
        break;
      case Variant::kTile8:
      case Variant::kTile32:
        width_ = kTileHeights[variant_ == Variant::kTile32];
        entries_ = CountStrips(level_, rows_.bits, rows_.count, rows_.k, width_);
        lists_ = (rows_.count + width_ - 1) / width_;
        break;
      default: {
        const int place = static_cast<int>(variant_) - static_cast<int>(Variant::kBlock16);
        width_ = kBlockWidths[place];
        entries_ = CountMicroTiles(level_, rows_.bits, rows_.count, rows_.k).segments[place];
        lists_ = (rows_.k + width_ - 1) / width_;
      }
    }
  }

  void Take(Arena::Scope& scratch) {
    values_ = scratch.Array<float>(entries_ * width_);
    index_ = scratch.Array<int32_t>(entries_);
    starts_ = scratch.Array<int32_t>(lists_ + 1);
  }

  void Fill() const {
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

  // Panels panel_begin..panel_end of rows first.. of the product.
  void Run(const ContractionKernels& kernels, int64_t first, const Panels& b, const Target& target,
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
    if (target.residual) call.Floats(target.residual + first * target.n, {rows_.count, target.n});
    call.Int32s(target.rows + first, {rows_.count});
    call.Floats(target.data, {target.stored, target.n});
    if (row) call.Int(KBlocks());
    call.Int(panel_begin).Int(panel_end);
    call.Run(row ? kernels.row : tile ? kernels.tile : kernels.block);
  }

 private:
  int64_t KBlocks() const { return (rows_.k + k_block_ - 1) / k_block_; }

  CpuLevel level_;
  Variant variant_;
  DetectedRows rows_;
  int64_t k_block_;
  bool relu_;
  int64_t entries_ = 0, width_ = 1, lists_ = 0;
  float* values_ = nullptr;
  int32_t *index_ = nullptr, *starts_ = nullptr;
};

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

// Rows `first`.. of the left operand, in bits.
void Scan(CpuLevel level, const LeftRows& left, int64_t first, int64_t count, uint64_t* bits) {
  const Live live = left.relu ? Live::kPositive : Live::kNotZero;
  for (int64_t r = 0; r < count; ++r) {
    LiveBits(level, live, left.data + left.rows[first + r] * left.k, left.k,
             bits + r * BitWords(left.k));
  }
}

// The rows in a place of their own, without what is below 0.
LeftRows Relu(const RunContext& run, const LeftRows& left, Arena::Scope& scratch) {
  auto* data = scratch.Array<float>(left.count * left.k);
  const Blocks groups{left.count, kGroup};
  run.Each(groups.Count(), left.count * left.k > kSerialScan, [&](int64_t g) {
    for (int64_t r = groups.Begin(g); r < groups.End(g); ++r)
      Relu(left.data + left.rows[r] * left.k, left.k, data + r * left.k);
  });
  return {data, left.count, left.k, Identity(left.count, scratch), left.count};
}

}  // namespace

void Contraction::Run(const RunContext& run, const LeftRows& left, const uint64_t* bits,
                      const Panels& b, const Target& target) const {
  if (left.count == 0) return;
  Arena::Scope scratch;
  Work work{left.count, left.k,          b.count, RowsPerBlock(left.count, left.k),
            1,          bits == nullptr, 0,       {}};
  if (OffersSparse()) bits = Measure(run, left, bits, scratch, &work);
  const int64_t k_block = KBlock(work);
  work.k_blocks = (left.k + k_block - 1) / k_block;
  Choice choice = Select(costs_, work);
  if (options_.variant && costs_.lines[static_cast<int>(*options_.variant)].offered)
    choice.variant = *options_.variant;
  const auto start = std::chrono::steady_clock::now();
  if (choice.variant == Variant::kDense) {
    RunGatherGemm(run, kernels_.dense, left.relu ? Relu(run, left, scratch) : left, b, target);
  } else {
    RunSparse(run, left, bits, b, target, work, choice.variant);
  }
  if (options_.trace) {
    const double measured_us = Microseconds(std::chrono::steady_clock::now() - start);
    options_.trace->Write(options_.node, work, choice, measured_us);
  }
}

bool Contraction::OffersSparse() const {
  const auto* sparse = costs_.lines + 1;
  return std::any_of(sparse, costs_.lines + kVariants, [](const auto& l) { return l.offered; });
}

// Counts all bits where there are any or A is small; else those of some groups of rows, the same
// ones for every A of that size.
const uint64_t* Contraction::Measure(const RunContext& run, const LeftRows& left,
                                     const uint64_t* bits, Arena::Scope& scratch,
                                     Work* work) const {
  const int64_t words = BitWords(left.k), groups = (left.count + kGroup - 1) / kGroup;
  const int64_t sampled =
      bits ? groups : std::min(groups, std::max(kSampledGroups, groups / kSampledShare));
  auto* counts = scratch.Array<MicroTileCounts>(sampled);
  uint64_t* found = bits ? nullptr : scratch.Array<uint64_t>(sampled * kGroup * words);
  auto* live = scratch.Array<uint64_t>(sampled * words);  // columns of each group
  std::fill_n(live, sampled * words, 0);
  const bool parallel = sampled * kGroup * left.k > (bits ? kSerialCount : kSerialScan);
  const auto first_of = [=](int64_t s) { return s * groups / sampled * kGroup; };
  const auto rows_of = [=, &left](int64_t s) { return std::min(kGroup, left.count - first_of(s)); };
  run.Each(sampled, parallel, [&](int64_t s) {
    const uint64_t* here = bits ? bits + first_of(s) * words : found + s * kGroup * words;
    if (!bits) Scan(level_, left, first_of(s), rows_of(s), found + s * kGroup * words);
    counts[s] = CountMicroTiles(level_, here, rows_of(s), left.k, {}, live + s * words);
  });
  int64_t rows = 0;
  for (int64_t s = 0; s < sampled; ++s) {
    work->counts += counts[s];
    rows += rows_of(s);
    for (int64_t w = 0; s > 0 && w < words; ++w) live[w] |= live[s * words + w];
  }
  work->live_columns = CountBits(level_, live, words);
  const MicroTileCounts columns = CountMicroTiles(level_, live, 1, left.k);
  std::copy_n(columns.segments, 3, work->live_pieces);
  CountRuns(live, words, work->live_runs);
  if (rows < left.count) {
    Scale(&work->counts, rows, left.count);
    return nullptr;
  }
  work->scanned = false;
  return bits ? bits : found;
}

void Contraction::RunSparse(const RunContext& run, const LeftRows& left, const uint64_t* bits,
                            const Panels& b, const Target& target, const Work& work,
                            Variant variant) const {
  const int64_t words = BitWords(left.k);
  const Blocks blocks{left.count, RowsPerBlock(left.count, left.k)};
  const int64_t per_wave = std::max<int64_t>(1, kWave / (blocks.size * left.k));
  const double steps = FeaturesOf(variant, work).amount[static_cast<int>(Feature::kSteps)];
  const bool parallel = steps > kSerialSteps;
  for (int64_t wave = 0; wave < blocks.Count(); wave += per_wave) {
    Arena::Scope scratch;
    const int64_t count = std::min(per_wave, blocks.Count() - wave);
    const int64_t first = blocks.Begin(wave), last = blocks.End(wave + count - 1);
    const uint64_t* here = bits ? bits + first * words : nullptr;
    if (!bits) {
      auto* found = scratch.Array<uint64_t>((last - first) * words);
      const Blocks groups{last - first, kGroup};
      run.Each(groups.Count(), (last - first) * left.k > kSerialScan, [&](int64_t g) {
        const int64_t at = groups.Begin(g);
        Scan(level_, left, first + at, groups.End(g) - at, found + at * words);
      });
      here = found;
    }
    std::vector<BlockLists> lists;
    for (int64_t i = wave; i < wave + count; ++i) {
      const int64_t begin = blocks.Begin(i), rows = blocks.End(i) - begin;
      lists.emplace_back(
          level_, variant,
          DetectedRows{left.data, left.rows + begin, here + (begin - first) * words, rows, left.k},
          KBlock(work), left.relu);
    }
    run.Each(count, true, [&](int64_t i) { lists[i].Count(); });
    for (BlockLists& l : lists) l.Take(scratch);
    run.Each(count, true, [&](int64_t i) { lists[i].Fill(); });

    const Blocks panels{b.count, parallel ? kTaskPanels : b.count};
    run.Each(count * panels.Count(), parallel, [&](int64_t task) {
      const int64_t i = task % count, p = task / count;
      lists[i].Run(kernels_, blocks.Begin(wave + i), b, target, panels.Begin(p), panels.End(p));
    });
  }
}

}  // namespace pitc

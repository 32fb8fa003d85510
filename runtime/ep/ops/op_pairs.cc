// pairs: for each kListedQueries queries of a sequence the keys that one of them sees, and which of
// them do.
//
//     queries 0, 1 of 2     keys 0, 1, 2     hidden where key - query - 1 >= 0
//     ->   keys 0, 1     seen_by 0b11, 0b10     tiles [0, 2]
#include <algorithm>
#include <array>

#include "base/index.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr int64_t kChunk = 64;  // keys that are looked at together
constexpr int64_t kBlockFlags = int64_t{1} << 16, kSerialFlags = int64_t{1} << 18;
constexpr double kPairFlops = 5;             // operations that take as long as a look at a pair
using Words = std::array<uint32_t, kChunk>;  // of each key, bits of queries

enum class Holds { kNowhere, kSomewhere, kEverywhere };

// query * x + key * y + z >= 0
struct PositionTest {
  int64_t query, key, constant;

  Holds Over(int64_t q0, int64_t q1, int64_t k0, int64_t k1) const {
    const auto of_q = std::minmax({query * q0, query * q1});
    const auto of_k = std::minmax({key * k0, key * k1});
    if (of_q.first + of_k.first + constant >= 0) return Holds::kEverywhere;
    return of_q.second + of_k.second + constant < 0 ? Holds::kNowhere : Holds::kSomewhere;
  }
};

// Points of one side of a sequence: their positions ascend.
struct Points {
  const int32_t* positions;
  int64_t count;
  bool InARow() const { return positions[count - 1] - positions[0] == count - 1; }
};

bool Bit(const uint64_t* bits, int64_t at) { return (bits[at / 64] >> at % 64 & 1) != 0; }

// 64 bits from one on, of so many words; behind these there are none.
uint64_t BitsFrom(const uint64_t* bits, int64_t words, int64_t first) {
  const int64_t word = first / 64, shift = first % 64;
  const uint64_t low = bits[word] >> shift;
  return shift == 0 || word + 1 == words ? low : low | bits[word + 1] << (64 - shift);
}

// The 32 x 32 bits of rows, as columns.
void Transpose(uint32_t* rows) {
  uint32_t mask = 0xffff;
  for (int width = 16; width != 0; width /= 2, mask ^= mask << width) {
    for (int i = 0; i < 32; i = ((i | width) + 1) & ~width) {
      const uint32_t moved = ((rows[i] >> width) ^ rows[i | width]) & mask;
      rows[i] ^= moved << width;
      rows[i | width] ^= moved;
    }
  }
}

class Pairs final : public Operation {
 public:
  Pairs(const PairsPlan& plan, const Primitives& simd) : plan_(plan), simd_(simd) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return PairsPlan::kOutputs; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const Sight sight = Read(run, scratch);
    auto* const first_tile = scratch.Array<int64_t>(sight.sequences + 1);
    FindFirstBlocks(sight.q_offsets, sight.sequences, kListedQueries, first_tile);
    const int64_t count = Numbered(first_tile[sight.sequences], "tiles of queries");
    auto* const counts = scratch.Array<int64_t>(count);
    Each(run, sight, first_tile,
         [&](int64_t tile, const Tile& at) { counts[tile] = List(sight, at, nullptr, nullptr); });
    auto* const tiles = static_cast<int32_t*>(run.Output(2, {count, 2}, sizeof(int32_t), scratch));
    int64_t entries = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t listed = std::max<int64_t>(counts[i], 0);
      counts[i] = counts[i] < 0 ? -1 : entries;
      tiles[2 * i] = static_cast<int32_t>(entries);
      entries = Numbered(entries + listed, "keys in lists");
      tiles[2 * i + 1] = static_cast<int32_t>(counts[i] < 0 ? -1 : listed);
    }
    auto* const keys = static_cast<int32_t*>(run.Output(0, {entries}, sizeof(int32_t), scratch));
    auto* const seen_by = static_cast<int32_t*>(run.Output(1, {entries}, sizeof(int32_t), scratch));
    Each(run, sight, first_tile, [&](int64_t tile, const Tile& at) {
      if (counts[tile] >= 0) List(sight, at, keys + counts[tile], seen_by + counts[tile]);
    });
  }

 private:
  // Flags that tests look at, as bits: [tests, sequences, rows, BitWords(columns)].
  struct Flags {
    const uint64_t* bits;
    int64_t rows, columns;

    const uint64_t* Of(int64_t test, int64_t sequences, int64_t s) const {
      return bits + (test * sequences + s) * rows * BitWords(columns);
    }
  };

  struct Sight {
    int64_t sequences;
    const int32_t *q_offsets, *k_offsets, *q_positions, *k_positions;
    const PositionTest* tests;
    Flags of_keys, of_queries, of_pairs;
  };

  struct Tile {
    int64_t sequence;
    Points queries, keys;  // of the sequence
  };

  template <class Task>
  void Each(const RunContext& run, const Sight& sight, const int64_t* first_tile,
            const Task& task) const {
    const int64_t count = first_tile[sight.sequences];
    const double flops = kPairFlops * static_cast<double>(kListedQueries) *
                         static_cast<double>(count) *
                         static_cast<double>(sight.k_offsets[sight.sequences]);
    run.Each(count, flops > kSerialFlops, [&](int64_t tile) {
      const int64_t* const after =
          std::upper_bound(first_tile, first_tile + sight.sequences + 1, tile);
      const int64_t s = after - first_tile - 1, first = (tile - first_tile[s]) * kListedQueries;
      const int64_t begin = sight.q_offsets[s] + first, k0 = sight.k_offsets[s];
      task(tile, Tile{s,
                      {sight.q_positions + begin,
                       std::min(kListedQueries, sight.q_offsets[s + 1] - begin)},
                      {sight.k_positions + k0, sight.k_offsets[s + 1] - k0}});
    });
  }

  Sight Read(const RunContext& run, Arena::Scope& scratch) const {
    const PairsPlan::Inputs in = plan_.Places();
    Sight sight{};
    const Tensor q_list = run.Int32Input(in.q_offsets, "q_offsets", {-1});
    sight.sequences = q_list.shape.dims[0] - 1;
    Expect(sight.sequences >= 0, q_list, "of one element or more");
    const Tensor k_list = run.Int32Input(in.k_offsets, "k_offsets", {sight.sequences + 1});
    const auto read = [&](const Tensor& list, int place, const char* role, const char* points,
                          const int32_t** offsets, const int32_t** positions) {
      const Tensor coords = run.Int32Input(place, role, {plan_.rank, -1});
      const int64_t count = coords.shape.dims[1];
      *offsets = run.Copy(list, sight.sequences + 1, scratch);
      CheckOffsets(*offsets, sight.sequences, count, points);
      *positions = CopyOf(coords.Int32s() + (plan_.rank - 1) * count, count, scratch);
      return count;
    };
    const int64_t queries =
        read(q_list, in.q_coords, "q_coords", "q_offsets", &sight.q_offsets, &sight.q_positions);
    const int64_t keys =
        read(k_list, in.k_coords, "k_coords", "k_offsets", &sight.k_offsets, &sight.k_positions);
    if (plan_.positions > 0)
      sight.tests = ReadTests(run.Input(in.position_tests, "position_tests"), scratch);
    const auto flags = [&](int place, const char* role, int64_t tests, Flags* of, bool of_queries) {
      if (tests > 0)
        *of =
            ReadFlags(run, run.MaskInput(place, role), tests, sight.sequences, of_queries, scratch);
    };
    flags(in.key_flags, "key_flags", plan_.keys, &sight.of_keys, false);
    flags(in.query_flags, "query_flags", plan_.queries, &sight.of_queries, false);
    flags(in.pair_flags, "pair_flags", plan_.pairs, &sight.of_pairs, true);
    if (plan_.keys > 0) CheckBelow(sight.k_positions, keys, sight.of_keys.columns, "k_coords");
    if (plan_.queries > 0)
      CheckBelow(sight.q_positions, queries, sight.of_queries.columns, "q_coords");
    if (plan_.pairs > 0) {
      CheckBelow(sight.q_positions, queries, sight.of_pairs.rows, "q_coords");
      CheckBelow(sight.k_positions, keys, sight.of_pairs.columns, "k_coords");
    }
    return sight;
  }

  // They are read once: the host may write there meanwhile.
  Flags ReadFlags(const RunContext& run, const Tensor& t, int64_t tests, int64_t sequences,
                  bool of_queries, Arena::Scope& scratch) const {
    const int lead = static_cast<int>(plan_.rank), rank = lead + 1 + static_cast<int>(of_queries);
    Expect(ElementBytes(t.type) == 1 && t.shape.rank == rank && t.shape.dims[0] == tests &&
               t.shape.Elements(1, lead) == sequences,
           t, "as flags of ", rank, " dimensions, of ", tests, " tests and ", sequences,
           " sequences");
    const int64_t columns = t.shape.dims[rank - 1], words = BitWords(columns);
    const Flags flags{nullptr, of_queries ? t.shape.dims[rank - 2] : 1, columns};
    const int64_t rows = tests * sequences * flags.rows;
    auto* const bits = scratch.Array<uint64_t>(rows * words);
    const Blocks blocks = EvenBlocks(rows, std::max<int64_t>(1, kBlockFlags / (columns + 1)), 1);
    run.Each(blocks.Count(), rows * columns > kSerialFlags, [&](int64_t block) {
      for (int64_t row = blocks.Begin(block); row < blocks.End(block); ++row)
        simd_.mask_bits(t.Bytes() + row * columns, columns, bits + row * words);
    });
    return {bits, flags.rows, columns};
  }

  const PositionTest* ReadTests(const Tensor& t, Arena::Scope& scratch) const {
    Expect(t.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 && t.shape.rank == 2 &&
               t.shape.dims[0] == plan_.positions && t.shape.dims[1] == 3,
           t, "as int64 [", plan_.positions, ", 3]");
    auto* const tests = scratch.Array<PositionTest>(plan_.positions);
    for (int64_t i = 0; i < plan_.positions; ++i) {
      const auto* const numbers = static_cast<const int64_t*>(t.data) + 3 * i;
      tests[i] = {numbers[0], numbers[1], numbers[2]};
      const auto within = [](int64_t x, int64_t most) { return x >= -most && x <= most; };
      if (!within(tests[i].query, kMostFactor) || !within(tests[i].key, kMostFactor) ||
          !within(tests[i].constant, kMostConstant))
        Fail("expected position_tests of moderate numbers, got others in row ", i);
    }
    return tests;
  }

  // Lists the keys of a tile, unless `keys` is null. Returns how many, or -1 where every query sees
  // every key.
  int64_t List(const Sight& sight, const Tile& tile, int32_t* keys, int32_t* seen_by) const {
    const auto lanes = static_cast<uint32_t>((uint64_t{1} << tile.queries.count) - 1);
    int64_t listed = 0;
    bool all = true;
    for (int64_t first = 0; first < tile.keys.count; first += kChunk) {
      const Points chunk{tile.keys.positions + first, std::min(kChunk, tile.keys.count - first)};
      Words seen;
      seen.fill(lanes);
      Hide(sight, tile, chunk, &seen);
      for (int64_t j = 0; j < chunk.count; ++j) {
        all = all && seen[j] == lanes;
        if (seen[j] == 0) continue;
        if (keys) {
          keys[listed] = static_cast<int32_t>(first + j);
          seen_by[listed] = static_cast<int32_t>(seen[j]);
        }
        ++listed;
      }
    }
    return all ? -1 : listed;
  }

  // Takes away the queries from which a region hides a key.
  void Hide(const Sight& sight, const Tile& tile, const Points& keys, Words* seen) const {
    for (const int64_t region : plan_.regions) {
      Words hidden;
      hidden.fill(~uint32_t{0});
      bool holds = true;
      for (int test = 0; region >> test != 0 && holds; ++test) {
        if ((region >> test & 1) != 0) holds = And(sight, tile, keys, test, &hidden);
      }
      if (!holds) continue;
      for (int64_t j = 0; j < keys.count; ++j) (*seen)[j] &= ~hidden[j];
    }
  }

  // Keeps the bits of queries at which a test holds, too; false where there are none.
  bool And(const Sight& sight, const Tile& tile, const Points& keys, int64_t test,
           Words* bits) const {
    const Points& queries = tile.queries;
    if (test < plan_.positions) {
      const PositionTest& t = sight.tests[test];
      const Holds over = t.Over(queries.positions[0], queries.positions[queries.count - 1],
                                keys.positions[0], keys.positions[keys.count - 1]);
      if (over == Holds::kSomewhere) AndPositions(t, queries, keys, bits);
      return over != Holds::kNowhere;
    }
    test -= plan_.positions;
    uint32_t any = 0;
    if (test < plan_.keys) {
      const uint64_t* const live = sight.of_keys.Of(test, sight.sequences, tile.sequence);
      for (int64_t j = 0; j < keys.count; ++j)
        any |= (*bits)[j] &= Bit(live, keys.positions[j]) ? 0 : ~uint32_t{0};
      return any != 0;
    }
    test -= plan_.keys;
    if (test < plan_.queries) {
      const uint64_t* const live = sight.of_queries.Of(test, sight.sequences, tile.sequence);
      uint32_t where = 0;
      for (int64_t i = 0; i < queries.count; ++i)
        where |= static_cast<uint32_t>(!Bit(live, queries.positions[i])) << i;
      for (int64_t j = 0; j < keys.count; ++j) any |= (*bits)[j] &= where;
      return any != 0;
    }
    return AndPairs(sight, tile, keys, test - plan_.queries, bits);
  }

  static void AndPositions(const PositionTest& t, const Points& queries, const Points& keys,
                           Words* bits) {
    for (int64_t j = 0; j < keys.count; ++j) {
      const int64_t rest = t.key * keys.positions[j] + t.constant;
      uint32_t where = 0;
      for (int64_t i = 0; i < queries.count; ++i)
        where |= static_cast<uint32_t>(t.query * queries.positions[i] + rest >= 0) << i;
      (*bits)[j] &= where;
    }
  }

  bool AndPairs(const Sight& sight, const Tile& tile, const Points& keys, int64_t test,
                Words* bits) const {
    const uint64_t* const flags = sight.of_pairs.Of(test, sight.sequences, tile.sequence);
    const int64_t words = BitWords(sight.of_pairs.columns);
    const Points& queries = tile.queries;
    uint32_t low[32] = {}, high[32] = {};
    const bool in_a_row = keys.InARow();
    for (int64_t i = 0; i < queries.count; ++i) {
      const uint64_t* const row = flags + queries.positions[i] * words;
      uint64_t live = 0;
      if (in_a_row) {
        live = BitsFrom(row, words, keys.positions[0]);
      } else {
        for (int64_t j = 0; j < keys.count; ++j)
          live |= static_cast<uint64_t>(Bit(row, keys.positions[j])) << j;
      }
      low[i] = static_cast<uint32_t>(~live);
      high[i] = static_cast<uint32_t>(~live >> 32);
    }
    Transpose(low);
    Transpose(high);
    uint32_t any = 0;
    for (int64_t j = 0; j < keys.count; ++j) any |= (*bits)[j] &= j < 32 ? low[j] : high[j - 32];
    return any != 0;
  }

  const PairsPlan plan_;
  const Primitives& simd_;
};

}  // namespace

std::unique_ptr<Operation> MakePairs(const PairsPlan& plan, const Primitives& simd) {
  return std::make_unique<Pairs>(plan, simd);
}

}  // namespace pitc

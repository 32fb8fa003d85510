// pairs: for each kListedQueries queries of a sequence the keys that one of them sees, and which of
// them do.
//
//     queries 0, 1 of 2     keys 0, 1, 2     hidden where key - query - 1 >= 0
//     ->   order 0, 1     keys 0, 1     seen_by 0b11, 0b10     tiles [0, 2, 1]
//
// A tile of rows in a row that all see the same keys, in a row as well, needs no list: it is
// [first key, keys, 0]. Queries that see far more keys than those beside them (global tokens) come
// last in their sequence: the lists of the others stay short.
#include <algorithm>
#include <numeric>

#include "base/index.h"
#include "ops/operation.h"
#include "ops/pair_tests.h"

namespace pitc {
namespace {

constexpr int64_t kSerialPairs = int64_t{1} << 18;  // to look at on one thread
constexpr int64_t kHeavyFactor = 2;   // a heavy query sees so many times the median's keys
constexpr int64_t kHeavyLeast = 256;  // .. and so many more

// What the list of a tile has.
struct Listed {
  int64_t count = 0, seen = 0;  // keys, and pairs
  int64_t first = 0, last = -1;
  bool by_all = true;  // each key is seen by all queries

  // Keys from one to another, of which so many are listed, behind those before.
  void Add(int64_t from, int64_t to, int64_t keys, int64_t pairs) {
    if (count == 0) first = from;
    last = to;
    count += keys;
    seen += pairs;
  }
  bool InARow() const { return by_all && last - first + 1 == count; }
};

// How many bits are set; a loop over it becomes one of vectors, at any level of the CPU.
uint32_t Ones(uint32_t x) {
  x -= x >> 1 & 0x55555555;
  x = (x & 0x33333333) + (x >> 2 & 0x33333333);
  x = (x + (x >> 4)) & 0x0f0f0f0f;
  x += x >> 8;
  return (x + (x >> 16)) & 0x3f;
}

class Pairs final : public Operation {
 public:
  Pairs(const PairsPlan& plan, const Primitives& simd) : plan_(plan), simd_(simd) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return PairsPlan::kOutputs; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const PairsPlan::Inputs in = plan_.Places();
    const Tensor q_list = run.Int32Input(in.q_offsets, "q_offsets", {-1});
    const int64_t sequences = q_list.shape.dims[0] - 1;
    Expect(sequences >= 0, q_list, "of one element or more");
    const Tensor k_list = run.Int32Input(in.k_offsets, "k_offsets", {sequences + 1});
    const Side queries = Read(run, q_list, in.q_coords, "q_coords", "q_offsets", scratch);
    const Side keys = Read(run, k_list, in.k_coords, "k_coords", "k_offsets", scratch);
    const PairTests tests(run, plan_, sequences, queries, keys, simd_, scratch);
    auto* const first_tile = scratch.Array<int64_t>(sequences + 1);
    FindFirstBlocks(queries.offsets, sequences, kListedQueries, first_tile);
    const int64_t count = Numbered(first_tile[sequences], "tiles of queries");
    auto* const order =
        static_cast<int32_t*>(run.Output(3, {queries.count}, sizeof(int32_t), scratch));
    std::iota(order, order + queries.count, 0);
    const Work work{run, tests, sequences, queries, keys, first_tile, order};

    auto* const listed = scratch.Array<Listed>(count);
    Each(work, 0, count, [&](int64_t tile, const Tile& at) { listed[tile] = Count(work, at); });
    PutHeavyLast(work, listed, scratch);
    auto* const tiles = static_cast<int32_t*>(run.Output(2, {count, 3}, sizeof(int32_t), scratch));
    int64_t entries = 0;
    Each(work, 0, count, [&](int64_t tile, const Tile& at) {
      tiles[3 * tile + 2] = static_cast<int32_t>(!(listed[tile].InARow() && at.in_a_row));
    });
    for (int64_t i = 0; i < count; ++i) {
      const bool list = tiles[3 * i + 2] != 0;
      tiles[3 * i] = static_cast<int32_t>(list ? entries : listed[i].first);
      tiles[3 * i + 1] = static_cast<int32_t>(listed[i].count);
      entries = Numbered(entries + (list ? listed[i].count : 0), "keys in lists");
    }
    auto* const of_tiles =
        static_cast<int32_t*>(run.Output(0, {entries}, sizeof(int32_t), scratch));
    auto* const seen_by = static_cast<int32_t*>(run.Output(1, {entries}, sizeof(int32_t), scratch));
    Each(work, 0, count, [&](int64_t tile, const Tile& at) {
      const int64_t first = tiles[3 * tile];
      if (tiles[3 * tile + 2] != 0) List(work, at, of_tiles + first, seen_by + first);
    });
  }

 private:
  struct Work {
    const RunContext& run;
    const PairTests& tests;
    int64_t sequences;
    Side queries, keys;
    const int64_t* first_tile;  // of each sequence
    int32_t* order;             // rows of queries, tile by tile
  };

  struct Tile {
    int64_t sequence, begin;
    bool in_a_row;  // the queries, as rows
    Queries queries;
    Points keys;  // of the sequence
  };

  Side Read(const RunContext& run, const Tensor& list, int place, const char* role,
            const char* points, Arena::Scope& scratch) const {
    const int64_t sequences = list.shape.dims[0] - 1;
    const Tensor coords = run.Int32Input(place, role, {plan_.rank, -1});
    const int64_t count = coords.shape.dims[1];
    const int32_t* const offsets = run.Copy(list, sequences + 1, scratch);
    CheckOffsets(offsets, sequences, count, points);
    return {count, offsets, CopyOf(coords.Int32s() + (plan_.rank - 1) * count, count, scratch)};
  }

  template <class Task>
  static void Each(const Work& work, int64_t begin, int64_t end, const Task& task) {
    const int64_t pairs = (end - begin) * kListedQueries * (work.keys.count / (work.sequences + 1));
    work.run.Each(end - begin, pairs > kSerialPairs, [&](int64_t i) {
      const int64_t tile = begin + i;
      const int64_t* const after =
          std::upper_bound(work.first_tile, work.first_tile + work.sequences + 1, tile);
      const int64_t s = after - work.first_tile - 1;
      Tile at;
      at.sequence = s;
      at.begin = work.queries.offsets[s] + (tile - work.first_tile[s]) * kListedQueries;
      at.queries.count = std::min<int64_t>(kListedQueries, work.queries.offsets[s + 1] - at.begin);
      const int32_t* const rows = work.order + at.begin;
      at.in_a_row = true;
      for (int64_t q = 0; q < at.queries.count; ++q) {
        at.queries.rows[q] = rows[q];
        at.queries.positions[q] = work.queries.positions[rows[q]];
        at.in_a_row = at.in_a_row && rows[q] == rows[0] + q;
      }
      const int64_t first = work.keys.offsets[s];
      at.keys = {work.keys.positions + first, 0, work.keys.offsets[s + 1] - first};
      task(tile, at);
    });
  }

  static Listed Count(const Work& work, const Tile& tile) {
    Listed found;
    const uint32_t lanes = tile.queries.Lanes();
    work.tests.Each(tile.sequence, tile.queries, tile.keys,
                    [&](int64_t first, int64_t count, const Seen* seen) {
                      if (!seen) {
                        found.Add(first, first + count - 1, count, count * tile.queries.count);
                        return;
                      }
                      uint64_t some = 0;
                      uint32_t others = 0, pairs = 0;
                      for (int64_t j = 0; j < count; ++j) {
                        const uint32_t by = (*seen)[j];
                        some |= static_cast<uint64_t>(by != 0) << j;
                        others |= by == 0 ? 0 : by ^ lanes;
                        pairs += Ones(by);
                      }
                      if (some == 0) return;
                      found.Add(first + __builtin_ctzll(some), first + 63 - __builtin_clzll(some),
                                __builtin_popcountll(some), pairs);
                      found.by_all = found.by_all && others == 0;
                    });
    return found;
  }

  static void List(const Work& work, const Tile& tile, int32_t* keys, int32_t* seen_by) {
    work.tests.Each(tile.sequence, tile.queries, tile.keys,
                    [&](int64_t first, int64_t count, const Seen* seen) {
                      for (int64_t j = 0; j < count; ++j) {
                        const uint32_t by = seen ? (*seen)[j] : tile.queries.Lanes();
                        if (by == 0) continue;
                        *keys++ = static_cast<int32_t>(first + j);
                        *seen_by++ = static_cast<int32_t>(by);
                      }
                    });
  }

  // How many keys each query of a tile sees.
  static void CountByQuery(const Work& work, const Tile& tile, int32_t* counts) {
    std::fill(counts, counts + tile.queries.count, 0);
    work.tests.Each(tile.sequence, tile.queries, tile.keys,
                    [&](int64_t, int64_t count, const Seen* seen) {
                      if (!seen) {
                        for (int64_t q = 0; q < tile.queries.count; ++q)
                          counts[q] += static_cast<int32_t>(count);
                        return;
                      }
                      uint32_t bits[kKeyChunk] = {};
                      std::copy(seen->begin(), seen->begin() + count, bits);
                      Transpose(bits);
                      Transpose(bits + 32);
                      for (int64_t q = 0; q < tile.queries.count; ++q)
                        counts[q] += static_cast<int32_t>(Ones(bits[q]) + Ones(bits[q + 32]));
                    });
  }

  // Moves heavy queries to the end of their sequence, where that makes lists shorter. Where few of
  // a tile's pairs are seen, some of its queries may see far more keys than the others.
  static void PutHeavyLast(const Work& work, Listed* listed, Arena::Scope& scratch) {
    const int64_t count = work.first_tile[work.sequences];
    const auto is_thin = [&](int64_t tile) {
      return listed[tile].count > kHeavyLeast &&
             listed[tile].seen * kHeavyFactor < listed[tile].count * kListedQueries;
    };
    bool some = false;
    for (int64_t tile = 0; tile < count; ++tile) some = some || is_thin(tile);
    if (!some) return;
    auto* const heavy = scratch.Array<uint8_t>(work.queries.count);
    std::fill(heavy, heavy + work.queries.count, 0);
    Each(work, 0, count, [&](int64_t tile, const Tile& at) {
      if (!is_thin(tile)) return;
      int32_t counts[kListedQueries], sorted[kListedQueries];
      CountByQuery(work, at, counts);
      std::copy(counts, counts + at.queries.count, sorted);
      std::sort(sorted, sorted + at.queries.count);
      const int64_t median = sorted[at.queries.count / 2];
      for (int64_t q = 0; q < at.queries.count; ++q)
        heavy[at.begin + q] = counts[q] > kHeavyFactor * median + kHeavyLeast;
    });
    auto* const reordered = scratch.Array<Listed>(count);
    for (int64_t s = 0; s < work.sequences; ++s) {
      const int64_t begin = work.queries.offsets[s], end = work.queries.offsets[s + 1];
      const int64_t first = work.first_tile[s], last = work.first_tile[s + 1];
      const auto is_light = [&](int32_t row) { return heavy[row] == 0; };
      if (std::all_of(work.order + begin, work.order + end, is_light)) continue;
      int32_t* at = work.order + begin;
      for (const bool is_heavy : {false, true})
        for (int64_t row = begin; row < end; ++row)
          if ((heavy[row] != 0) == is_heavy) *at++ = static_cast<int32_t>(row);
      Each(work, first, last,
           [&](int64_t tile, const Tile& t) { reordered[tile] = Count(work, t); });
      const auto sum = [&](const Listed* lists) {
        return std::accumulate(lists + first, lists + last, int64_t{0},
                               [](int64_t x, const Listed& tile) { return x + tile.count; });
      };
      if (sum(reordered) < sum(listed)) {
        std::copy(reordered + first, reordered + last, listed + first);
      } else {
        std::iota(work.order + begin, work.order + end, static_cast<int32_t>(begin));
      }
    }
  }

  const PairsPlan plan_;
  const Primitives& simd_;
};

}  // namespace

std::unique_ptr<Operation> MakePairs(const PairsPlan& plan, const Primitives& simd) {
  return std::make_unique<Pairs>(plan, simd);
}

}  // namespace pitc

// What attention checks and knows before anything is computed, wherever the tensors lie.
#pragma once

#include <cstdint>

#include "base/arena.h"
#include "base/index.h"
#include "base/split.h"
#include "ort/tensor.h"
#include "plan/plan.h"

namespace pitc {

// A packed tensor seen as [rows, heads, size]. Of a whole one, [sequences, heads, positions, size],
// a row is a position of a sequence's head.
struct HeadExtents {
  int64_t rows, heads, size;
  int64_t positions = 0;
};

// Heads of keys and of values, each for as many heads of queries.
inline int64_t KeyHeads(const AttentionPlan& plan) { return plan.heads / plan.group.value_or(1); }

// What reads the operands that attention has, too: they stand in front, in the same order.
AttentionPlan ForwardOf(const AttentionGradPlan& plan);

// Throws Failure unless the tensor is [sequences, KeyHeads(plan), any, size].
HeadExtents CheckWhole(const AttentionPlan& plan, const Tensor& tensor, int64_t size,
                       int64_t sequences);

// Throws Failure unless whole keys have the positions of the mask `live`, which numbers them.
void CheckPositions(const Tensor& k, const HeadExtents& keys, int64_t sequences,
                    const Tensor& live);

// Throws Failure unless the tensor has the heads `first` .. `first + heads - 1`.
HeadExtents CheckHeads(const Tensor& tensor, Element type, int64_t size, int64_t first,
                       int64_t heads);

// The bias [B or 1, H or 1, Sq or 1, Sk or 1]; the stride of an extent of 1 is 0.
struct BiasExtents {
  int64_t sequences = 1;  // which are for all, in turn
  int64_t elements = 0, sequence = 0, head = 0, query = 0, key = 0;
};
BiasExtents CheckBias(const AttentionPlan& plan, const Tensor& bias, int64_t sequences);

// Which keys each kListedQueries queries of a sequence see.
struct PairLists {
  // Its queries see some keys of a list, or all keys from one on, if it is no list.
  struct Tile {
    int32_t first, count, is_list;
  };

  const int32_t *keys, *seen_by;  // among those of the sequence, and bits of queries
  const Tile* tiles;
  const int32_t* order;       // rows of queries, tile by tile
  const int64_t* first_tile;  // of each sequence
  int64_t entries;
};

// Throws Failure unless each sequence has each of its rows once, and those of a tile without a list
// lie in a row: `order` is [offsets[sequences]].
void CheckOrder(const PairLists& pairs, const int32_t* offsets, int64_t sequences,
                Arena::Scope& scratch);

// Reads the lists and holds them to the keys and queries that there are.
template <class Run, class Input>
PairLists ReadPairs(const Run& run, const AttentionPlan::Inputs& in, const Input& all,
                    Arena::Scope& scratch) {
  const auto keys = run.Int32Input(in.keys, "keys", {-1});
  const int64_t entries = keys.shape.dims[0], rows = all.q_offsets[all.sequences];
  const auto seen_by = run.Int32Input(in.seen_by, "seen_by", {entries});
  auto* const first = scratch.Array<int64_t>(all.sequences + 1);
  FindFirstBlocks(all.q_offsets, all.sequences, kListedQueries, first);
  const int64_t count = first[all.sequences];
  const auto tiles = run.Int32Input(in.tiles, "tiles", {count, 3});
  const auto order = run.Int32Input(in.order, "order", {rows});
  const PairLists pairs{
      run.Copy(keys, entries, scratch),
      run.Copy(seen_by, entries, scratch),
      reinterpret_cast<const PairLists::Tile*>(run.Copy(tiles, 3 * count, scratch)),
      run.Copy(order, rows, scratch),
      first,
      entries};
  for (int64_t s = 0; s < all.sequences; ++s) {
    const int64_t sequence_keys = all.k_offsets[s + 1] - all.k_offsets[s];
    for (int64_t i = first[s]; i < first[s + 1]; ++i) {
      const PairLists::Tile& tile = pairs.tiles[i];
      const int64_t most = tile.is_list ? entries : sequence_keys;
      if (tile.first < 0 || tile.count < 0 || int64_t{tile.first} + tile.count > most)
        Fail("expected tiles within ", most, " keys, got ", tile.first, ", ", tile.count,
             " in row ", i);
      if (tile.is_list) CheckBelow(pairs.keys + tile.first, tile.count, sequence_keys, "keys");
    }
  }
  CheckOrder(pairs, all.q_offsets, all.sequences, scratch);
  return pairs;
}

// The inputs before the output is made; the tensors are where `Input` says, the lists the host's.
template <class Input>
struct AttentionOperands {
  Input q, k, v, bias, sink;
  HeadExtents q_heads, k_heads, v_heads;
  int64_t sequences;
  const int32_t *q_offsets, *k_offsets;
  BiasExtents bias_extents;                  // if the plan has one
  const int32_t* query_positions = nullptr;  // if it has one, or a program
  const int32_t* key_positions = nullptr;    // the same, or keys and values are whole
  PairLists pairs;                           // if the plan has some
};

// The last coordinate, below an extent; one of 1 takes any, and -1 is checked by the caller.
template <class Run>
const int32_t* ReadPositions(const Run& run, int index, const char* role, int64_t t, int64_t extent,
                             Arena::Scope& scratch) {
  auto coords = run.Int32Input(index, role, {-1, t});
  Expect(coords.shape.dims[0] >= 1, coords, "of one coordinate or more");
  coords.data = coords.Int32s() + (coords.shape.dims[0] - 1) * t;
  const int32_t* const positions = run.Copy(coords, t, scratch);
  if (extent != 1 && extent >= 0) CheckBelow(positions, t, extent, role);
  return positions;
}

// Reads the inputs, which `run` reads and copies.
template <class Run>
auto ReadAttention(const Run& run, const AttentionPlan& plan, Arena::Scope& scratch) {
  const AttentionPlan::Inputs in = plan.Places();
  AttentionOperands<decltype(run.Input(0, ""))> all{};
  const auto read = [&](int index, const char* role, bool stored, int64_t size, int64_t first,
                        int64_t heads, auto* input) {
    *input = run.Input(index, role);
    return CheckHeads(*input, stored ? Element::kBfloat16 : plan.dtype, size, first, heads);
  };
  const auto q_list = run.Int32Input(in.q_offsets, "q_offsets", {-1});
  const int64_t sequences = q_list.shape.dims[0] - 1;
  Expect(sequences >= 0, q_list, "of one element or more");
  all.sequences = sequences;
  all.q_heads = read(in.q, "q", plan.stored.q, plan.d, plan.q_head, plan.heads, &all.q);
  int64_t keys = 0;
  if (plan.whole) {
    const auto coords = run.Int32Input(in.k_coords, "k_coords", {-1, -1});
    all.k = run.Input(in.k, "k");
    all.v = run.Input(in.v, "v");
    all.k_heads = CheckWhole(plan, all.k, plan.d, sequences);
    all.v_heads = CheckWhole(plan, all.v, plan.dv, sequences);
    keys = coords.shape.dims[1];
  } else {
    all.k_heads = read(in.k, "k", plan.stored.k, plan.d, plan.k_head, KeyHeads(plan), &all.k);
    all.v_heads = read(in.v, "v", plan.stored.v, plan.dv, plan.v_head, KeyHeads(plan), &all.v);
    keys = all.k_heads.rows;
  }
  const int64_t queries = all.q_heads.rows, positions = all.k_heads.positions;
  if (all.v_heads.rows != all.k_heads.rows)
    Fail("expected v of ", all.k_heads.rows, " rows, as k, got ", all.v_heads.rows);
  all.q_offsets = run.Copy(q_list, sequences + 1, scratch);
  const auto k_list = run.Int32Input(in.k_offsets, "k_offsets", {sequences + 1});
  all.k_offsets = run.Copy(k_list, sequences + 1, scratch);
  CheckOffsets(all.q_offsets, sequences, queries, "q_offsets");
  CheckOffsets(all.k_offsets, sequences, keys, "k_offsets");
  if (plan.bias) {
    all.bias = run.Input(in.bias, "bias");
    all.bias_extents = CheckBias(plan, all.bias, sequences);
    const int64_t* dims = all.bias.shape.dims;
    all.query_positions = ReadPositions(run, in.q_coords, "q_coords", queries, dims[2], scratch);
    all.key_positions = ReadPositions(run, in.k_coords, "k_coords", keys, dims[3], scratch);
  } else if (plan.whole || plan.program) {
    all.key_positions = ReadPositions(run, in.k_coords, "k_coords", keys, -1, scratch);
  }
  if (plan.program && !plan.bias)
    all.query_positions = ReadPositions(run, in.q_coords, "q_coords", queries, -1, scratch);
  if (plan.whole) {
    CheckBelow(all.key_positions, keys, positions, "k_coords");
    CheckPositions(all.k, all.k_heads, sequences, run.MaskInput(in.live, "live"));
  }
  if (plan.sinks) {
    all.sink = run.Input(in.sink, "sink");
    ExpectNumbers(all.sink, Element::kFloat32, 1, 1);
    Expect(all.sink.shape.dims[0] == *plan.sinks, all.sink, "as [", *plan.sinks, "]");
  }
  if (plan.pairs) all.pairs = ReadPairs(run, in, all, scratch);
  Product({queries, plan.heads, plan.dv}, "the output");
  return all;
}

}  // namespace pitc

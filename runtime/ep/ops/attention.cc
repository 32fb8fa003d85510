#include "ops/attention.h"

#include <algorithm>

namespace pitc {

AttentionPlan ForwardOf(const AttentionGradPlan& plan) {
  AttentionPlan forward;
  forward.d = plan.d;
  forward.dv = plan.dv;
  forward.heads = plan.heads;
  forward.scale = plan.scale;
  forward.bias = plan.bias;
  forward.pairs = plan.pairs;
  forward.dtype = plan.dtype;
  forward.program = plan.program;
  forward.positions = plan.positions;
  forward.tables = plan.tables;
  forward.orders = plan.orders;
  forward.key_tests = plan.key_tests;
  forward.query_tests = plan.query_tests;
  forward.pair_tests = plan.pair_tests;
  return forward;
}

HeadExtents CheckHeads(const Tensor& t, Element type, int64_t size, int64_t first, int64_t heads) {
  ExpectNumbers(t, type, 2);
  const int64_t rows = t.shape.dims[0], row_size = t.shape.Elements(1, t.shape.rank);
  Expect(row_size % size == 0 && first + heads <= row_size / size, t, "as [t, X, ", size,
         "] with X >= ", first + heads);
  Product({rows, row_size}, t.role);
  return {rows, row_size / size, size};
}

HeadExtents CheckWhole(const AttentionPlan& plan, const Tensor& t, int64_t size,
                       int64_t sequences) {
  ExpectNumbers(t, plan.dtype, 4, 4);
  const int64_t *dims = t.shape.dims, heads = KeyHeads(plan);
  Expect(dims[0] == sequences && dims[1] == heads && dims[3] == size, t, "as [", sequences, ", ",
         heads, ", positions, ", size, "]");
  return {Product({dims[0], dims[1], dims[2]}, t.role), dims[1], size, dims[2]};
}

void CheckPositions(const Tensor& k, const HeadExtents& keys, int64_t sequences,
                    const Tensor& live) {
  const int rank = live.shape.rank;
  Expect(rank >= 2 || (rank == 1 && sequences == 1), live, "of rank >= 2");
  const int64_t extent = live.shape.dims[rank - 1];
  if (keys.positions != extent) {
    Fail("expected k with extent ", extent, " (that of the mask) in dimension 2, got ",
         Describe(k.type, k.shape), ": inputs are of different sizes");
  }
}

BiasExtents CheckBias(const AttentionPlan& plan, const Tensor& t, int64_t sequences) {
  ExpectNumbers(t, Element::kFloat32, 4, 4);
  const int64_t* dims = t.shape.dims;
  // Where rows are of each head, a sequence is one of a head: heads come in turn.
  const bool in_turn = plan.heads == 1 && dims[0] == 1 && dims[1] > 1 && sequences % dims[1] == 0;
  Expect(
      (dims[0] == 1 || dims[0] == sequences) && (dims[1] == 1 || dims[1] == plan.heads || in_turn),
      t, "as [", sequences, " or 1, ", plan.heads, " or 1, queries or 1, keys or 1]");
  BiasExtents bias;
  bias.sequences = in_turn ? dims[1] : std::max<int64_t>(dims[0], 1);
  bias.elements = Numbered(t.shape.Elements(), "elements of bias");  // kernels take int32 strides
  bias.key = dims[3] == 1 ? 0 : 1;
  bias.query = dims[2] == 1 ? 0 : dims[3];
  const int64_t plane = dims[2] * dims[3];
  bias.head = dims[1] == 1 || in_turn ? 0 : plane;
  bias.sequence = in_turn ? plane : dims[0] == 1 ? 0 : dims[1] * plane;
  return bias;
}

void CheckOrder(const PairLists& pairs, const int32_t* offsets, int64_t sequences,
                Arena::Scope& scratch) {
  const int64_t rows = offsets[sequences];
  auto* const met = scratch.Array<uint8_t>(rows);
  std::fill(met, met + rows, 0);
  for (int64_t s = 0; s < sequences; ++s) {
    for (int64_t at = offsets[s]; at < offsets[s + 1]; ++at) {
      const int64_t row = pairs.order[at], lane = (at - offsets[s]) % kListedQueries;
      const bool apart = lane > 0 && row != pairs.order[at - 1] + 1;
      const int64_t tile = pairs.first_tile[s] + (at - offsets[s]) / kListedQueries;
      if (row < offsets[s] || row >= offsets[s + 1] || met[row]++ != 0 ||
          (apart && !pairs.tiles[tile].is_list))
        Fail("expected an order of the rows of each sequence, got ", row, " at ", at);
    }
  }
}

}  // namespace pitc

// attention_grad: gradients of attention by its queries, keys and values, over packed rows.
//
// A task is a head of a sequence: its blocks of queries run in their order, as each of them adds to
// the gradients of the keys, whose bits do not depend on threads then.
#include <algorithm>
#include <limits>

#include "ops/attention.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr double kSerialFlops = 2e6;  // about 20 us on one thread
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class AttentionGrad final : public Operation {
 public:
  AttentionGrad(const AttentionGradPlan& plan, Kernel kernel, Kernel listed)
      : plan_(plan),
        forward_(ForwardOf(plan)),
        kernel_(std::move(kernel)),
        listed_(std::move(listed)) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return AttentionGradPlan::kOutputs; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const Operands in = ReadAttention(run, forward_, scratch);
    const Tensor g = run.Input(plan_.Places().g, "g");
    const HeadExtents g_heads = CheckHeads(g, plan_.dtype, plan_.dv, 0, plan_.heads);
    const int64_t queries = in.q_heads.rows, keys = in.k_heads.rows;
    if (g_heads.rows != queries) Fail("expected g of ", queries, " rows, as q, got ", g_heads.rows);
    const auto output = [&](int number, int64_t rows, int64_t size) {
      const Shape shape{rows, plan_.heads, size};
      return static_cast<float*>(run.Output(number, shape, sizeof(float), scratch));
    };
    const Gradients out{output(0, queries, plan_.d), output(1, keys, plan_.d),
                        output(2, keys, plan_.dv)};
    run.Each(in.sequences * plan_.heads, Flops(in) > kSerialFlops, [&](int64_t task) {
      Compute(in, g, g_heads, task / plan_.heads, task % plan_.heads, out);
    });
  }

 private:
  using Operands = AttentionOperands<Tensor>;
  struct Gradients {
    float *q, *k, *v;
  };
  // A head of a sequence, and the rows of its keys.
  struct Part {
    int64_t sequence, head, first, keys;
  };

  void Compute(const Operands& in, const Tensor& g, const HeadExtents& g_heads, int64_t sequence,
               int64_t head, const Gradients& all) const {
    const int64_t first = in.k_offsets[sequence], keys = in.k_offsets[sequence + 1] - first;
    const int64_t begin = in.q_offsets[sequence], end = in.q_offsets[sequence + 1];
    const Part part{sequence, head, first, keys};
    const Gradients out{all.q, all.k + first * plan_.heads * plan_.d,
                        all.v + first * plan_.heads * plan_.dv};
    for (int64_t key = 0; key < keys; ++key) {
      Fill(key, head, plan_.d, 0, out.k);
      Fill(key, head, plan_.dv, 0, out.v);
    }
    if (!plan_.pairs) {
      if (begin < end) Call(in, g, g_heads, part, {begin, end}, {0, keys}, false, out);
      return;
    }
    const bool undefined = plan_.no_pairs == AttentionGradPlan::kNan;
    bool blind = false;
    for (int64_t at = begin; at < end; at += kListedQueries) {
      const int64_t n = std::min(kListedQueries, end - at);
      const PairLists::Tile& tile =
          in.pairs.tiles[in.pairs.first_tile[sequence] + (at - begin) / kListedQueries];
      blind = blind || (undefined && HasBlindRow(in.pairs, tile, n));
      const bool listed = tile.is_list != 0;
      const int64_t from = listed ? at : in.pairs.order[at];
      const Range seen{tile.first, int64_t{tile.first} + tile.count};
      Call(in, g, g_heads, part, {from, from + n}, seen, listed, out);
      if (tile.count > 0 || keys == 0 || plan_.floor || !undefined) continue;
      for (int64_t i = 0; i < n; ++i) Fill(in.pairs.order[at + i], head, plan_.d, kNan, out.q);
    }
    for (int64_t key = 0; blind && key < keys; ++key) {
      if (!plan_.floor) Fill(key, head, plan_.d, kNan, out.k);
      Fill(key, head, plan_.dv, kNan, out.v);
    }
  }

  void Fill(int64_t row, int64_t head, int64_t size, float number, float* rows) const {
    std::fill_n(rows + (row * plan_.heads + head) * size, size, number);
  }

  // Whether one of the queries of a tile sees none of the keys: its softmax is NaN.
  static bool HasBlindRow(const PairLists& pairs, const PairLists::Tile& tile, int64_t queries) {
    if (tile.is_list == 0 || tile.count == 0) return tile.count == 0;
    uint32_t seeing = 0;
    for (int64_t i = 0; i < tile.count; ++i)
      seeing |= static_cast<uint32_t>(pairs.seen_by[tile.first + i]);
    const auto all = static_cast<uint32_t>((uint64_t{1} << queries) - 1);
    return (seeing & all) != all;
  }

  void Call(const Operands& in, const Tensor& g, const HeadExtents& g_heads, const Part& part,
            const Range& queries, const Range& keys, bool listed, const Gradients& out) const {
    const int64_t rows = in.q_heads.rows;
    const BiasExtents& bias = in.bias_extents;
    const auto keys_of = [&](const Tensor& tensor, const HeadExtents& heads) {
      return static_cast<const float*>(tensor.data) + part.first * heads.heads * heads.size;
    };
    KernelCall call;
    call.Floats(in.q.data, {rows, in.q_heads.heads, plan_.d});
    call.Floats(keys_of(in.k, in.k_heads), {part.keys, in.k_heads.heads, plan_.d});
    call.Floats(keys_of(in.v, in.v_heads), {part.keys, in.v_heads.heads, plan_.dv});
    call.Floats(g.data, {rows, g_heads.heads, plan_.dv});
    if (plan_.bias)
      call.Floats(in.bias.data, {bias.elements})
          .Int32s(in.query_positions, {rows})
          .Int32s(in.key_positions + part.first, {part.keys});
    if (listed)
      call.Int32s(in.pairs.keys, {in.pairs.entries})
          .Int32s(in.pairs.seen_by, {in.pairs.entries})
          .Int32s(in.pairs.order, {rows});
    call.Floats(out.q, {rows, plan_.heads, plan_.d});
    call.Floats(out.k, {part.keys, plan_.heads, plan_.d});
    call.Floats(out.v, {part.keys, plan_.heads, plan_.dv});
    call.Float(plan_.scale);
    if (plan_.floor) call.Float(*plan_.floor);
    for (int i = 0; i < 5; ++i) call.Int(part.head);
    call.Int(queries.begin).Int(queries.end).Int(keys.begin).Int(keys.end);
    if (plan_.bias)
      call.Int(part.sequence % bias.sequences * bias.sequence + part.head * bias.head)
          .Int(bias.query)
          .Int(bias.key);
    call.Run(listed ? listed_ : kernel_);
  }

  double Flops(const Operands& in) const {
    double pairs = 0;
    for (int64_t s = 0; s < in.sequences; ++s) {
      const double queries = in.q_offsets[s + 1] - in.q_offsets[s];
      pairs += queries * (in.k_offsets[s + 1] - in.k_offsets[s]);
    }
    return pairs * static_cast<double>(2 * plan_.heads * (3 * plan_.d + 2 * plan_.dv));
  }

  const AttentionGradPlan plan_;
  const AttentionPlan forward_;
  const Kernel kernel_, listed_;
};

}  // namespace

std::unique_ptr<Operation> MakeAttentionGrad(const AttentionGradPlan& plan, Kernel kernel,
                                             Kernel listed) {
  return std::make_unique<AttentionGrad>(plan, std::move(kernel), std::move(listed));
}

}  // namespace pitc

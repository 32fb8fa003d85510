// attention: softmax(scale * Q K^T + bias) V over packed rows, each sequence against its own keys
// only.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/split.h"
#include "ops/attention.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr double kSerialFlops = 2e6;  // about 20 us on one thread
constexpr double kTaskFlops = 1e6;    // tasks smaller than this go together
constexpr int64_t kThreadTasks = 4;   // of each thread: the last one to end is not far behind
constexpr int64_t kCopiedKeys = 512, kCopiedQueries = 128;  // from which rows of a head are copied

// The keys and values of one sequence and head, as a kernel reads them: words of two numbers where
// they are bfloat16.
struct Keys {
  const float *k, *v;
  const int32_t* positions;
  int64_t rows, k_heads, v_heads, k_head, v_head;
  // Where key i is row positions[i]: how many rows there are, and their numbers if there is a bias.
  int64_t apart = 0;
  const int32_t* numbers = nullptr;
};

// Rows of a head side by side: every `stride`th piece of `size` numbers, from `first` on, or those
// that a list says.
const float* Gathered(const float* first, const int32_t* list, int64_t n, int64_t stride,
                      int64_t size, Arena::Scope& scratch) {
  float* const gathered = scratch.Array<float>(n * size);
  for (int64_t i = 0; i < n; ++i)
    std::memcpy(gathered + i * size, first + (list ? list[i] : i) * stride,
                static_cast<size_t>(size) * sizeof(float));
  return gathered;
}

class Attention final : public Operation {
 public:
  Attention(const AttentionPlan& plan, Kernel kernel, Kernel listed, const std::string& node,
            std::shared_ptr<Trace> trace)
      : plan_(plan),
        q_width_(WordsOf(plan.d, plan.stored.q)),
        k_width_(WordsOf(plan.d, plan.stored.k)),
        v_width_(WordsOf(plan.dv, plan.stored.v)),
        result_(plan.stored.result ? Element::kBfloat16 : plan.dtype),
        kernel_(std::move(kernel)),
        listed_(std::move(listed)),
        node_(node),
        trace_(std::move(trace)) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return AttentionPlan::kOutputs; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const auto in = ReadAttention(run, plan_, scratch);
    const HeadExtents& q = in.q_heads;
    void* const out =
        run.Output(0, {q.rows, plan_.heads, plan_.dv}, RecordOf(result_).bytes, scratch);
    if (trace_ && plan_.pairs) trace_->Write(node_, CountPairs(in));
    if (q.rows == 0) return;

    const AttentionSplit split(in.q_offsets, in.sequences, plan_.heads,
                               scratch.Array<int64_t>(in.sequences + 1));
    const double flops = Flops(in);
    const auto count = static_cast<double>(split.Count());
    auto most = static_cast<int64_t>(std::ceil(kTaskFlops * count / flops));
    const int threads = run.ThreadsFor(flops);
    most = std::max(most, split.Count() / (kThreadTasks * threads));
    const Blocks groups = EvenBlocks(split.Count(), most, 1);
    run.Each(groups.Count(), flops > kSerialFlops, [&](int64_t group) {
      const int64_t end = groups.End(group);
      for (int64_t task = groups.Begin(group); task < end;) {
        const AttentionSplit::Part first = split.At(task);
        const auto same = [&] {  // the keys and values
          const AttentionSplit::Part part = split.At(task);
          return part.sequence == first.sequence && part.head == first.head;
        };
        Arena::Scope gathered;
        const Keys keys = KeysOf(in, first, gathered);
        for (; task < end && same(); ++task) Call(in, split.At(task), keys, out);
      }
    });
  }

 private:
  // Some queries, as rows or as places in their order, and the keys that they see.
  struct Queries {
    int64_t begin, end;
    PairLists::Tile keys;
  };

  void Call(const AttentionOperands<Tensor>& in, const AttentionSplit::Part& part, const Keys& keys,
            void* out) const {
    if (!plan_.pairs) {
      const auto all = static_cast<int32_t>(keys.rows);
      Call(in, part, keys, {part.query_begin, part.query_end, {0, all, 0}}, plan_.scale, out);
      return;
    }
    const int64_t start = in.q_offsets[part.sequence];
    for (int64_t at = part.query_begin; at < part.query_end; at += kListedQueries) {
      const int64_t n = std::min(kListedQueries, part.query_end - at);
      const PairLists::Tile& tile =
          in.pairs.tiles[in.pairs.first_tile[part.sequence] + (at - start) / kListedQueries];
      const int64_t first = tile.is_list ? at : in.pairs.order[at];
      Call(in, part, keys, {first, first + n, tile}, plan_.scale, out);
      if (plan_.no_pairs != AttentionPlan::kNan && keys.rows > 0)
        WriteBlindRows(in, part, keys, at, n, tile, out);
    }
  }

  // Queries that see none of the keys give 0, or each key the same weight, as scores of 0 do.
  void WriteBlindRows(const AttentionOperands<Tensor>& in, const AttentionSplit::Part& part,
                      const Keys& keys, int64_t at, int64_t n, const PairLists::Tile& tile,
                      void* out) const {
    uint32_t seeing = tile.is_list || tile.count == 0 ? 0 : ~uint32_t{0};
    for (int64_t i = 0; tile.is_list && i < tile.count; ++i)
      seeing |= static_cast<uint32_t>(in.pairs.seen_by[tile.first + i]);
    const auto all = static_cast<int32_t>(keys.rows);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t row = in.pairs.order[at + i];
      if ((seeing >> i & 1) != 0) continue;
      if (plan_.no_pairs == AttentionPlan::kMean) {
        Call(in, part, keys, {row, row + 1, {0, all, 0}}, 0, out);
      } else {
        const int64_t bytes = plan_.dv * RecordOf(result_).bytes;
        std::memset(static_cast<char*>(out) + (row * plan_.heads + part.head) * bytes, 0, bytes);
      }
    }
  }

  void Call(const AttentionOperands<Tensor>& in, const AttentionSplit::Part& part, const Keys& keys,
            const Queries& queries, double scale, void* out) const {
    if (keys.apart > 0 && queries.keys.count > 0) {
      CallApart(in, part, keys, queries, scale, out);
    } else {
      Call(in, part, keys, in.pairs, queries, scale, out);
    }
  }

  // Keys that do not lie in a row are read by their places, or copied where all of them are seen.
  void CallApart(const AttentionOperands<Tensor>& in, const AttentionSplit::Part& part,
                 const Keys& keys, Queries queries, double scale, void* out) const {
    Arena::Scope scratch;
    Keys seen = keys;
    PairLists lists = in.pairs;
    const int64_t first = queries.keys.first, count = queries.keys.count;
    const int32_t* const places = keys.positions + first;
    if (queries.keys.is_list) {
      auto* const listed = scratch.Array<int32_t>(count);
      for (int64_t i = 0; i < count; ++i) listed[i] = keys.positions[lists.keys[first + i]];
      lists.keys = listed;
      lists.seen_by += first;
      lists.entries = count;
      seen.positions = keys.numbers;
      seen.rows = keys.apart;
    } else {
      seen.positions = places;
      seen.rows = count;
      if (places[count - 1] - places[0] == count - 1) {
        seen.k += places[0] * k_width_;
        seen.v += places[0] * v_width_;
      } else {
        seen.k = Gathered(keys.k, places, count, k_width_, k_width_, scratch);
        seen.v = Gathered(keys.v, places, count, v_width_, v_width_, scratch);
      }
    }
    queries.keys.first = 0;
    Call(in, part, seen, lists, queries, scale, out);
  }

  void Call(const AttentionOperands<Tensor>& in, const AttentionSplit::Part& part, const Keys& keys,
            const PairLists& lists, const Queries& queries, double scale, void* out) const {
    const HeadExtents& q = in.q_heads;
    const BiasExtents& bias = in.bias_extents;
    const bool listed = queries.keys.is_list != 0;
    const bool to_zero = plan_.nan_to_zero || (plan_.no_keys_to_zero && keys.rows == 0);
    KernelCall call;
    call.Floats(in.q.data, {q.rows, q.heads, q_width_});
    call.Floats(keys.k, {keys.rows, keys.k_heads, k_width_});
    call.Floats(keys.v, {keys.rows, keys.v_heads, v_width_});
    if (plan_.bias) {
      call.Floats(in.bias.data, {bias.elements}).Int32s(in.query_positions, {q.rows});
      call.Int32s(keys.positions, {keys.rows});
    }
    if (listed)
      call.Int32s(lists.keys, {lists.entries})
          .Int32s(lists.seen_by, {lists.entries})
          .Int32s(lists.order, {q.rows});
    call.Numbers(out, result_, {q.rows, plan_.heads, plan_.dv});
    AddNumbers(scale, in.sink, part.head, &call);
    call.Int(to_zero);
    call.Int(plan_.q_head + part.head).Int(keys.k_head).Int(keys.v_head).Int(part.head);
    call.Int(queries.begin).Int(queries.end);
    call.Int(queries.keys.first).Int(int64_t{queries.keys.first} + queries.keys.count);
    if (plan_.bias) {
      const int64_t sequence = part.sequence % bias.sequences;
      call.Int(sequence * bias.sequence + part.head * bias.head).Int(bias.query).Int(bias.key);
    }
    call.Run(listed ? listed_ : kernel_);
  }

  // Rounded scores come in steps, and leave them; capped ones are multiplied by the cap.
  void AddNumbers(double scale, const Tensor& sink, int64_t head, KernelCall* call) const {
    call->Float(plan_.score_step ? scale / *plan_.score_step : scale);
    if (plan_.sinks)
      call->Float(static_cast<const float*>(sink.data)[*plan_.sinks == 1 ? 0 : head]);
    if (plan_.score_cap) call->Float(*plan_.score_cap);
    if (plan_.score_step) {
      call->Float(-static_cast<double>(*plan_.score_below));
      call->Float(static_cast<double>(*plan_.score_above));
      call->Float(*plan_.score_step * *plan_.score_scale);
    }
    if (plan_.weight_step)
      call->Float(*plan_.weight_step).Float(static_cast<double>(*plan_.weight_above));
  }

  // Rows of a head are copied where they lie apart, and are many: each one is on a page of its own.
  Keys KeysOf(const AttentionOperands<Tensor>& in, const AttentionSplit::Part& part,
              Arena::Scope& scratch) const {
    const int32_t first = in.k_offsets[part.sequence], last = in.k_offsets[part.sequence + 1];
    const auto *k = static_cast<const float*>(in.k.data), *v = static_cast<const float*>(in.v.data);
    const int64_t n = last - first, heads = in.k_heads.heads, v_heads = in.v_heads.heads;
    const int32_t* const list = in.key_positions ? in.key_positions + first : nullptr;
    const int64_t head = part.head / plan_.group.value_or(1);
    if (plan_.whole) {
      const int64_t positions = in.k_heads.positions;
      const int64_t row = (part.sequence * KeyHeads(plan_) + head) * positions;
      k += row * k_width_;
      v += row * v_width_;
      if (n > 0 && list[n - 1] - list[0] == n - 1) {
        k += list[0] * k_width_;
        v += list[0] * v_width_;
      } else if (n > 0 && plan_.pairs) {
        int32_t* const numbers = plan_.bias ? scratch.Array<int32_t>(positions) : nullptr;
        if (numbers) std::iota(numbers, numbers + positions, 0);
        return {k, v, list, n, 1, 1, 0, 0, positions, numbers};
      } else {
        k = Gathered(k, list, n, k_width_, k_width_, scratch);
        v = Gathered(v, list, n, v_width_, v_width_, scratch);
      }
      return {k, v, list, n, 1, 1, 0, 0};
    }
    const int64_t k_head = plan_.k_head + head, v_head = plan_.v_head + head;
    k += first * heads * k_width_;
    v += first * v_heads * v_width_;
    const int64_t queries = in.q_offsets[part.sequence + 1] - in.q_offsets[part.sequence];
    if (n < kCopiedKeys || queries < kCopiedQueries)
      return {k, v, list, n, heads, v_heads, k_head, v_head};
    k = Gathered(k + k_head * k_width_, nullptr, n, heads * k_width_, k_width_, scratch);
    v = Gathered(v + v_head * v_width_, nullptr, n, v_heads * v_width_, v_width_, scratch);
    return {k, v, list, n, 1, 1, 0, 0};
  }

  static LivePairs CountPairs(const AttentionOperands<Tensor>& in) {
    LivePairs found;
    for (int64_t s = 0; s < in.sequences; ++s) {
      const int64_t queries = in.q_offsets[s + 1] - in.q_offsets[s],
                    keys = in.k_offsets[s + 1] - in.k_offsets[s];
      const int64_t first = in.pairs.first_tile[s], tiles = in.pairs.first_tile[s + 1] - first;
      found.pairs += queries * keys;
      found.tiles += tiles;
      found.keys += tiles * keys;
      for (int64_t i = 0; i < tiles; ++i) {
        const PairLists::Tile& tile = in.pairs.tiles[first + i];
        const int64_t n = std::min(kListedQueries, queries - i * kListedQueries);
        const auto lanes = static_cast<uint32_t>((uint64_t{1} << n) - 1);
        found.listed_keys += tile.count;
        if (tile.is_list == 0) found.live_pairs += n * tile.count;
        for (int64_t j = 0; tile.is_list != 0 && j < tile.count; ++j)
          found.live_pairs +=
              __builtin_popcount(static_cast<uint32_t>(in.pairs.seen_by[tile.first + j]) & lanes);
      }
    }
    return found;
  }

  double Flops(const AttentionOperands<Tensor>& in) const {
    double pairs = 0;
    for (int64_t s = 0; s < in.sequences; ++s) {
      const double queries = in.q_offsets[s + 1] - in.q_offsets[s],
                   keys = in.k_offsets[s + 1] - in.k_offsets[s];
      pairs += queries;  // one without keys still writes its row
      if (!plan_.pairs) {
        pairs += queries * keys;
        continue;
      }
      for (int64_t tile = in.pairs.first_tile[s]; tile < in.pairs.first_tile[s + 1]; ++tile) {
        pairs += kListedQueries * static_cast<double>(in.pairs.tiles[tile].count);
      }
    }
    return pairs * static_cast<double>(2 * plan_.heads * (plan_.d + plan_.dv));
  }

  const AttentionPlan plan_;
  const int64_t q_width_, k_width_, v_width_;
  const Element result_;
  const Kernel kernel_, listed_;
  const std::string node_;
  const std::shared_ptr<Trace> trace_;
};

}  // namespace

std::unique_ptr<Operation> MakeAttention(const AttentionPlan& plan, Kernel kernel, Kernel listed,
                                         const std::string& node, std::shared_ptr<Trace> trace) {
  return std::make_unique<Attention>(plan, std::move(kernel), std::move(listed), node,
                                     std::move(trace));
}

}  // namespace pitc

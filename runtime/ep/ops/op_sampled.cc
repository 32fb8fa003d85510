// contract with tiles: C = A @ B where a mask is not 0, and 0 elsewhere; B is computed when the
// model runs.
//
// Blocks of H rows of C list the columns in which one of them lives, and the kernel computes these:
// micro-tiles of H x 1. Of rows 01100100 and 01000001 of a mask, H = 2 lists columns 1, 2, 5 and 7,
// and three of the eight elements that are made are dead; H = 1 lists 1, 2, 5 and 1, 7.
//
// It is the dual of a product by a sparse B: there elements of the sparse matrix are multiplied,
// here they are made, by as many multiply-adds. So its features are those of C^T = B^T A^T, where
// the mask is the sparse operand and its products are sums of K, 64 of which are a panel.
#include <algorithm>
#include <array>
#include <limits>

#include "base/index.h"
#include "ops/operation.h"
#include "ops/sampled_mask.h"
#include "ops/sparse_operand.h"

namespace pitc {
namespace {

constexpr int64_t kHighest = kSegmentWidths[kSegmentKinds - 1];  // of the blocks; counted together
constexpr int64_t kNearColumns = 2048;  // of a task: a stretch of so many rows of B^T stays near
constexpr int64_t kLeastColumns = 256;
constexpr int64_t kBlockRows = 128, kCopyRows = 512;  // of a task; where B is copied for it
constexpr int64_t kDenseRows = 384;                   // share a copy of a panel of B
constexpr int64_t kFewRows = 48;                      // read B where it is
constexpr int64_t kThreadTasks = 4;                   // of each thread
constexpr int64_t kCountedK = 512;  // with fewer products of an element not all of them are counted
constexpr int64_t kGathered = 10;   // elements of B take as long as one that is copied; measured

// Rows of the blocks that a variant lists columns for; 0: it is none of these.
int64_t HeightOf(Variant variant) {
  const VariantRecord& record = RecordOf(variant);
  return record.cut == Cut::kRow ? 1 : record.cut == Cut::kBlock ? record.size : 0;
}

class Sampled final : public Operation {
 public:
  Sampled(const ContractPlan& plan, const CostTable& costs, const Primitives& simd,
          ContractionKernels kernels, SelectorOptions options)
      : plan_(plan), simd_(simd), kernels_(std::move(kernels)), options_(std::move(options)) {
    costs_.fill(costs);
    for (int v = 0; v < kVariants; ++v) {
      for (int other = 1; other < kVariants; ++other) {
        const bool listed = other == v && HeightOf(static_cast<Variant>(v)) > 0;
        bool& offered = costs_[static_cast<size_t>(v)].lines[other].offered;
        offered = offered && listed;
      }
    }
  }
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return ContractPlan::kOutputs; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    GemmOperands operands(run, plan_, scratch);
    operands.ReadLeft();
    const StoredRight right = ReadStored(run, plan_);
    const int64_t m = operands.left().count;
    const SampledMask mask = ReadSampledMask(run, simd_, plan_.Places().mask, m, plan_.n, scratch);
    operands.ReadRows();
    if (m > 0)
      Choose(run, operands.left(), right, mask, static_cast<float*>(operands.target().data));
  }

 private:
  // How tasks are cut: blocks of rows of C, and of columns.
  struct Cut {
    Blocks rows, columns;
    int64_t Count() const { return rows.Count() * columns.Count(); }
  };

  // The kernel makes a copy of its columns of B for each task.
  bool CopiesRight(int64_t height) const { return height == 1 || plan_.right == ContractPlan::kKn; }

  Cut CutFor(int64_t height, int64_t m, int threads) const {
    int64_t rows = CopiesRight(height) ? kCopyRows : kBlockRows, columns = kNearColumns;
    const auto cut = [&] {
      return Cut{EvenBlocks(m, rows, kHighest), EvenBlocks(plan_.n, columns, 64)};
    };
    const auto few = [&] { return threads > 1 && cut().Count() < kThreadTasks * threads; };
    while (few() && rows > kHighest) rows /= 2;
    while (few() && columns > kLeastColumns) columns /= 2;
    return cut();
  }

  // The work of a variant; what lives is still to be said.
  Work WorkOf(Variant variant, int64_t m, int threads) const {
    const int64_t k = plan_.k, n = plan_.n, panels = PanelCount(k), height = HeightOf(variant);
    const Cut cut = CutFor(height, m, threads);
    Work work{n, k, panels, cut.columns.size, 1, false, m, {}};
    for (size_t i = 0; i < std::size(kSegmentWidths); ++i)
      work.live_pieces[i] = work.live_runs[i + 1] = (m + kSegmentWidths[i] - 1) / kSegmentWidths[i];
    work.live_runs[0] = 1;
    work.turned = true;
    work.dense_rows = m;
    work.dense_panels = PanelCount(n);
    const int64_t copies = (m + kDenseRows - 1) / kDenseRows;
    work.dense_copied = (m > kFewRows ? n * k / 2 * copies : n * k / 8) + m * n / 4;
    work.threads = threads;
    work.dense_tasks = DenseCut(m, threads).Count();
    work.task_panels = std::max<int64_t>(1, panels / cut.rows.Count());
    return work;
  }

  // What a variant copies besides its lists, of so many micro-tiles; see SetCopied of computed B.
  int64_t Copied(Variant variant, const MicroTileCounts& counts, int64_t m, int threads) const {
    const int64_t height = HeightOf(variant);
    const int64_t gathered =
        height == 1 ? counts.elements : counts.segments[RecordOf(variant).place];
    const int64_t copies = CopiesRight(height) ? CutFor(height, m, threads).rows.Count() : 0;
    return gathered * plan_.k / kGathered + plan_.n * plan_.k / 2 * copies + m * plan_.n / 4;
  }

  // What lives: of all rows, or of some, which are the same ones for every mask of that size.
  MicroTileCounts Count(const RunContext& run, const SampledMask& mask, int threads) const {
    Arena::Scope scratch;
    const Blocks groups{mask.rows, kHighest};
    const int64_t all = groups.Count(), least = std::min<int64_t>(all, 2);
    const int64_t seen = std::clamp(all * plan_.k / kCountedK, least, all);
    auto* const found = scratch.Array<MicroTileCounts>(seen);
    const auto first_of = [&](int64_t s) { return groups.Begin(s * all / seen); };
    const auto last_of = [&](int64_t s) { return groups.End(s * all / seen); };
    run.Each(seen, threads > 1 && seen * kHighest * mask.columns > kSerialScan, [&](int64_t s) {
      Arena::Scope here;
      found[s] = {};
      auto* const any = here.Array<uint64_t>(mask.words);
      const int64_t first = first_of(s), last = last_of(s);
      found[s].elements = simd_.count_bits(mask.Row(first), (last - first) * mask.words);
      for (size_t i = 0; i < std::size(kSegmentWidths); ++i) {
        for (int64_t r = first; r < last; r += kSegmentWidths[i]) {
          mask.Any(r, std::min(r + kSegmentWidths[i], last), {0, mask.words}, any);
          found[s].segments[i] += simd_.count_bits(any, mask.words);
        }
      }
    });
    MicroTileCounts counts;
    int64_t rows = 0;
    for (int64_t s = 0; s < seen; ++s) {
      counts += found[s];
      rows += last_of(s) - first_of(s);
    }
    if (rows < mask.rows) counts.Scale(static_cast<double>(mask.rows), static_cast<double>(rows));
    return counts;
  }

  // A variant that lists columns, beside the dense one.
  struct Candidate {
    Variant variant = Variant::kDense;
    const CostTable* costs = nullptr;  // of both
    Work work{};
  };

  // The fastest one, or what the options say.
  Candidate BestOf(const MicroTileCounts& counts, int64_t m, int threads) const {
    Candidate best;
    double least = std::numeric_limits<double>::infinity();
    for (int v = 0; v < kVariants; ++v) {
      const auto variant = static_cast<Variant>(v);
      const CostTable& costs = costs_[static_cast<size_t>(v)];
      if (HeightOf(variant) == 0 || !costs.lines[v].offered) continue;
      Candidate other{variant, &costs, WorkOf(variant, m, threads)};
      other.work.counts = counts;
      other.work.sparse_copied = Copied(variant, counts, m, threads);
      const double us = Select(costs, other.work).predicted_us[v];
      const bool told = options_.variant == variant;
      if (!told && us >= least) continue;
      least = told ? 0 : us;
      best = other;
    }
    return best;
  }

  void Choose(const RunContext& run, const LeftRows& left, const StoredRight& right,
              const SampledMask& mask, float* c) const {
    const int threads = run.ThreadsFor(GemmFlops(left.count, left.k, right.n));
    Candidate found = BestOf({}, left.count, threads);
    if (found.variant == Variant::kDense || !IsWorthALook(*found.costs, found.work, options_))
      return RunDense(run, left, right, mask, threads, c);
    found = BestOf(Count(run, mask, threads), left.count, threads);
    const Decision decision(*found.costs, found.work, options_);
    if (decision.variant() == Variant::kDense) {
      RunDense(run, left, right, mask, threads, c);
    } else {
      RunListed(run, left, right, mask, HeightOf(decision.variant()), threads, c);
    }
    decision.Done();
  }

  Cut DenseCut(int64_t m, int threads) const {
    const int64_t panels = PanelCount(plan_.n), wanted = threads > 1 ? kThreadTasks * threads : 1;
    if (m <= kFewRows) return {{m, m}, EvenBlocks(panels, (panels + wanted - 1) / wanted, 1)};
    const int64_t parts = (wanted + panels - 1) / panels;
    return {EvenBlocks(m, std::clamp((m + parts - 1) / parts, kFewRows, kDenseRows), 6),
            {panels, 1}};
  }

  // The product, part by part, of which what is dead is set to 0 while it is near.
  void RunDense(const RunContext& run, const LeftRows& left, const StoredRight& right,
                const SampledMask& mask, int threads, float* c) const {
    Arena::Scope scratch;
    const int64_t m = mask.rows, n = mask.columns;
    const float* const no_bias =
        ReadBias(run, -1, ProductOf(plan_), PanelCount(n) * kPanelWidth, scratch);
    const Cut cut = DenseCut(m, threads);
    run.Each(cut.Count(), threads > 1, [&](int64_t task) {
      const int64_t p = task / cut.rows.Count(), part = task % cut.rows.Count();
      const Range rows{cut.rows.Begin(part), cut.rows.End(part)};
      const Range panels{cut.columns.Begin(p), cut.columns.End(p)};
      KernelCall call;
      call.Floats(left.data, {m, left.k}).Int32s(left.rows, {m});
      right.AddTo(&call);
      call.Floats(no_bias, {PanelCount(n) * kPanelWidth});
      call.Int32s(left.rows, {m}).Floats(c, {m, n});
      call.Int(rows.begin).Int(rows.end).Int(panels.begin).Int(panels.end).Run(kernels_.dense);
      const int64_t first = panels.begin * kPanelWidth;
      const int64_t width = std::min(panels.end * kPanelWidth, n) - first;
      for (int64_t r = rows.begin; r < rows.end; ++r)
        KeepLive(mask.Row(r) + panels.begin, nullptr, width, c + r * n + first);
    });
  }

  void RunListed(const RunContext& run, const LeftRows& left, const StoredRight& right,
                 const SampledMask& mask, int64_t height, int threads, float* c) const {
    const Cut cut = CutFor(height, mask.rows, threads);
    run.Each(cut.Count(), threads > 1, [&](int64_t task) {
      const int64_t p = task / cut.rows.Count(), part = task % cut.rows.Count();
      const Range rows{cut.rows.Begin(part), cut.rows.End(part)};
      RunPart(left, right, mask, height, rows, {cut.columns.Begin(p), cut.columns.End(p)}, c);
    });
  }

  // Some rows and columns of C.
  void RunPart(const LeftRows& left, const StoredRight& right, const SampledMask& mask,
               int64_t height, const Range& rows, const Range& columns, float* all) const {
    Arena::Scope scratch;
    const int64_t n = mask.columns, count = rows.end - rows.begin;
    const ListedColumns lists =
        ListColumns(simd_, height, rows, columns, scratch,
                    [&](int64_t first, int64_t last, const Range& words, uint64_t* any) {
                      mask.Any(first, last, words, any);
                    });
    float* const c = all + rows.begin * n;
    for (int64_t r = 0; r < count; ++r)
      std::fill_n(c + r * n + columns.begin, columns.end - columns.begin, 0.0f);
    if (lists.entries == 0) return;
    KernelCall call;
    call.Floats(left.data + rows.begin * left.k, {count, left.k});
    right.AddTo(&call);
    call.Int32s(lists.columns, {lists.entries})
        .Int32s(lists.starts, {lists.blocks + 1})
        .Floats(c, {count, n});
    call.Int(height).Int(columns.begin).Int(columns.end).Run(kernels_.listed.block);
    for (int64_t r = 0; r < count && height > 1; ++r) {
      KeepLive(mask.Row(rows.begin + r) + columns.begin / 64, lists.any + r / height * lists.words,
               columns.end - columns.begin, c + r * n + columns.begin);
    }
  }

  const ContractPlan plan_;
  std::array<CostTable, kVariants> costs_;  // of the dense variant, and of one that lists columns
  const Primitives& simd_;
  const ContractionKernels kernels_;
  const SelectorOptions options_;
};

}  // namespace

std::unique_ptr<Operation> MakeSampled(const ContractPlan& plan, const CostTable& costs,
                                       const Primitives& simd, ContractionKernels kernels,
                                       SelectorOptions options) {
  return std::make_unique<Sampled>(plan, costs, simd, std::move(kernels), std::move(options));
}

}  // namespace pitc

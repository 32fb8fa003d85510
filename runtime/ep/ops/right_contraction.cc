// Contractions whose right operand may hold zeros.
#include <algorithm>
#include <numeric>

#include "base/index.h"
#include "ops/contraction.h"
#include "ops/sparse_operand.h"

namespace pitc {
namespace {

constexpr int64_t kCallPanels = kTurnedColumns / kPanelWidth;
constexpr int64_t kPartRows = 256;   // rows of A that are worth making a panel of S again
constexpr int64_t kFewRows = 48;     // of A: counting all of S takes as long as multiplying by it
constexpr int64_t kGlance = 64;      // a glance at S reads one element in so many
constexpr double kClear = 1.4;       // times as long by a glance: more need not be counted
constexpr int64_t kThreadTasks = 4;  // of each thread

// How much of S is looked at before the decision: one row of S^T costs what one row of A does.
int64_t SampledRows(const LeftRows& left, const StoredRight& right) {
  return std::max<int64_t>(128, std::min(left.count, right.n / 32));
}

// What is read and written besides what the kernels do, in elements that are copied; as measured.
// Lists read lines that live again; where rows are made, S is read, and written around what lives.
void SetCopied(const LeftRows& left, const StoredRight& right, Work* work) {
  const int64_t size = right.n * right.k, t = left.count;
  const auto live = [&](int kind, int64_t times) {
    return std::min(size, times * kSegmentWidths[kind] * work->counts.segments[kind]);
  };
  const bool made = !right.turned || right.factor, few = t <= kFewRows;
  work->dense_copied = few ? size / 8 : size / 2;
  work->sparse_copied = t * (left.k + right.n);
  if (made) {
    work->sparse_copied += (right.mask ? 0 : size / 8) + live(kSegmentKinds - 1, 2) * 5 / 16;
  } else {
    work->sparse_copied += live(0, 1) / 4;
  }
  if (!right.factor) return;
  work->dense_copied += few ? size * 7 / 16 : size / 4;
  work->sparse_copied += right.mask ? live(0, 1) / 8 : size / 8;
}

// A glance at S, where even the counts of some of its rows would cost too much: what lives in
// squares of 64 x 64 elements, scaled to all of it. About one element in kGlance is read, at least
// one square, and the same ones for every S of that size.
MicroTileCounts Glance(const RunContext& run, const Primitives& simd, const OperandRows& operand,
                       bool parallel) {
  constexpr int64_t kSide = 64;
  constexpr uint64_t kGoldenShare = 0x9e3779b9;  // of 2^32: its multiples spread evenly
  const StoredMatrix& matrix = operand.Matrix();
  const int64_t words = BitWords(matrix.k), groups = (matrix.count + kSide - 1) / kSide;
  const int64_t squares = std::max<int64_t>(1, groups * words / kGlance);
  Arena::Scope scratch;
  auto* found = scratch.Array<MicroTileCounts>(squares);
  auto* sizes = scratch.Array<int64_t>(squares);
  run.Each(squares, parallel, [&](int64_t s) {
    Arena::Scope here;
    float* room = operand.AreMade() ? here.Array<float>(kSide * matrix.stride) : nullptr;
    const int64_t first = s * groups / squares * kSide;
    const auto place = static_cast<uint32_t>(static_cast<uint64_t>(s) * kGoldenShare);
    const int64_t begin = static_cast<int64_t>(place * static_cast<uint64_t>(words) >> 32) * kSide;
    const Range rows{first, std::min(first + kSide, matrix.count)};
    const Range ks{begin, std::min(begin + kSide, matrix.k)};
    const int64_t height = rows.end - rows.begin, width = ks.end - ks.begin;
    uint64_t bits[kSide];
    operand.Read(rows, ks, room, bits, 1);
    found[s] = {};
    simd.count_micro_tiles(bits, height, width, nullptr, found + s);
    sizes[s] = height * width;
  });
  MicroTileCounts counts;
  for (int64_t s = 0; s < squares; ++s) counts += found[s];
  const int64_t seen = std::accumulate(sizes, sizes + squares, int64_t{0});
  const auto all = static_cast<double>(matrix.count) * static_cast<double>(matrix.k);
  counts.Scale(all, static_cast<double>(seen));
  return counts;
}

// A^T in panels, or null where not all of it is finite.
const float* PackLeft(const RunContext& run, const Kernel& kernel, const LeftRows& left,
                      int threads, Arena::Scope& scratch) {
  const int64_t k = left.k, panels = PanelCount(left.count), size = k * kPanelWidth;
  const Blocks ks =
      EvenBlocks(k, std::max(kPanelWidth, k * panels / (kThreadTasks * threads)), kPanelWidth);
  const int64_t tasks = panels * ks.Count();
  auto* packed = scratch.Array<float>(panels * size);
  auto* odd = scratch.Array<int32_t>(tasks);
  run.Each(tasks, threads > 1 && panels * size > kSerialScan, [&](int64_t task) {
    const int64_t p = task / ks.Count(), part = task % ks.Count();
    KernelCall call;
    call.Floats(left.data, {left.count, k}).Floats(packed, {panels, k, kPanelWidth});
    call.Int32s(odd, {tasks}).Int(task).Int(p).Int(ks.Begin(part)).Int(ks.End(part));
    call.Run(kernel);
  });
  return std::any_of(odd, odd + tasks, [](int32_t x) { return x != 0; }) ? nullptr : packed;
}

// Rows of A that share a panel of S, which each part makes again.
Blocks DenseParts(const LeftRows& left, const StoredRight& right, int threads) {
  const int64_t wanted = kThreadTasks * threads / PanelCount(right.n);
  const int64_t parts = std::clamp<int64_t>(wanted, 1, (left.count + kPartRows - 1) / kPartRows);
  return EvenBlocks(left.count, (left.count + parts - 1) / parts, 1);
}

Blocks DensePanels(const LeftRows& left, const StoredRight& right, int threads) {
  const int64_t panels = PanelCount(right.n);
  const int64_t tasks = kThreadTasks * threads / DenseParts(left, right, threads).Count();
  return EvenBlocks(panels, threads > 1 ? std::max<int64_t>(1, panels / tasks) : panels, 1);
}

}  // namespace

void Contraction::RunRight(const RunContext& run, const LeftRows& left, const StoredRight& right,
                           const float* bias, const Target& target) const {
  if (left.count == 0) return;
  Arena::Scope scratch;
  SparseOperand operand(run, simd_, OperandRows(simd_, right, kernels_.rows), nullptr,
                        SampledRows(left, right));
  Work work = operand.Unseen(PanelCount(left.count), kCallPanels);
  work.turned = true;
  work.dense_rows = left.count;
  work.dense_panels = PanelCount(right.n);
  work.dense_tasks = DenseParts(left, right, work.threads).Count() * work.dense_panels;
  SetCopied(left, right, &work);
  const bool dense = IsRightDense(run, left, right, work);
  if (dense && !options_.trace) return RunRightDense(run, left, right, bias, target);
  operand.Count(&work, scratch);
  SetCopied(left, right, &work);
  Decision decision(costs_, work, options_);
  if (dense) decision.ChooseDense();
  const float* packed = nullptr;
  if (decision.variant() != Variant::kDense) {
    packed = PackLeft(run, kernels_.panels, left, work.threads, scratch);
    if (!packed) decision.ChooseDense();
  }
  if (!packed) {
    RunRightDense(run, left, right, bias, target);
    return decision.Done();
  }

  auto* no_bias = scratch.Array<float>(kTurnedColumns);
  std::fill_n(no_bias, kTurnedColumns, 0.0f);
  const int32_t* every = Identity(std::min(work.row_block, right.n), scratch);
  const auto task = [&](const BlockLists& lists, int64_t first, int64_t begin, int64_t end) {
    Arena::Scope here;
    const int64_t rows = lists.Rows();
    auto* sums = here.Array<float>(rows * kTurnedColumns);
    for (int64_t p = begin; p < end; p += kCallPanels) {
      const Panels b{packed + p * left.k * kPanelWidth, kCallPanels, left.k, kPanelWidth, no_bias};
      lists.Run(kernels_.listed, b, {sums, rows, kTurnedColumns, every, nullptr}, 0,
                std::min(kCallPanels, end - p));
      TurnBack(sums, rows, first, p * kPanelWidth, bias, target);
    }
  };
  operand.Each(decision.variant(), work, task);
  decision.Done();
}

bool Contraction::IsRightDense(const RunContext& run, const LeftRows& left,
                               const StoredRight& right, const Work& unseen) const {
  if (options_.variant) return false;
  // One row of A is done when the lists would be read for the first time.
  if (left.count == 1 || Select(costs_, unseen).variant == Variant::kDense) return true;
  // Few rows are done before more could be counted than a glance sees.
  Work work = unseen;
  const OperandRows operand(simd_, right, kernels_.rows);
  work.counts = Glance(run, simd_, operand, work.threads > 1 && left.count > kFewRows);
  work.live_columns = right.k;
  work.live_runs[0] = 1;
  for (size_t i = 0; i < std::size(kSegmentWidths); ++i) {
    work.live_pieces[i] = (right.k + kSegmentWidths[i] - 1) / kSegmentWidths[i];
    work.live_runs[i + 1] = 1;
  }
  SetCopied(left, right, &work);
  const Choice choice = Select(costs_, work);
  const double dense = choice.predicted_us[static_cast<int>(Variant::kDense)];
  const auto slower = [&](double other) { return other == dense || other > kClear * dense; };
  if (left.count <= kFewRows) return choice.variant == Variant::kDense;
  return std::all_of(std::begin(choice.predicted_us), std::end(choice.predicted_us), slower);
}

void Contraction::TurnBack(const float* sums, int64_t rows, int64_t first_column, int64_t first_row,
                           const float* bias, const Target& target) const {
  KernelCall call;
  call.Floats(sums, {rows, kTurnedColumns}).Floats(bias, {PanelCount(target.n) * kPanelWidth});
  if (target.residual) call.Floats(target.residual, {target.stored, target.n});
  call.Floats(target.data, {target.stored, target.n}).Int(first_column).Int(first_row);
  call.Run(kernels_.swrite);
}

void Contraction::RunRightDense(const RunContext& run, const LeftRows& left,
                                const StoredRight& right, const float* bias,
                                const Target& target) const {
  const int64_t t = left.count, k = left.k, panels = PanelCount(right.n);
  const int threads = run.ThreadsFor(GemmFlops(t, k, right.n));
  const Blocks rows = DenseParts(left, right, threads), columns = DensePanels(left, right, threads);
  run.Each(columns.Count() * rows.Count(), threads > 1, [&](int64_t task) {
    const int64_t p = task / rows.Count(), part = task % rows.Count();
    KernelCall call;
    call.Floats(left.data, {t, k}).Int32s(left.rows, {t});
    right.AddTo(&call);
    call.Floats(bias, {panels * kPanelWidth});
    if (target.residual) call.Floats(target.residual, {t, target.n});
    call.Int32s(target.rows, {t}).Floats(target.data, {t, target.n});
    call.Int(rows.Begin(part)).Int(rows.End(part)).Int(columns.Begin(p)).Int(columns.End(p));
    call.Run(kernels_.dense);
  });
}

}  // namespace pitc

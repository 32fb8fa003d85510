#include "select/selector.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

namespace pitc {
namespace {

constexpr double kSerialSteps = 3e4;  // about 20 us of one thread

// Lists of micro-tiles of 1 x kSegmentWidths[place]: of a pass over B and a k block, at most one
// per micro-tile.
double BlockLists(const Work& w, int place) {
  const auto passes = static_cast<double>(StepCount(w.rows, w.row_block));
  return std::min(static_cast<double>(w.counts.segments[place]),
                  passes * static_cast<double>(w.live_pieces[place]));
}

// Groups of rows, each with a list of micro-tiles of `height` x 1.
int64_t Groups(const Work& w, int64_t height) {
  return std::max<int64_t>(1, StepCount(w.rows, height));
}

// The knot before a ratio, and how far it is to the next; between powers of two it grows evenly.
struct Cell {
  Cell(const Axis& axis, double ratio) {
    int exponent;
    const double fraction = std::frexp(ratio, &exponent);
    const double place =
        std::clamp((exponent - 1 + (2 * fraction - 1)) / axis.doublings, 0.0, axis.knots - 1.0);
    knot = std::min(static_cast<int>(place), axis.knots - 2);
    rest = place - knot;
  }
  int knot;
  double rest;
};

// By what the sum of a variant's prices is multiplied: by one factor of each grid.
double Factor(const CostTable::Line& line, const Corners& shape) {
  if (!line.shaped) return 1;
  double product = 1;
  for (const auto& grid : shape.corners) {
    double factor = 0;
    for (const auto& c : grid) factor += static_cast<double>(line.factors[c.factor]) * c.share;
    product *= factor / static_cast<double>(kFactorUnit);
  }
  return product;
}

Features DenseFeatures(const Work& w) {
  const int64_t rows = w.turned ? w.dense_rows : w.rows;
  const auto panels = static_cast<double>(w.turned ? w.dense_panels : w.panels);
  const double streamed = panels * static_cast<double>(w.k),
               written = panels * static_cast<double>(rows);
  const int64_t full = rows / kTileRows, rest = rows % kTileRows;
  const int64_t padded = rest > kPairRows ? kTileRows : rest > 0 ? kPairRows : 0;
  const double steps = streamed * static_cast<double>(full * kTileRows + padded),
               visits = panels * static_cast<double>(full + (rest > 0));
  return {{1, 0, 0, written, 0, streamed, steps, visits}};
}

// How much of its work the busiest thread has: of making lists, and of the rest.
struct Shares {
  double lists = 1, tasks = 1;
};

double Share(int64_t tasks, int threads) {
  return static_cast<double>(StepCount(tasks, threads)) / static_cast<double>(tasks);
}

Shares SharesOf(Variant variant, const Work& w) {
  if (w.threads == 1) return {};
  if (variant == Variant::kDense) return {1, Share(w.dense_tasks, w.threads)};
  const int64_t blocks = StepCount(w.rows, w.row_block);
  const bool is_cut = w.counts.elements == 0 || IsWorthTasks(variant, w);  // unseen, or much
  const int64_t tasks = is_cut ? blocks * StepCount(w.panels, w.task_panels) : 1;
  return {Share(blocks, w.threads), Share(tasks, w.threads)};
}

// What a variant is predicted to take: the sum of all features; where B is asked for in order and
// long before it is used, what is streamed and what is computed overlap.
double Femtoseconds(Variant variant, const Work& work, const int64_t* prices) {
  constexpr int kScanned = static_cast<int>(Feature::kScanned),
                kWritten = static_cast<int>(Feature::kWritten),
                kStreamed = static_cast<int>(Feature::kStreamed);
  const Features features = FeaturesOf(variant, work);
  const auto cost = [&](int f) { return features.amount[f] * static_cast<double>(prices[f]); };
  double listed = 0, sum = 0, computed = 0;
  for (int f = kScanned; f < kWritten; ++f) listed += cost(f);
  for (int f = kWritten; f < kStreamed; ++f) sum += cost(f);
  for (int f = kStreamed + 1; f < kFeatures; ++f) computed += cost(f);
  const double streamed = cost(kStreamed);
  sum += RecordOf(variant).waits ? streamed + computed
                                 : std::sqrt(streamed * streamed + computed * computed);
  const Shares shares = SharesOf(variant, work);
  return cost(static_cast<int>(Feature::kLaunch)) + shares.lists * listed + shares.tasks * sum;
}

// Of an element that is copied outside the lists: it is read, and written to a line that is read
// before it is written back.
double CopyPrice(const CostTable& table) {
  const CostTable::Line& row = table.lines[static_cast<int>(Variant::kRow)];
  return 3 * static_cast<double>(row.prices[static_cast<int>(Feature::kScanned)]);
}

}  // namespace

Features FeaturesOf(Variant variant, const Work& w) {
  if (variant == Variant::kDense) return DenseFeatures(w);
  const auto panels = static_cast<double>(w.panels), rows = static_cast<double>(w.rows);
  const double scanned = w.scanned ? rows * static_cast<double>(w.k) : 0, written = panels * rows;
  const double passes = 1 + kLaterPass * static_cast<double>(StepCount(w.rows, w.row_block) - 1);
  const VariantRecord& record = RecordOf(variant);
  const int place = record.place;
  if (record.cut == Cut::kBlock) {
    const auto width = static_cast<double>(record.size);
    const auto pieces = static_cast<double>(w.counts.segments[place]);
    const double lists = BlockLists(w, place);
    const double runs = std::min(lists, passes * static_cast<double>(w.live_runs[place + 1]));
    const double streamed = std::min(lists, passes * static_cast<double>(w.live_pieces[place]));
    // A list ends with half a register tile where that is enough.
    const double tiles = pieces / kListedRows + lists / (2 * kListedRows);
    return {{1, scanned, pieces * width, written, panels * runs, panels * streamed * width,
             panels * tiles * kListedRows * width, panels * tiles}};
  }
  const double columns = panels * passes * static_cast<double>(w.live_columns),
               runs = panels * passes * static_cast<double>(w.live_runs[0]);
  if (record.cut == Cut::kRow) {
    const auto entries = static_cast<double>(w.counts.elements);
    const double lists = rows * static_cast<double>(w.k_blocks);
    return {{1, scanned, entries, written, runs, columns, panels * entries, panels * lists}};
  }
  const int64_t height = record.size;
  const int64_t groups = Groups(w, height);
  const int64_t last = std::max<int64_t>(0, w.rows - (groups - 1) * height);
  const auto strips =
      static_cast<double>((groups - 1) * (height / kListedRows) + StepCount(last, kListedRows));
  const auto lists = static_cast<double>(groups);
  const auto entries = static_cast<double>(w.counts.strips[place]);
  const double listed = entries * strips * kListedRows / lists,
               visits = panels * strips * (1 + entries / lists / static_cast<double>(kChunk));
  return {{1, scanned, listed, written, runs, columns, panels * listed, visits}};
}

Corners CornersOf(const Work& w) {
  const auto live = [](int64_t count) { return static_cast<double>(count) + 1; };
  constexpr int kBlock32 = RecordOf(Variant::kBlock32).place;
  constexpr VariantRecord kTile = RecordOf(Variant::kTile8);
  const double tile8 = live(w.counts.strips[kTile.place]),
               block32 = live(w.counts.segments[kBlock32]),
               block64 = live(w.counts.segments[RecordOf(Variant::kBlock64).place]);
  const double ratios[kGrids][2] = {
      {2 * block64 / block32, block32 / (BlockLists(w, kBlock32) + 1)},
      {static_cast<double>(kTile.size) * tile8 / live(w.counts.elements),
       tile8 / static_cast<double>(Groups(w, kTile.size))}};
  Corners found;
  int start = 0;
  for (int g = 0; g < kGrids; ++g) {
    const Axis &a = kGridAxes[g][0], &b = kGridAxes[g][1];
    const Cell x(a, ratios[g][0]), y(b, ratios[g][1]);
    const int at = start + x.knot * b.knots + y.knot, next = at + b.knots;
    const double u = x.rest, v = y.rest;
    const Corners::Corner corners[] = {
        {at, (1 - u) * (1 - v)}, {at + 1, (1 - u) * v}, {next, u * (1 - v)}, {next + 1, u * v}};
    std::copy_n(corners, 4, found.corners[g]);
    start += a.knots * b.knots;
  }
  return found;
}

bool IsWorthTasks(Variant variant, const Work& work) {
  return FeaturesOf(variant, work).amount[static_cast<int>(Feature::kSteps)] > kSerialSteps;
}

Choice Select(const CostTable& table, const Work& work) {
  Choice choice{Variant::kDense, {}};
  const Corners shape = CornersOf(work);
  for (int v = 0; v < kVariants; ++v) {
    const CostTable::Line& line = table.lines[v];
    double& predicted = choice.predicted_us[v] = std::numeric_limits<double>::infinity();
    if (!line.offered) continue;
    const auto variant = static_cast<Variant>(v);
    const double copied = static_cast<double>(v == 0 ? work.dense_copied : work.sparse_copied);
    predicted = (Factor(line, shape) * Femtoseconds(variant, work, line.prices) +
                 CopyPrice(table) * copied / work.threads) /
                kFemtoseconds;
    const double gain = choice.variant == Variant::kDense ? table.least_gain : 1;
    if (gain * predicted < choice.predicted_us[static_cast<int>(choice.variant)])
      choice.variant = variant;
  }
  return choice;
}

}  // namespace pitc

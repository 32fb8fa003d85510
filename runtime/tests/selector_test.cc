#include "select/selector.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"

using pitc::CostTable;
using pitc::Feature;
using pitc::kFeatures;
using pitc::kVariants;
using pitc::Variant;
using pitc::Work;

namespace {

constexpr int kSteps = static_cast<int>(Feature::kSteps);

constexpr int At(Variant v) { return static_cast<int>(v); }

// 700 rows of 100 elements times 3 panels, in list blocks of 352 rows.
Work SomeWork() {
  Work work{700, 100, 3, 352, 2, true, 90, {}, {}};
  work.counts.elements = 6000;
  work.counts.strips[0] = 5000;    // 8x1
  work.counts.segments[0] = 3000;  // 1x16
  work.counts.segments[1] = 2000;  // 1x32
  work.counts.segments[2] = 1200;  // 1x64
  const int64_t pieces[] = {7, 3, 2}, runs[] = {10, 1, 2, 1};
  std::copy_n(pieces, 3, work.live_pieces);
  std::copy_n(runs, 4, work.live_runs);
  return work;
}

CostTable Table(const std::vector<Variant>& offered, int64_t price_of_steps) {
  CostTable table;
  for (Variant v : offered) {
    CostTable::Line& line = table.lines[At(v)];
    line.offered = true;
    line.prices[kSteps] = price_of_steps;
  }
  return table;
}

void Features() {
  // launch, scanned, listed, written, runs, streamed, steps, visits; the second of two passes over
  // B costs a quarter of the first
  const struct {
    Variant variant;
    double amount[kFeatures];
  } expected[] = {
      // 116 tiles of 6 rows, and one for the other 4
      {Variant::kDense, {1, 0, 0, 2100, 0, 3 * 100, 3 * 100 * 702., 3 * 117}},
      {Variant::kRow, {1, 70000, 6000, 2100, 3 * 1.25 * 10, 3 * 1.25 * 90, 3 * 6000, 3 * 700 * 2}},
      // 88 groups, the last one with 4 rows: 175 strips of 4
      {Variant::kTile8,
       {1, 70000, 5000 * 700 / 88., 2100, 3 * 1.25 * 10, 3 * 1.25 * 90, 3 * 5000 * 700 / 88.,
        3 * 175 * (1 + 5000 / 88. / 64)}},
      // lists: 2 blocks of rows times 7, 3, 2 blocks of k; half of 4 rows, for one in four of them
      {Variant::kBlock16,
       {1, 70000, 48000, 2100, 3 * 1.25 * 1, 3 * 1.25 * 7 * 16, 3 * 16 * (3000 + 14 / 2.),
        3 * (3000 / 4. + 14 / 8.)}},
      {Variant::kBlock32,
       {1, 70000, 64000, 2100, 3 * 1.25 * 2, 3 * 1.25 * 3 * 32, 3 * 32 * (2000 + 6 / 2.),
        3 * (2000 / 4. + 6 / 8.)}},
      {Variant::kBlock64,
       {1, 70000, 76800, 2100, 3 * 1.25 * 1, 3 * 1.25 * 2 * 64, 3 * 64 * (1200 + 4 / 2.),
        3 * (1200 / 4. + 4 / 8.)}},
  };
  for (const auto& e : expected) {
    const pitc::Features features = pitc::FeaturesOf(e.variant, SomeWork());
    for (int f = 0; f < kFeatures; ++f) {
      const bool same = std::abs(features.amount[f] - e.amount[f]) < 1e-6;
      if (!same) printf("%s[%d]: %g\n", Name(e.variant), f, features.amount[f]);
      CHECK(same);
    }
  }
}

double Amount(Variant variant, Feature feature, const Work& work) {
  return pitc::FeaturesOf(variant, work).amount[static_cast<int>(feature)];
}

void FeaturesOfSmallWork() {
  Work work{5, 100, 3, 32, 1, false, 90, {}, {}};
  work.counts.strips[0] = 40;
  work.counts.segments[0] = 2;
  work.live_pieces[0] = 7;
  work.live_runs[1] = 3;
  // A tile has whole strips of 4 rows; what was read already costs nothing; two entries are two
  // lists at most.
  CHECK(Amount(Variant::kTile8, Feature::kScanned, work) == 0);
  CHECK(Amount(Variant::kTile8, Feature::kListed, work) == 40 * 8);
  CHECK(Amount(Variant::kTile8, Feature::kSteps, work) == 3 * 40 * 8);
  CHECK(Amount(Variant::kBlock16, Feature::kRuns, work) == 3 * 2);
  CHECK(Amount(Variant::kBlock16, Feature::kStreamed, work) == 3 * 2 * 16);
  for (int v = 0; v < kVariants; ++v) {
    for (double amount :
         pitc::FeaturesOf(static_cast<Variant>(v), Work{0, 1, 1, 32, 1, true, 0, {}, {}}).amount)
      CHECK(amount >= 0 && amount <= 1);
  }
}

// The sparse operand is the right one: lists see it as the left one, the dense kernel does not.
// What is copied besides costs what it costs to read it three times.
void TurnedWork() {
  Work work = SomeWork();
  work.turned = true;
  work.dense_rows = 150;
  work.dense_panels = 11;
  const double expected[kFeatures] = {1, 0, 0, 11 * 150, 0, 11 * 100, 11 * 100 * 150, 11 * 25};
  const pitc::Features dense = pitc::FeaturesOf(Variant::kDense, work);
  for (int f = 0; f < kFeatures; ++f) CHECK(dense.amount[f] == expected[f]);
  for (int v = 1; v < kVariants; ++v) {
    const auto variant = static_cast<Variant>(v);
    const pitc::Features turned = pitc::FeaturesOf(variant, work),
                         other = pitc::FeaturesOf(variant, SomeWork());
    CHECK(!memcmp(&turned, &other, sizeof turned));
  }

  constexpr int kScanned = static_cast<int>(Feature::kScanned),
                kListed = static_cast<int>(Feature::kListed);
  CostTable table = Table({Variant::kDense, Variant::kRow, Variant::kTile8}, 0);
  work.scanned = false;
  work.counts.elements = 0;
  table.lines[At(Variant::kRow)].prices[kScanned] = 3;
  table.lines[At(Variant::kRow)].prices[kListed] = 1000;     // does not matter
  table.lines[At(Variant::kTile8)].prices[kScanned] = 1000;  // nor does this
  work.dense_copied = 4000000;
  work.sparse_copied = 3000000;
  const pitc::Choice choice = Select(table, work);
  CHECK(std::abs(choice.predicted_us[At(Variant::kDense)] - 0.036) < 1e-9);
  CHECK(std::abs(choice.predicted_us[At(Variant::kRow)] - 0.027) < 1e-9);
  CHECK(choice.variant == Variant::kRow);
  work.sparse_copied = 5000000;
  CHECK(Select(table, work).variant == Variant::kDense);
}

void DenseRowsArePadded() {
  Work work = SomeWork();
  const int64_t rows[] = {1, 2, 3, 6, 7, 8, 9, 12}, padded[] = {2, 2, 6, 6, 8, 8, 12, 12};
  const int64_t tiles[] = {1, 1, 1, 1, 2, 2, 2, 2};
  for (int i = 0; i < 8; ++i) {
    work.rows = rows[i];
    const auto steps = static_cast<double>(3 * 100 * padded[i]);
    CHECK(Amount(Variant::kDense, Feature::kSteps, work) == steps);
    const auto visits = static_cast<double>(3 * tiles[i]);
    CHECK(Amount(Variant::kDense, Feature::kVisits, work) == visits);
  }
}

void ChoosesTheCheapest() {
  const Work work = SomeWork();
  for (int v = 0; v < kVariants; ++v) {
    CostTable table = Table({Variant::kDense, Variant::kRow, Variant::kTile8, Variant::kBlock16,
                             Variant::kBlock32, Variant::kBlock64},
                            1000000);
    table.lines[v].prices[kSteps] = 1;
    const pitc::Choice choice = Select(table, work);
    CHECK(At(choice.variant) == v);
    for (int other = 0; other < kVariants; ++other)
      CHECK(choice.predicted_us[v] <= choice.predicted_us[other]);
  }
  // 1 femtosecond for each of 18000 steps
  const pitc::Choice choice = Select(Table({Variant::kDense, Variant::kRow}, 1), work);
  CHECK(choice.variant == Variant::kRow && choice.predicted_us[At(Variant::kRow)] == 18000e-9);
}

void TiesTakeTheFirst() {
  CHECK(Select(Table({Variant::kDense, Variant::kRow, Variant::kBlock64}, 0), SomeWork()).variant ==
        Variant::kDense);
  CostTable table = Table({Variant::kDense, Variant::kTile8, Variant::kBlock32}, 0);
  table.lines[0].prices[0] = 1;
  CHECK(Select(table, SomeWork()).variant == Variant::kTile8);
}

// Of 1000 femtoseconds dense: 953 are not 1.05 times as fast, 952 are.
void NearTiesTakeDense() {
  CostTable table = Table({Variant::kDense, Variant::kRow, Variant::kTile8}, 0);
  table.lines[0].prices[0] = 1000;
  for (const int64_t price : {953, 952}) {
    table.lines[At(Variant::kRow)].prices[0] = price;
    table.lines[At(Variant::kTile8)].prices[0] = price;
    const Variant chosen = price < 953 ? Variant::kRow : Variant::kDense;
    CHECK(Select(table, SomeWork()).variant == chosen);
  }
  table.lines[At(Variant::kTile8)].prices[0] = 951;  // of lists the fastest, by however little
  CHECK(Select(table, SomeWork()).variant == Variant::kTile8);
}

void NotOfferedIsNeverChosen() {
  CostTable table = Table({Variant::kDense}, int64_t{1} << 50);
  const pitc::Choice choice = Select(table, SomeWork());
  CHECK(choice.variant == Variant::kDense && std::isfinite(choice.predicted_us[0]));
  for (int v = 1; v < kVariants; ++v) CHECK(std::isinf(choice.predicted_us[v]));
}

// They count together as the root of the sum of their squares, or one behind the other.
void MemoryAndArithmeticOverlap() {
  Work work = SomeWork();
  for (int v = 0; v < kVariants; ++v) {
    const auto variant = static_cast<Variant>(v);
    CostTable table = Table({variant}, 0);
    table.lines[v].prices[static_cast<int>(Feature::kStreamed)] = 7000;
    table.lines[v].prices[kSteps] = 11;
    table.lines[v].prices[static_cast<int>(Feature::kWritten)] = 13;
    const double streamed = 7000 * Amount(variant, Feature::kStreamed, work),
                 computed = 11 * Amount(variant, Feature::kSteps, work);
    const bool overlap = v == 0 || v >= At(Variant::kBlock16);
    const double both = overlap ? std::hypot(streamed, computed) : streamed + computed;
    const double us = Select(table, work).predicted_us[v];
    CHECK(std::abs(us / ((both + 13 * 2100.) * 1e-9) - 1) < 1e-12);
  }
}

// Of each grid the share of the factor at each knot.
void ShapesLieBetweenKnots() {
  const auto shares = [](const Work& work) {
    std::vector<double> found(pitc::kFactors);
    for (const auto& grid : CornersOf(work).corners) {
      double sum = 0;
      for (const auto& corner : grid) {
        CHECK(corner.share >= 0);
        found.at(static_cast<size_t>(corner.factor)) += corner.share;
        sum += corner.share;
      }
      CHECK(std::abs(sum - 1) < 1e-12);
    }
    return found;
  };
  // Groups of 8 rows list 4 micro-tiles of 8x1 each, in which 2 of 8 elements live: at a knot of
  // each axis but one.
  Work work{16 * 8, 4096, 3, 512, 1, true, 0, {}, {}};
  work.counts.strips[0] = 16 * 4 - 1;
  work.counts.elements = 2 * 16 * 4 - 1;  // 4 to 1: half of them, the knot after 1
  work.counts.segments[1] = 16 * 4 - 1;
  work.counts.segments[2] = 16 * 4 - 1;  // 1x64 with one 1x32 each
  work.live_pieces[1] = 3;               // three lists of 1x32: 64 to 4
  std::vector<double> at = shares(work);
  CHECK(at[7 + 2] == 1 && at[14 + 7 + 1] == 1);
  // Three quarters of the way from 4 to 8 is three eighths of that from 4 to 16.
  work.counts.strips[0] = 16 * 7 - 1;
  work.counts.elements = 8 * 16 * 7 - 1;
  work.live_pieces[1] = 0;  // no list: 64 entries of one
  at = shares(work);
  CHECK(at[7 + 3] == 1 && at[14 + 1] == 0.625 && at[14 + 2] == 0.375);
  // Nothing, and everything.
  at = shares(Work{0, 1, 1, 32, 1, true, 0, {}, {}});
  CHECK(at[7] == 1 && at[14 + 7] == 0.5 && at[14 + 14] == 0.5);
  work.counts.strips[0] = work.counts.elements = INT64_MAX;
  work.counts.segments[1] = work.counts.segments[2] = INT64_MAX;
  at = shares(work);
  CHECK(at[7 + 6] == 1 && at[14 + 7 + 6] > 0);
}

void FactorsMultiplyTimes() {
  const Work work = SomeWork();
  CostTable table = Table({Variant::kDense, Variant::kRow}, 1000);
  const pitc::Choice plain = Select(table, work);
  CHECK(plain.variant == Variant::kRow);
  CostTable::Line& line = table.lines[At(Variant::kRow)];
  line.shaped = true;
  std::fill_n(line.factors, pitc::kFactors, 2000);
  std::fill_n(line.factors + 14, 21, 7000);
  const pitc::Choice shaped = Select(table, work);
  CHECK(shaped.variant == Variant::kDense);
  CHECK(shaped.predicted_us[0] == plain.predicted_us[0]);
  CHECK(std::abs(shaped.predicted_us[1] / plain.predicted_us[1] - 2 * 7) < 1e-9);
}

void NamesAreThoseOfPlans() {
  const char* names[] = {"dense", "row", "tile8", "block16", "block32", "block64"};
  for (int v = 0; v < kVariants; ++v) CHECK(!strcmp(Name(static_cast<Variant>(v)), names[v]));
}

// The busiest thread counts: 33 tasks are three turns of 16 threads, and lists are made block by
// block of rows. Little work is done by one.
void Threads() {
  CostTable table = Table({Variant::kDense, Variant::kRow}, 1000);
  CostTable::Line& row = table.lines[At(Variant::kRow)];
  row.prices[static_cast<int>(Feature::kListed)] = 5000;
  Work work = SomeWork();
  work.counts.elements = 60000;
  const pitc::Choice one = Select(table, work);
  CHECK(std::abs(one.predicted_us[0] - 3 * 100 * 702 * 1e-6) < 1e-9);
  CHECK(std::abs(one.predicted_us[1] - (3 + 5) * 0.06) < 1e-9);
  work.threads = 16;
  work.dense_tasks = 33;
  work.task_panels = 1;  // 6 tasks, of 2 blocks of rows
  const pitc::Choice many = Select(table, work);
  CHECK(std::abs(many.predicted_us[0] - 3 * 100 * 702 * 1e-6 * 3 / 33) < 1e-9);
  CHECK(std::abs(many.predicted_us[1] - (3 * 0.06 / 6 + 5 * 0.06 / 2)) < 1e-9);
  work.counts.elements = 6000;
  CHECK(std::abs(Select(table, work).predicted_us[1] - (3 * 0.006 + 5 * 0.006 / 2)) < 1e-9);
}

}  // namespace

int main() {
  return pitc::test::RunTests({{"features", Features},
                               {"features of small work", FeaturesOfSmallWork},
                               {"turned work", TurnedWork},
                               {"threads", Threads},
                               {"dense rows are padded", DenseRowsArePadded},
                               {"chooses the cheapest", ChoosesTheCheapest},
                               {"ties take the first", TiesTakeTheFirst},
                               {"near ties take dense", NearTiesTakeDense},
                               {"what is not offered is never chosen", NotOfferedIsNeverChosen},
                               {"memory and arithmetic overlap", MemoryAndArithmeticOverlap},
                               {"shapes lie between knots", ShapesLieBetweenKnots},
                               {"factors multiply times", FactorsMultiplyTimes},
                               {"names are those of plans", NamesAreThoseOfPlans}});
}

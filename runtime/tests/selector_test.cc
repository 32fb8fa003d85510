#include "selector.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "check.h"

using pitc::CostTable;
using pitc::kFeatures;
using pitc::kVariants;
using pitc::Variant;
using pitc::Work;

namespace {

constexpr int kSteps = static_cast<int>(pitc::Feature::kSteps);

constexpr int At(Variant v) { return static_cast<int>(v); }

// 700 rows of 100 elements times 3 panels, in list blocks of 352 rows.
Work SomeWork() {
  Work work{700, 100, 3, 352, 2, true, 90, {}, {}};
  work.counts.elements = 6000;
  work.counts.strips[1] = 5000;    // 8x1
  work.counts.strips[3] = 1900;    // 32x1
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
    for (auto& prices : line.prices) prices[kSteps] = price_of_steps;
  }
  return table;
}

void Features() {
  // launch, steps, visits, scanned, listed, streamed, written, reread, pages, runs
  const struct {
    Variant variant;
    double amount[kFeatures];
  } expected[] = {
      {Variant::kDense, {1, 3 * 100 * 700., 3 * 117, 0, 0, 3 * 100, 2100, 3 * 100 * 8, 0, 0}},
      {Variant::kRow,
       {1, 3 * 6000, 3 * 700 * 2, 70000, 6000, 3 * 2 * 90, 2100, 0, 3 * 2 * 7, 3 * 2 * 10}},
      {Variant::kTile8,
       {1, 3 * 5000 * 8, 3 * 88, 70000, 5000 * 8, 3 * 2 * 90, 2100, 3 * 5000, 3 * 2 * 7,
        3 * 2 * 10}},
      {Variant::kTile32,
       {1, 3 * 1900 * 32, 3 * 22, 70000, 1900 * 32, 3 * 2 * 90, 2100, 3 * 1900, 3 * 2 * 7,
        3 * 2 * 10}},
      // lists: 2 blocks of rows times 7, 3, 2 blocks of k; half of 4 rows, for one in four of them
      {Variant::kBlock16,
       {1, 3 * 16 * (3000 + 14 / 2.), 3 * (3000 / 4. + 14 / 8.), 70000, 48000, 3 * 14 * 16, 2100, 0,
        3 * 14, 3 * 2 * 1}},
      {Variant::kBlock32,
       {1, 3 * 32 * (2000 + 6 / 2.), 3 * (2000 / 4. + 6 / 8.), 70000, 64000, 3 * 6 * 32, 2100, 0,
        3 * 6, 3 * 2 * 2}},
      {Variant::kBlock64,
       {1, 3 * 64 * (1200 + 4 / 2.), 3 * (1200 / 4. + 4 / 8.), 70000, 76800, 3 * 4 * 64, 2100, 0,
        3 * 4, 3 * 2 * 1}},
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

void FeaturesOfSmallWork() {
  Work work{5, 100, 3, 32, 1, false, 90, {}, {}};
  work.counts.strips[1] = work.counts.strips[3] = 40;
  work.counts.segments[0] = 2;
  work.live_pieces[0] = 7;
  work.live_runs[1] = 3;
  // A tile has as many rows as there are; what was read already costs nothing; two entries are two
  // lists at most.
  const pitc::Features tile = pitc::FeaturesOf(Variant::kTile32, work);
  CHECK(tile.amount[1] == 3 * 40 * 5 && tile.amount[2] == 3 && tile.amount[3] == 0);
  const pitc::Features block = pitc::FeaturesOf(Variant::kBlock16, work);
  CHECK(block.amount[5] == 3 * 2 * 16 && block.amount[8] == 3 * 2 && block.amount[9] == 3 * 2);
  for (int v = 0; v < kVariants; ++v) {
    for (double amount :
         pitc::FeaturesOf(static_cast<Variant>(v), Work{0, 1, 1, 32, 1, true, 0, {}, {}}).amount)
      CHECK(amount >= 0 && amount <= 1);
  }
}

void ChoosesTheCheapest() {
  const Work work = SomeWork();
  for (int v = 0; v < kVariants; ++v) {
    CostTable table = Table({Variant::kDense, Variant::kRow, Variant::kTile8, Variant::kTile32,
                             Variant::kBlock16, Variant::kBlock32, Variant::kBlock64},
                            1000000);
    for (auto& prices : table.lines[v].prices) prices[kSteps] = 1;
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
  for (auto& prices : table.lines[0].prices) prices[0] = 1;
  CHECK(Select(table, SomeWork()).variant == Variant::kTile8);
}

void NotOfferedIsNeverChosen() {
  CostTable table = Table({Variant::kDense}, int64_t{1} << 50);
  const pitc::Choice choice = Select(table, SomeWork());
  CHECK(choice.variant == Variant::kDense && std::isfinite(choice.predicted_us[0]));
  for (int v = 1; v < kVariants; ++v) CHECK(std::isinf(choice.predicted_us[v]));
}

void PricesDependOnTheReuse() {
  // Dense has the reuse of its rows, the row lists as many as there are entries per column.
  for (int c = 0; c < pitc::kReuseClasses; ++c) {
    CostTable table = Table({Variant::kDense, Variant::kRow}, 0);
    for (int other = 0; other < pitc::kReuseClasses; ++other)
      table.lines[At(Variant::kDense)].prices[other][0] = other == c ? 5000 : 7000;
    table.lines[At(Variant::kRow)].prices[0][0] = 6000;
    Work work = SomeWork();
    work.counts.elements = work.live_columns;
    work.row_block = 1000;
    const int64_t least[] = {1, 3, 9, 33}, most[] = {2, 8, 32, 700};
    for (int at = 0; at < pitc::kReuseClasses; ++at) {
      for (int64_t rows : {least[at], most[at]}) {
        work.rows = rows;
        CHECK(Select(table, work).variant == (at == c ? Variant::kDense : Variant::kRow));
      }
    }
  }
}

void NamesAreThoseOfPlans() {
  const char* names[] = {"dense", "row", "tile8", "tile32", "block16", "block32", "block64"};
  for (int v = 0; v < kVariants; ++v) CHECK(!strcmp(Name(static_cast<Variant>(v)), names[v]));
}

}  // namespace

int main() {
  return pitc::test::RunTests({{"features", Features},
                               {"features of small work", FeaturesOfSmallWork},
                               {"chooses the cheapest", ChoosesTheCheapest},
                               {"ties take the first", TiesTakeTheFirst},
                               {"what is not offered is never chosen", NotOfferedIsNeverChosen},
                               {"prices depend on the reuse", PricesDependOnTheReuse},
                               {"names are those of plans", NamesAreThoseOfPlans}});
}

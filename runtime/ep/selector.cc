#include "selector.h"

#include <algorithm>
#include <limits>

namespace pitc {
namespace {

constexpr const char* kNames[kVariants] = {"dense",   "row",     "tile8",  "tile32",
                                           "block16", "block32", "block64"};
constexpr double kFemtosecondsPerMicrosecond = 1e9;
constexpr int64_t kTileRows = 6;    // of a register tile on the dense path
constexpr int64_t kListedRows = 4;  // and of one over listed micro-tiles
constexpr int64_t kDenseRows = 96;  // that share a pass over B on the dense path

// Which of the detector's counts a variant has, and the size of its micro-tile.
struct Micro {
  int place;
  int64_t extent;
};
constexpr Micro kTiles[] = {{1, 8}, {3, 32}};
constexpr Micro kBlocks[] = {{0, 16}, {1, 32}, {2, 64}};

double Ceil(int64_t n, int64_t d) { return static_cast<double>((n + d - 1) / d); }

int ReuseClass(const Features& features) {
  const auto amount = [&](Feature f) { return features.amount[static_cast<int>(f)]; };
  const double reuse = amount(Feature::kSteps) / std::max(1.0, amount(Feature::kStreamed));
  int found = 0;
  for (double most : kReuse) found += reuse > most;
  return found;
}

}  // namespace

const char* Name(Variant variant) { return kNames[static_cast<int>(variant)]; }

Features FeaturesOf(Variant variant, const Work& w) {
  const auto rows = static_cast<double>(w.rows), k = static_cast<double>(w.k),
             panels = static_cast<double>(w.panels);
  const double scanned = w.scanned ? rows * k : 0, written = panels * rows;
  const double passes = Ceil(w.rows, w.row_block), read = panels * passes;
  const double columns = read * static_cast<double>(w.live_columns),
               pages = read * static_cast<double>(w.live_pieces[0]),
               runs = read * static_cast<double>(w.live_runs[0]);
  switch (variant) {
    case Variant::kDense:
      return {{1, panels * k * rows, panels * Ceil(w.rows, kTileRows), 0, 0, panels * k, written,
               panels * k * Ceil(w.rows, kDenseRows), 0, 0}};
    case Variant::kRow: {
      const auto entries = static_cast<double>(w.counts.elements);
      return {{1, panels * entries, written * static_cast<double>(w.k_blocks), scanned, entries,
               columns, written, 0, pages, runs}};
    }
    case Variant::kTile8:
    case Variant::kTile32: {
      const Micro micro = kTiles[variant == Variant::kTile32];
      const auto lists = static_cast<double>(w.counts.strips[micro.place]);
      const double entries = lists * static_cast<double>(std::min(micro.extent, w.rows));
      return {{1, panels * entries, panels * Ceil(w.rows, micro.extent), scanned, entries, columns,
               written, panels * lists, pages, runs}};
    }
    default: {
      const Micro micro = kBlocks[static_cast<int>(variant) - static_cast<int>(Variant::kBlock16)];
      const auto extent = static_cast<double>(micro.extent);
      const auto pieces = static_cast<double>(w.counts.segments[micro.place]);
      const double lists =
          std::min(pieces, passes * static_cast<double>(w.live_pieces[micro.place]));
      // A list ends with half a register tile where that is enough.
      const double tiles = pieces / kListedRows + lists / (2 * kListedRows);
      const double stretches =
          std::min(lists, passes * static_cast<double>(w.live_runs[micro.place + 1]));
      return {{1, panels * tiles * kListedRows * extent, panels * tiles, scanned, pieces * extent,
               panels * lists * extent, written, 0, panels * lists, panels * stretches}};
    }
  }
}

Choice Select(const CostTable& table, const Work& work) {
  Choice choice{Variant::kDense, {}};
  for (int v = 0; v < kVariants; ++v) {
    const CostTable::Line& line = table.lines[v];
    double& predicted = choice.predicted_us[v];
    predicted = std::numeric_limits<double>::infinity();
    if (!line.offered) continue;
    const Features features = FeaturesOf(static_cast<Variant>(v), work);
    const int64_t* prices = line.prices[ReuseClass(features)];
    double femtoseconds = 0;
    for (int f = 0; f < kFeatures; ++f)
      femtoseconds += features.amount[f] * static_cast<double>(prices[f]);
    predicted = femtoseconds / kFemtosecondsPerMicrosecond;
    if (predicted < choice.predicted_us[static_cast<int>(choice.variant)])
      choice.variant = static_cast<Variant>(v);
  }
  return choice;
}

}  // namespace pitc

// The selector: which variant of a contraction runs, by what each is predicted to take.
#pragma once

#include <cstdint>

#include "micro_tiles.h"

namespace pitc {

// In the order of `pitc/ir/tiles.py`.
enum class Variant : int { kDense, kRow, kTile8, kTile32, kBlock16, kBlock32, kBlock64 };
constexpr int kVariants = 7;
enum class Feature : int {
  kLaunch,
  kSteps,
  kVisits,
  kScanned,
  kListed,
  kStreamed,
  kWritten,
  kReread,
  kPages,
  kRuns
};
constexpr int kFeatures = 10;
// Prices depend on the reuse, how many rows of A meet a row of B on average: they are for at most
// so many, and the last ones for more.
constexpr double kReuse[] = {2, 8, 32};
constexpr int kReuseClasses = 4;

const char* Name(Variant variant);

// The tile table of one CPU level: femtoseconds per unit of each feature.
struct CostTable {
  struct Line {
    bool offered = false;
    int64_t prices[kReuseClasses][kFeatures] = {};
  };
  Line lines[kVariants];
};

// One contraction, as far as its time depends on it.
struct Work {
  int64_t rows, k, panels;
  int64_t row_block;  // rows that share a pass over B on the sparse paths
  int64_t k_blocks;   // k blocks of row lists
  bool scanned;       // the detector has still to read A
  int64_t live_columns;
  MicroTileCounts counts;
  int64_t live_pieces[3] = {};  // of 16, 32 and 64 columns, as kSegmentWidths
  int64_t live_runs[4] = {};    // stretches of live columns, and of live pieces of them
};

struct Features {
  double amount[kFeatures];  // in the order of Feature
};
Features FeaturesOf(Variant variant, const Work& work);

struct Choice {
  Variant variant;
  double predicted_us[kVariants];  // infinite where a variant is not offered
};

// The first of the fastest.
Choice Select(const CostTable& table, const Work& work);

}  // namespace pitc

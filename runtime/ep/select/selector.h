// The selector: which variant of a contraction runs, by what each is predicted to take.
#pragma once

#include <cstdint>
#include <iterator>

#include "machines.h"
#include "simd/primitives.h"

namespace pitc {

inline const char* Name(Variant variant) { return RecordOf(variant).name; }

// The tile table of one CPU level: femtoseconds per unit of each feature, and factors.
struct CostTable {
  struct Line {
    bool offered = false;
    int64_t prices[kFeatures] = {};
    bool shaped = false;
    int64_t factors[kFactors] = {};  // thousandths; all 1 where not shaped
  };
  Line lines[kVariants];
  double least_gain = kLeastGain;  // lists must be predicted to be so much faster than dense
};

// One contraction, as far as its time depends on it.
struct Work {
  int64_t rows, k, panels;
  int64_t row_block;  // rows that share a pass over B on the sparse paths
  int64_t k_blocks;   // k blocks of row lists
  bool scanned;       // the detector has still to read A
  int64_t live_columns;
  MicroTileCounts counts;
  int64_t live_pieces[std::size(kSegmentWidths)] = {};    // of so many columns each
  int64_t live_runs[1 + std::size(kSegmentWidths)] = {};  // stretches of live columns, and of those
  // Where the sparse operand is the right one, the dense kernel sees the product the other way
  // round, and some elements are copied first or last.
  bool turned = false;
  int64_t dense_rows = 0, dense_panels = 0;
  int64_t dense_copied = 0, sparse_copied = 0;
  // How both are cut for the threads there are.
  int threads = 1;
  int64_t dense_tasks = 1;
  int64_t task_panels = 0;  // of a task over lists; 0: all
};

struct Features {
  double amount[kFeatures];  // in the order of Feature
};
Features FeaturesOf(Variant variant, const Work& work);

// Where the shape of what lives lies between the knots of a grid: a factor is interpolated.
struct Corners {
  struct Corner {
    int factor;
    double share;
  };
  Corner corners[kGrids][4];
};
Corners CornersOf(const Work& work);

struct Choice {
  Variant variant;
  double predicted_us[kVariants];  // infinite where a variant is not offered
};

// The first of the fastest; dense, unless lists are faster by the least gain.
Choice Select(const CostTable& table, const Work& work);

// False where a product over lists is done sooner than other threads wake up.
bool IsWorthTasks(Variant variant, const Work& work);

}  // namespace pitc

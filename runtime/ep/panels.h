// Panels made when the model runs: matrices that no compiler has seen.
#pragma once

#include "micro_tiles.h"

namespace pitc {

// As the compiler makes them (`pitc/ir/panels.py`).
constexpr int64_t kPanelWidth = 64;
inline int64_t PanelCount(int64_t columns) { return (columns + kPanelWidth - 1) / kPanelWidth; }

// Panel `p` of the transposed matrix, which has no list of rows: panel[k, i] = A[64 p + i, k], 0
// beyond the last row; [k, 64]. Of it rows `ks`, which begin at a multiple of 64.
void PackPanel(CpuLevel level, const StoredMatrix& a, int64_t p, const Range& ks, float* panel);

bool AllFinite(const float* x, int64_t n);

}  // namespace pitc

#include "plan/layout.h"

#include "base/index.h"

namespace pitc {

Layout MakeLayout(const std::vector<DimUse>& dims, const Shape& unpacked, int coordinates) {
  Layout layout;
  const int rank = unpacked.rank;
  int last = -1;  // the last indexed dimension
  for (int d = 0; d < rank; ++d) {
    const DimUse& use = dims[static_cast<size_t>(d)];
    if (use.kind == DimUse::kCoordinate || use.kind == DimUse::kLinear) last = d;
    if (use.kind == DimUse::kRest) layout.rest.Add(unpacked.dims[d]);
  }
  layout.width = unpacked.Elements(last + 1, rank);
  layout.slots = Numbered(unpacked.Elements(0, last + 1), "rows of the unpacked tensor");
  int next = 0;
  for (int d = 0; d <= last; ++d) {
    const DimUse& use = dims[static_cast<size_t>(d)];
    const int64_t extent = unpacked.dims[d], stride = unpacked.Elements(d + 1, last + 1);
    if (use.kind == DimUse::kCoordinate) {
      layout.indexed.Add({use.coordinate, extent, stride});
      layout.in_order = layout.in_order && use.coordinate == next++;
    } else if (use.kind == DimUse::kLinear) {
      layout.indexed.Add({Layout::kRows, extent, stride});
      layout.in_order = layout.in_order && next == 0;
      next = coordinates;
    } else if (use.kind == DimUse::kRest) {
      layout.outer = Product({layout.outer, extent}, "the unpacked tensor");
      if (extent != 1) layout.kept.Add({extent, stride});
    }
  }
  layout.in_order = layout.in_order && next == coordinates && layout.outer == 1;
  return layout;
}

void Layout::Slots(const int32_t* rows, const int32_t* coords, int64_t t, int64_t begin,
                   int64_t end, int32_t* out) const {
  const int64_t n = end - begin;
  std::fill_n(out, n, 0);
  for (const Indexed& use : indexed) {
    const int32_t* from = (use.source == kRows ? rows : coords + use.source * t) + begin;
    const auto stride = static_cast<int32_t>(use.stride);
    for (int64_t i = 0; i < n; ++i) out[i] += from[i] * stride;
  }
  if (outer == 1) return;
  // Spread row by row, last first: row i's slots start at i * outer, never before i.
  for (int64_t i = n - 1; i >= 0; --i) {
    const int32_t base = out[i];
    int32_t* to = out + i * outer;
    to[0] = base;
    int64_t made = 1;  // combinations of the kept dimensions so far, innermost first
    for (int k = kept.count; k-- > 0;) {
      const auto [extent, stride] = kept.items[k];
      for (int64_t e = 1; e < extent; ++e) {
        for (int64_t j = 0; j < made; ++j)
          to[e * made + j] = to[j] + static_cast<int32_t>(e * stride);
      }
      made *= extent;
    }
  }
}

}  // namespace pitc

// Where packed rows lie in an unpacked tensor: a plan's `dims` put together with actual shapes.
#pragma once

#include <cstdint>
#include <vector>

#include "base/shape.h"
#include "plan/plan.h"

namespace pitc {

// The unpacked tensor as [slots, width]: `width` is the part after the last indexed dimension. Row
// i of a packed tensor [t, outer, width] is `outer` pieces, one per combination of the kept
// dimensions before the last indexed one.
struct Layout {
  int64_t slots = 1;
  int64_t width = 1;
  int64_t outer = 1;
  Shape rest;            // the kept dimensions, in order: a packed tensor's shape after [t]
  bool in_order = true;  // piece i lies in slot rows[i]: outer = 1 and every coordinate, ascending
  struct Indexed {
    int source;      // a coordinate, or kRows
    int64_t extent;  // of that dimension
    int64_t stride;  // in slots
  };
  static constexpr int kRows = -1;
  // Of dimensions; a run makes a layout, and allocates nothing.
  template <class T>
  struct List {
    T items[Shape::kMostDims];
    int count = 0;

    void Add(const T& item) { items[count++] = item; }
    const T* begin() const { return items; }
    const T* end() const { return items + count; }
  };
  List<Indexed> indexed;
  struct Kept {
    int64_t extent, stride;
  };
  List<Kept> kept;  // of the kept dimensions before, outermost first

  // Writes the slots of rows [begin, end): (end - begin) * outer numbers.
  void Slots(const int32_t* rows, const int32_t* coords, int64_t t, int64_t begin, int64_t end,
             int32_t* out) const;
};

// `unpacked` has one extent per entry of `dims`. Throws Failure when the slots do not fit in int32.
Layout MakeLayout(const std::vector<DimUse>& dims, const Shape& unpacked, int coordinates);

}  // namespace pitc

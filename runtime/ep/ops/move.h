// What pack and unpack check and know before anything is moved, wherever the tensors lie.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/arena.h"
#include "ort/tensor.h"
#include "plan/layout.h"
#include "plan/plan.h"

namespace pitc {

// The live points, as `rows` and `coords` tell them, and the extents of their domain, those of
// `live`.
struct Points {
  int64_t t;
  int coordinates;
  const int32_t* rows;
  const int32_t* coords;  // null where the plan names none
  Shape domain;
};

// How many coordinates a plan names, counted from the first one.
int NamedCoordinates(const MovePlan& plan);

// The inputs after the tensor that is moved. `least` coordinates are named by the plan. `run` reads
// and copies them.
template <class Run>
Points ReadPoints(const Run& run, int least, Arena::Scope& scratch) {
  const auto rows = run.Int32Input(1, "rows", {-1});
  const int64_t t = rows.shape.dims[0];
  const auto coords = run.Int32Input(2, "coords", {-1, t});
  const int64_t coordinates = coords.shape.dims[0];
  Expect(coordinates >= 1 && coordinates <= 8, coords, "of 1..8 coordinates");
  const auto live = run.MaskInput(3, "live");
  Expect(live.shape.rank >= least, live, "of rank >= ", least);
  if (live.shape.rank != coordinates) {
    Fail("expected coords of ", live.shape.rank, " coordinates (the rank of live), got ",
         coordinates);
  }
  const int32_t* named = least ? run.Copy(coords, coordinates * t, scratch) : nullptr;
  return {t, live.shape.rank, run.Copy(rows, t, scratch), named, live.shape};
}

// A move whose every index lies in its dimension.
struct Movement {
  Layout layout;
  Shape shape;          // of the output
  bool slots_are_rows;  // the row of a point is its slot
};

// Bytes of an element. Throws Failure for a tensor that the plan does not move.
int CheckMoved(const MovePlan& plan, const Tensor& tensor);
Movement CheckPack(const MovePlan& plan, const Tensor& x, const Points& points);
Movement CheckUnpack(const MovePlan& plan, const Tensor& packed, const Points& points);

// Words of one row of the layout. Throws Failure where a row is not whole words.
int64_t RowWords(const MovePlan& plan, const Layout& layout, int element_bytes, int64_t t);

}  // namespace pitc

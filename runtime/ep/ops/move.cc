#include "ops/move.h"

#include "base/index.h"

namespace pitc {
namespace {

// Throws unless every index lies in its dimension.
void CheckIndices(const Layout& layout, const Points& points) {
  for (const Layout::Indexed& use : layout.indexed) {
    if (use.source == Layout::kRows) {
      CheckBelow(points.rows, points.t, use.extent, "rows");
    } else {
      static constexpr const char* kRoles[] = {"coords[0]", "coords[1]", "coords[2]", "coords[3]",
                                               "coords[4]", "coords[5]", "coords[6]", "coords[7]"};
      CheckBelow(points.coords + use.source * points.t, points.t, use.extent, kRoles[use.source]);
    }
  }
}

// What may be the reason, in the words of who gives inputs.
constexpr const char* kTooLong =
    ": a sequence is longer than a table of the model, or inputs are of different sizes";
constexpr const char* kOtherSizes = ": inputs are of different sizes";

// The points are numbered in the domain, so x must be as large as it: with other extents the
// indices could still lie in x, and mean other points.
void CheckExtents(const MovePlan& plan, const Tensor& x, const Shape& domain) {
  for (int d = 0; d < x.shape.rank; ++d) {
    const DimUse& use = plan.dims[static_cast<size_t>(d)];
    const int64_t got = x.shape.dims[d];
    switch (use.kind) {
      case DimUse::kCoordinate: {
        const int64_t extent = domain.dims[use.coordinate];
        if (got != extent) {
          Fail("expected x with extent ", extent, " (that of the mask) in dimension ", d, ", got ",
               Describe(x.type, x.shape), got < extent ? kTooLong : kOtherSizes);
        }
        break;
      }
      case DimUse::kLinear: {
        const int64_t count = domain.Elements();
        Expect(got == count, x, "with extent ", count, " (all points of the mask) in dimension ",
               d);
        break;
      }
      case DimUse::kOne:
        Expect(got == 1, x, "with extent 1 in dimension ", d);
        break;
      case DimUse::kRest:
        break;
    }
  }
}

bool UsesRows(const Layout& layout) {
  return std::any_of(layout.indexed.begin(), layout.indexed.end(),
                     [](const Layout::Indexed& use) { return use.source == Layout::kRows; });
}

// Coordinates take the extents of the domain, the rest those of `packed`.
Shape UnpackedShape(const MovePlan& plan, const Tensor& packed, const Shape& domain, int64_t t) {
  Shape shape;
  int rest = 1;
  for (const DimUse& use : plan.dims) {
    switch (use.kind) {
      case DimUse::kCoordinate:
        shape.Add(domain.dims[use.coordinate]);
        break;
      case DimUse::kLinear:
        shape.Add(domain.Elements());
        break;
      case DimUse::kOne:
        shape.Add(1);
        break;
      case DimUse::kRest:
        shape.Add(rest < packed.shape.rank ? packed.shape.dims[rest] : 0);
        ++rest;
        break;
    }
  }
  Expect(packed.shape.rank == rest && packed.shape.dims[0] == t, packed, "as [", t,
         ", ..] of rank ", rest);
  return shape;
}

// Distinct rows are distinct points only if coords say the same as rows. Every coordinate is in
// its extent.
void CheckFolded(const Points& points) {
  const Shape& domain = points.domain;
  for (int64_t i = 0; i < points.t; ++i) {
    int64_t row = 0;
    for (int c = 0; c < domain.rank; ++c)
      row = row * domain.dims[c] + points.coords[c * points.t + i];
    if (row != points.rows[i])
      Fail("expected coords of point ", i, " to be row ", points.rows[i], ", got ", row);
  }
}

}  // namespace

int NamedCoordinates(const MovePlan& plan) {
  int named = 0;
  for (const DimUse& use : plan.dims) {
    if (use.kind == DimUse::kCoordinate) named = std::max(named, use.coordinate + 1);
  }
  return named;
}

int CheckMoved(const MovePlan& plan, const Tensor& tensor) {
  const int bytes = ElementBytes(tensor.type);
  Expect(bytes != 0, tensor, "with elements of 1, 2, 4 or 8 bytes");
  const auto rank = static_cast<int>(plan.dims.size());
  Expect(plan.unpack || tensor.shape.rank == rank, tensor, "of rank ", rank);
  return bytes;
}

Movement CheckPack(const MovePlan& plan, const Tensor& x, const Points& points) {
  CheckExtents(plan, x, points.domain);
  Movement move{MakeLayout(plan.dims, x.shape, points.coordinates), {points.t}, false};
  CheckIndices(move.layout, points);
  move.shape.Append(move.layout.rest, 0, move.layout.rest.rank);
  // With `l` leading, rows address x themselves; else coords do, which nobody has compared with
  // rows.
  move.slots_are_rows =
      move.layout.in_order && move.layout.indexed.items[0].source == Layout::kRows;
  return move;
}

Movement CheckUnpack(const MovePlan& plan, const Tensor& packed, const Points& points) {
  const Shape shape = UnpackedShape(plan, packed, points.domain, points.t);
  Movement move{MakeLayout(plan.dims, shape, points.coordinates), shape, false};
  const bool linear = UsesRows(move.layout);
  if (!linear && move.layout.indexed.count != points.coordinates) {
    Fail("expected dims to name all ", points.coordinates,
         " coordinates or l, so that points do not meet");
  }
  CheckAscending(points.rows, points.t, Numbered(points.domain.Elements(), "points of live"),
                 "rows");
  move.slots_are_rows = move.layout.in_order;
  if (!move.slots_are_rows) {
    CheckIndices(move.layout, points);
    if (!linear) CheckFolded(points);
  }
  return move;
}

int64_t RowWords(const MovePlan& plan, const Layout& layout, int element_bytes, int64_t t) {
  const int64_t row_bytes = layout.width * element_bytes;
  if (row_bytes % plan.word_bytes) {
    Fail("expected rows of whole ", plan.word_bytes, "-byte words, got ", row_bytes, " bytes");
  }
  const int64_t words = row_bytes / plan.word_bytes;
  Product({layout.slots, words}, "the unpacked tensor");
  Product({t, layout.outer, words}, "the packed tensor");
  return words;
}

}  // namespace pitc

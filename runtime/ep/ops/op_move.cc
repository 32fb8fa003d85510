// pack (SRead): live points of a tensor -> packed rows. unpack (SWrite): the way back, with 0 at
// dead points.
#include <algorithm>

#include "base/index.h"
#include "ops/operation.h"
#include "plan/layout.h"

namespace pitc {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 17;   // moved by one task
constexpr int64_t kSerialBytes = int64_t{1} << 18;  // about 20 us on one thread

// The live points, as `rows` and `coords` tell them, and the extents of their domain, those of
// `live`.
struct Points {
  int64_t t;
  int coordinates;
  const int32_t* rows;
  const int32_t* coords;  // null where the plan names none
  Shape domain;
};

// The inputs after the tensor that is moved. `least` coordinates are named by the plan.
Points ReadPoints(const RunContext& run, int least, Arena::Scope& scratch) {
  const Tensor rows = run.Int32Input(1, "rows", {-1});
  const int64_t t = rows.shape.dims[0];
  const Tensor coords = run.Int32Input(2, "coords", {-1, t});
  const int64_t coordinates = coords.shape.dims[0];
  Expect(coordinates >= 1 && coordinates <= 8, coords, "of 1..8 coordinates");
  const Tensor live = run.MaskInput(3, "live");
  Expect(live.shape.rank >= least, live, "of rank >= ", least);
  if (live.shape.rank != coordinates) {
    Fail("expected coords of ", live.shape.rank, " coordinates (the rank of live), got ",
         coordinates);
  }
  const int32_t* named = least ? CopyOf(coords.Int32s(), coordinates * t, scratch) : nullptr;
  return {t, live.shape.rank, CopyOf(rows.Int32s(), t, scratch), named, live.shape};
}

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

class Move : public Operation {
 public:
  Move(const MovePlan& plan, Kernel kernel) : plan_(plan), kernel_(std::move(kernel)) {
    for (const DimUse& use : plan_.dims) {
      if (use.kind == DimUse::kCoordinate)
        coordinates_ = std::max(coordinates_, use.coordinate + 1);
    }
  }
  int InputCount() const override { return 4; }
  int OutputCount() const override { return 1; }

 protected:
  // Moves all rows between `packed` [t, outer, width] and `unpacked` [slots, width].
  void MoveAll(const RunContext& run, const Layout& layout, const Points& points, int element_bytes,
               void* packed, void* unpacked, bool slots_are_rows) const {
    const int64_t row_bytes = layout.width * element_bytes;
    if (row_bytes % plan_.word_bytes) {
      Fail("expected rows of whole ", plan_.word_bytes, "-byte words, got ", row_bytes, " bytes");
    }
    const int64_t words = row_bytes / plan_.word_bytes;
    Product({layout.slots, words}, "the unpacked tensor");
    Product({points.t, layout.outer, words}, "the packed tensor");
    const int64_t piece_bytes = row_bytes * layout.outer;  // of one live point
    if (points.t == 0 || piece_bytes == 0) return;
    // Blocks of 4 rows or more keep every address at a multiple of 4 bytes when the first one is.
    const Blocks blocks = EvenBlocks(points.t, std::max<int64_t>(4, kBlockBytes / piece_bytes), 4);
    run.Each(blocks.Count(), points.t * piece_bytes > kSerialBytes, [&](int64_t block) {
      Arena::Scope scratch;
      const int64_t begin = blocks.Begin(block), end = blocks.End(block),
                    n = (end - begin) * layout.outer;
      const int32_t* index = points.rows + begin;
      if (!slots_are_rows) {
        auto* slots = scratch.Array<int32_t>(n);
        layout.Slots(points.rows, points.coords, points.t, begin, end, slots);
        index = slots;
      }
      void* part = static_cast<char*>(packed) + begin * piece_bytes;
      KernelCall call;
      call.Words(plan_.unpack ? part : unpacked, plan_.word_bytes,
                 {plan_.unpack ? n : layout.slots, words});
      call.Int32s(index, {n});
      call.Words(plan_.unpack ? unpacked : part, plan_.word_bytes,
                 {plan_.unpack ? layout.slots : n, words});
      call.Run(kernel_);
    });
  }

  const MovePlan plan_;
  const Kernel kernel_;
  int coordinates_ = 0;  // that the layout names
};

class Pack final : public Move {
 public:
  using Move::Move;

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const Tensor x = run.Input(0, "x");
    const int bytes = ElementBytes(x.type);
    Expect(bytes != 0, x, "with elements of 1, 2, 4 or 8 bytes");
    Expect(x.shape.rank == static_cast<int>(plan_.dims.size()), x, "of rank ", plan_.dims.size());
    const Points points = ReadPoints(run, coordinates_, scratch);
    CheckExtents(x, points.domain);
    const Layout layout = MakeLayout(plan_.dims, x.shape, points.coordinates);
    CheckIndices(layout, points);
    Shape shape{points.t};
    shape.Append(layout.rest, 0, layout.rest.rank);
    void* out = run.Output(0, shape, bytes, scratch);
    // With `l` leading, rows address x themselves; else coords do, which nobody has compared with
    // rows.
    const bool slots_are_rows = layout.in_order && layout.indexed.items[0].source == Layout::kRows;
    MoveAll(run, layout, points, bytes, out, const_cast<void*>(x.data), slots_are_rows);
  }

 private:
  // The points are numbered in the domain, so x must be as large as it: with other extents the
  // indices could still lie in x, and mean other points.
  void CheckExtents(const Tensor& x, const Shape& domain) const {
    for (int d = 0; d < x.shape.rank; ++d) {
      const DimUse& use = plan_.dims[static_cast<size_t>(d)];
      const int64_t got = x.shape.dims[d];
      switch (use.kind) {
        case DimUse::kCoordinate: {
          const int64_t extent = domain.dims[use.coordinate];
          Expect(got == extent, x, "with extent ", extent, " (that of the mask) in dimension ", d);
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
};

class Unpack final : public Move {
 public:
  using Move::Move;

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const Tensor packed = run.Input(0, "packed");
    const int bytes = ElementBytes(packed.type);
    Expect(bytes != 0, packed, "with elements of 1, 2, 4 or 8 bytes");
    const Points points = ReadPoints(run, coordinates_, scratch);
    const Shape shape = UnpackedShape(packed, points.domain, points.t);
    const Layout layout = MakeLayout(plan_.dims, shape, points.coordinates);
    const bool linear = UsesRows(layout);
    if (!linear && layout.indexed.count != points.coordinates) {
      Fail("expected dims to name all ", points.coordinates,
           " coordinates or l, so that points do not meet");
    }
    CheckAscending(points.rows, points.t, Numbered(points.domain.Elements(), "points of live"),
                   "rows");
    void* out = run.Output(0, shape, bytes, scratch);
    if (layout.in_order) {
      ZeroOtherRows(run, out, layout.width * bytes, layout.slots, points.rows, points.t);
    } else {
      CheckIndices(layout, points);
      if (!linear) CheckFolded(points);
      ZeroAll(run, out, shape.Elements() * bytes);
    }
    MoveAll(run, layout, points, bytes, const_cast<void*>(packed.data), out, layout.in_order);
  }

 private:
  static bool UsesRows(const Layout& layout) {
    return std::any_of(layout.indexed.begin(), layout.indexed.end(),
                       [](const Layout::Indexed& use) { return use.source == Layout::kRows; });
  }

  // Coordinates take the extents of the domain, the rest those of `packed`.
  Shape UnpackedShape(const Tensor& packed, const Shape& domain, int64_t t) const {
    Shape shape;
    int rest = 1;
    for (const DimUse& use : plan_.dims) {
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
  static void CheckFolded(const Points& points) {
    const Shape& domain = points.domain;
    for (int64_t i = 0; i < points.t; ++i) {
      int64_t row = 0;
      for (int c = 0; c < domain.rank; ++c)
        row = row * domain.dims[c] + points.coords[c * points.t + i];
      if (row != points.rows[i])
        Fail("expected coords of point ", i, " to be row ", points.rows[i], ", got ", row);
    }
  }
};

}  // namespace

std::unique_ptr<Operation> MakePack(const MovePlan& plan, Kernel kernel) {
  return std::make_unique<Pack>(plan, std::move(kernel));
}

std::unique_ptr<Operation> MakeUnpack(const MovePlan& plan, Kernel kernel) {
  return std::make_unique<Unpack>(plan, std::move(kernel));
}

}  // namespace pitc

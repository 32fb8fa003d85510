// pack (SRead): live points of a tensor -> packed rows. unpack (SWrite): the way back, with 0 at
// dead points.
#include <algorithm>

#include "index.h"
#include "layout.h"
#include "operation.h"

namespace pitc {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 17;   // moved by one task
constexpr int64_t kSerialBytes = int64_t{1} << 18;  // about 20 us on one thread

// The live points, as `rows` and `coords` tell them.
struct Points {
  int64_t t;
  int coordinates;
  const int32_t* rows;
  const int32_t* coords;
};

Points ReadPoints(const RunContext& run, int rows_at) {
  const Tensor rows = run.Int32Input(rows_at, "rows", {-1});
  const int64_t t = rows.shape.dims[0];
  const Tensor coords = run.Int32Input(rows_at + 1, "coords", {-1, t});
  Expect(coords.shape.dims[0] >= 1 && coords.shape.dims[0] <= 8, coords, "of 1..8 coordinates");
  return {t, static_cast<int>(coords.shape.dims[0]), rows.Int32s(), coords.Int32s()};
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
  int OutputCount() const override { return 1; }

 protected:
  void CheckCoordinates(const Points& points) const {
    if (points.coordinates < coordinates_) {
      Fail("expected coords of at least ", coordinates_, " coordinates, got ", points.coordinates);
    }
  }

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
  int InputCount() const override { return 3; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const Tensor x = run.Input(0, "x");
    const int bytes = ElementBytes(x.type);
    Expect(bytes != 0, x, "with elements of 1, 2, 4 or 8 bytes");
    Expect(x.shape.rank == static_cast<int>(plan_.dims.size()), x, "of rank ", plan_.dims.size());
    for (int d = 0; d < x.shape.rank; ++d) {
      bool one = plan_.dims[static_cast<size_t>(d)].kind == DimUse::kOne;
      Expect(!one || x.shape.dims[d] == 1, x, "with extent 1 in dimension ", d);
    }
    const Points points = ReadPoints(run, 1);
    CheckCoordinates(points);
    const Layout layout = MakeLayout(plan_.dims, x.shape, points.coordinates);
    CheckIndices(layout, points);
    Shape shape{points.t};
    shape.Append(layout.rest, 0, layout.rest.rank);
    void* out = run.Output(0, shape, bytes, scratch);
    // With `l` leading, rows address x themselves; with coordinates, only x's own extents say where
    // a point lies.
    const bool slots_are_rows = layout.in_order && layout.indexed[0].source == Layout::kRows;
    MoveAll(run, layout, points, bytes, out, const_cast<void*>(x.data), slots_are_rows);
  }
};

class Unpack final : public Move {
 public:
  using Move::Move;
  int InputCount() const override { return 4; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const Tensor packed = run.Input(0, "packed");
    const int bytes = ElementBytes(packed.type);
    Expect(bytes != 0, packed, "with elements of 1, 2, 4 or 8 bytes");
    const Points points = ReadPoints(run, 1);
    const Tensor live = run.MaskInput(3, "live");
    CheckCoordinates(points);
    if (live.shape.rank != points.coordinates) {
      Fail("expected coords of ", live.shape.rank, " coordinates (the rank of live), got ",
           points.coordinates);
    }
    const Shape shape = UnpackedShape(packed, live.shape, points.t);
    const Layout layout = MakeLayout(plan_.dims, shape, points.coordinates);
    const bool linear = UsesRows(layout);
    if (!linear && static_cast<int>(layout.indexed.size()) != points.coordinates) {
      Fail("expected dims to name all ", points.coordinates,
           " coordinates or l, so that points do not meet");
    }
    CheckAscending(points.rows, points.t, Product({live.shape.Elements(), 1}, "live"), "rows");
    void* out = run.Output(0, shape, bytes, scratch);
    if (layout.in_order) {
      ZeroOtherRows(run, out, layout.width * bytes, layout.slots, points.rows, points.t);
    } else {
      CheckIndices(layout, points);
      if (!linear) CheckFolded(points, live.shape);
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
  static void CheckFolded(const Points& points, const Shape& domain) {
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

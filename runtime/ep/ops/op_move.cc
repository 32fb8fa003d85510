// pack (SRead): live points of a tensor -> packed rows. unpack (SWrite): the way back, with 0 at
// dead points.
#include "base/index.h"
#include "ops/move.h"
#include "ops/operation.h"

namespace pitc {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 17;   // moved by one task
constexpr int64_t kSerialBytes = int64_t{1} << 18;  // about 20 us on one thread

class Move : public Operation {
 public:
  Move(const MovePlan& plan, Kernel kernel)
      : plan_(plan), kernel_(std::move(kernel)), coordinates_(NamedCoordinates(plan)) {}
  int InputCount() const override { return 4; }
  int OutputCount() const override { return 1; }

 protected:
  // Moves all rows between `packed` [t, outer, width] and `unpacked` [slots, width].
  void MoveAll(const RunContext& run, const Movement& move, const Points& points, int element_bytes,
               void* packed, void* unpacked) const {
    const Layout& layout = move.layout;
    const int64_t words = RowWords(plan_, layout, element_bytes, points.t);
    const int64_t piece_bytes = layout.width * element_bytes * layout.outer;  // of one live point
    if (points.t == 0 || piece_bytes == 0) return;
    // Blocks of 4 rows or more keep every address at a multiple of 4 bytes when the first one is.
    const Blocks blocks = EvenBlocks(points.t, std::max<int64_t>(4, kBlockBytes / piece_bytes), 4);
    run.Each(blocks.Count(), points.t * piece_bytes > kSerialBytes, [&](int64_t block) {
      Arena::Scope scratch;
      const int64_t begin = blocks.Begin(block), end = blocks.End(block),
                    n = (end - begin) * layout.outer;
      const int32_t* index = points.rows + begin;
      if (!move.slots_are_rows) {
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
  const int coordinates_;  // that the layout names
};

class Pack final : public Move {
 public:
  using Move::Move;

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const Tensor x = run.Input(0, "x");
    const int bytes = CheckMoved(plan_, x);
    const Points points = ReadPoints(run, coordinates_, scratch);
    const Movement move = CheckPack(plan_, x, points);
    void* out = run.Output(0, move.shape, bytes, scratch);
    MoveAll(run, move, points, bytes, out, const_cast<void*>(x.data));
  }
};

class Unpack final : public Move {
 public:
  using Move::Move;

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const Tensor packed = run.Input(0, "packed");
    const int bytes = CheckMoved(plan_, packed);
    const Points points = ReadPoints(run, coordinates_, scratch);
    const Movement move = CheckUnpack(plan_, packed, points);
    void* out = run.Output(0, move.shape, bytes, scratch);
    if (move.slots_are_rows) {
      ZeroOtherRows(run, out, move.layout.width * bytes, move.layout.slots, points.rows, points.t);
    } else {
      ZeroAll(run, out, move.shape.Elements() * bytes);
    }
    MoveAll(run, move, points, bytes, const_cast<void*>(packed.data), out);
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

// pack and unpack on a device: one launch each, behind one list of slots, in the widest words that
// rows are made of.
#include <algorithm>
#include <vector>

#include "base/index.h"
#include "device/device_operation.h"
#include "ops/move.h"

namespace pitc::cuda {
namespace {

constexpr int64_t kOfABlock = 1024;  // words that its threads move at once

class Move : public DeviceOperation {
 public:
  Move(const MovePlan& plan, std::vector<MoveKernel> kernels)
      : plan_(plan), kernels_(std::move(kernels)), coordinates_(NamedCoordinates(plan)) {}
  int InputCount() const override { return 4; }
  int OutputCount() const override { return 1; }

  void Run(const DeviceRun& run) const override {
    Arena::Scope scratch;
    const DeviceInput tensor = run.Input(0, plan_.unpack ? "packed" : "x");
    CheckMoved(plan_, tensor);
    const Points points = ReadPoints(run, coordinates_, scratch);
    const Movement move =
        plan_.unpack ? CheckUnpack(plan_, tensor, points) : CheckPack(plan_, tensor, points);
    const Layout& layout = move.layout;
    const int bytes = ElementBytes(tensor.type);
    const int64_t words = RowWords(plan_, layout, bytes, points.t);
    const int64_t n = Product({points.t, layout.outer}, "the packed tensor", kInt32Max);
    void* const out = run.Output(0, move.shape, bytes);
    if (plan_.unpack && n < layout.slots) run.Zero(out, move.shape.Elements() * bytes);
    if (n == 0 || words == 0) return;
    const int32_t* slots = points.rows;
    if (!move.slots_are_rows) {
      auto* const made = scratch.Array<int32_t>(n);
      layout.Slots(points.rows, points.coords, points.t, 0, points.t, made);
      slots = made;
    }
    const int64_t from = plan_.unpack ? n : layout.slots, to = plan_.unpack ? layout.slots : n;
    const void* const source = run.OnDevice(tensor);
    const int64_t row_bytes = words * plan_.word_bytes;
    const MoveKernel& kernel = Widest(row_bytes, source, out);
    const auto item = static_cast<int>(std::min<int64_t>(kernel.bytes, 4));  // as tensors have them
    KernelCall call = run.Call();
    call.Words(source, item, {from, row_bytes / item});
    call.Int32s(run.OnDevice(slots, n), {n});
    call.Words(out, item, {to, row_bytes / item});
    call.Int(run.Blocks(n * (row_bytes / kernel.bytes), kOfABlock));
    run.Launch(kernel.kernel, call);
  }

 private:
  const MoveKernel& Widest(int64_t row_bytes, const void* a, const void* b) const {
    const auto fits = [&](const MoveKernel& kernel) {
      const auto all = reinterpret_cast<uintptr_t>(a) | reinterpret_cast<uintptr_t>(b);
      return row_bytes % kernel.bytes == 0 && all % static_cast<uintptr_t>(kernel.bytes) == 0;
    };
    const auto at = std::find_if(kernels_.begin(), kernels_.end(), fits);
    return at == kernels_.end() ? kernels_.back() : *at;
  }

  const MovePlan plan_;
  const std::vector<MoveKernel> kernels_;
  const int coordinates_;  // that the layout names
};

}  // namespace

std::unique_ptr<DeviceOperation> MakeMove(const MovePlan& plan, std::vector<MoveKernel> kernels) {
  return std::make_unique<Move>(plan, std::move(kernels));
}

}  // namespace pitc::cuda

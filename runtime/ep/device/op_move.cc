// pack and unpack on a device: one launch each, behind one list of slots.
#include "base/index.h"
#include "device/device_operation.h"
#include "ops/move.h"

namespace pitc::cuda {
namespace {

constexpr int64_t kWide = 16;        // bytes
constexpr int64_t kOfABlock = 1024;  // words that its threads move at once

bool IsWide(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % kWide == 0; }

class Move : public DeviceOperation {
 public:
  Move(const MovePlan& plan, DeviceKernel kernel, DeviceKernel wide)
      : plan_(plan),
        kernel_(std::move(kernel)),
        wide_(std::move(wide)),
        coordinates_(NamedCoordinates(plan)) {}
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
    const bool wide = wide_.kernels && row_bytes % kWide == 0 && IsWide(source) && IsWide(out);
    KernelCall call = run.Call();
    call.Words(source, plan_.word_bytes, {from, words});
    call.Int32s(run.OnDevice(slots, n), {n});
    call.Words(out, plan_.word_bytes, {to, words});
    call.Int(run.Blocks(n * row_bytes / (wide ? kWide : plan_.word_bytes), kOfABlock));
    run.Launch(wide ? wide_ : kernel_, call);
  }

 private:
  const MovePlan plan_;
  const DeviceKernel kernel_, wide_;
  const int coordinates_;  // that the layout names
};

}  // namespace

std::unique_ptr<DeviceOperation> MakeMove(const MovePlan& plan, DeviceKernel kernel,
                                          DeviceKernel wide) {
  return std::make_unique<Move>(plan, std::move(kernel), std::move(wide));
}

}  // namespace pitc::cuda

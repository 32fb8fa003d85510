// grouped on a device: rows are listed by groups, in whole dense tiles, and each tile is multiplied
// by the matrix of its group. The host learns nothing: tiles that are not there are left out by the
// gate.
#include <algorithm>

#include "base/index.h"
#include "device/device_operation.h"
#include "ops/grouped.h"

namespace pitc::cuda {
namespace {

class Grouped final : public DeviceOperation {
 public:
  Grouped(const GroupedPlan& plan, GroupKernels lists, DenseProduct product)
      : plan_(plan), lists_(std::move(lists)), product_(std::move(product)) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return GroupedPlan::kOutputs; }

  void Run(const DeviceRun& run) const override {
    const GroupedPlan::Inputs in = plan_.Places();
    const DeviceInput a = run.Input(in.a, "a"), group = run.Input(in.group, "group");
    const GroupedRows of = CheckGrouped(plan_, a, group);
    const int64_t points = of.Points(), count = of.count, n = plan_.n;
    for (int64_t i = 0; !group.on_device && i < points; ++i)
      GroupOf(plan_, static_cast<const int64_t*>(group.data)[i], i);
    const int bytes = RecordOf(plan_.dtype).bytes;
    void* const c = run.Output(0, {of.t, of.j, of.m, n}, bytes);
    ExpectAligned(c, "the output");
    const DevicePanels panels = ReadMatrices(run, in.b);
    if (count == 0) return;
    // What is no group has no row: of lists that the device has made, nobody else can tell.
    if (group.on_device) run.Zero(c, Product({count, n}, "the product") * bytes);

    const int64_t hit = std::min(plan_.groups, points);
    const size_t tile = product_.TileFor(count, run.device(), hit);
    const int64_t unit = product_.shape(tile).m;
    const int64_t tiles = std::min(count, (count + unit - 1) / unit + hit);
    const int64_t room = Numbered(tiles * unit, "listed rows");
    auto* const counts = static_cast<int32_t*>(Ints(run, plan_.groups));
    auto* const from = static_cast<int32_t*>(Ints(run, room));
    auto* const to = static_cast<int32_t*>(Ints(run, room));
    auto* const of_tile = static_cast<int32_t*>(Ints(run, tiles));
    auto* const gate = static_cast<int32_t*>(Ints(run, 2));
    const void* const ids = run.OnDevice(group);
    const int64_t blocks = run.Blocks(plan_.groups, 1);
    KernelCall count_them = run.Call();
    count_them.Int64s(ids, {points}).Int32s(counts, {plan_.groups}).Int(blocks);
    run.Launch(lists_.counts, count_them);
    KernelCall list_them = run.Call();
    list_them.Int64s(ids, {points}).Int32s(counts, {plan_.groups});
    list_them.Int32s(from, {room}).Int32s(to, {room}).Int32s(of_tile, {tiles}).Int32s(gate, {2});
    list_them.Int(of.m).Int(of.sharing).Int(unit).Int(blocks);
    run.Launch(lists_.rows, list_them);

    ProductOperands operands;
    operands.a = run.OnDevice(a);
    operands.stored_a = of.stored;
    operands.rows_a = from;
    operands.count = room;
    operands.panels = panels;
    operands.rows_c = to;
    operands.c = c;
    operands.stored_c = count;
    operands.gate = gate;
    operands.of_tile = of_tile;
    operands.row_tiles = tiles;
    product_.Run(run, operands, tile);
  }

 private:
  static void* Ints(const DeviceRun& run, int64_t n) {
    return run.Take(static_cast<size_t>(n) * sizeof(int32_t));
  }

  // They have no bias: kernels add one of zeros.
  DevicePanels ReadMatrices(const DeviceRun& run, int place) const {
    const DeviceInput b = run.Input(place, "b");
    const int64_t panels = PanelCount(plan_.n), padded = panels * kPanelWidth;
    ExpectNumbers(b, plan_.dtype, 3, 3);
    Expect(b.shape.dims[0] == plan_.groups * panels && b.shape.dims[1] == plan_.k &&
               b.shape.dims[2] == kPanelWidth,
           b, "as [", plan_.groups * panels, ", ", plan_.k, ", ", kPanelWidth, "]");
    void* const bias = run.Take(static_cast<size_t>(padded) * sizeof(float));
    run.Zero(bias, padded * static_cast<int64_t>(sizeof(float)));
    return {run.OnDevice(b), bias, panels, plan_.groups};
  }

  const GroupedPlan plan_;
  const GroupKernels lists_;
  const DenseProduct product_;
};

}  // namespace

std::unique_ptr<DeviceOperation> MakeGrouped(const GroupedPlan& plan, GroupKernels lists,
                                             DenseProduct product) {
  return std::make_unique<Grouped>(plan, std::move(lists), std::move(product));
}

}  // namespace pitc::cuda

#include "device/product.h"

namespace pitc::cuda {

DevicePanels ReadPanels(const DeviceRun& run, int b_place, int bias_place, const char* role,
                        const ProductPlan& product, Element type) {
  const DeviceInput b = run.Input(b_place, role);
  const PanelExtents panels = CheckPanels(product, type, b);
  if (panels.width != kPanelWidth)
    Fail("expected ", role, " as panels of ", kPanelWidth, " columns, got ", panels.width);
  const DeviceInput bias = run.Input(bias_place, "bias");
  const int64_t padded = panels.count * kPanelWidth;
  ExpectNumbers(bias, Element::kFloat32, 1, 1);
  Expect(bias.shape.dims[0] == padded, bias, "as float32 [", padded, "]");
  return {run.OnDevice(b), run.OnDevice(bias), panels.count, 1};
}

void AddTail(const ProductOperands& operands, const ProductPlan& product, Element type,
             KernelCall* call) {
  const DevicePanels& panels = operands.panels;
  call->Numbers(panels.b, type, {panels.matrices * panels.count, product.k, kPanelWidth});
  if (operands.of_tile) call->Int32s(operands.of_tile, {operands.row_tiles});
  call->Floats(panels.bias, {panels.count * kPanelWidth});
  if (operands.residual) call->Numbers(operands.residual, type, {operands.count, product.n});
  call->Int32s(operands.rows_c, {operands.count});
  call->Numbers(operands.c, type, {operands.stored_c, product.n});
}

void DenseProduct::Run(const DeviceRun& run, const ProductOperands& operands, size_t tile,
                       void* bits, const Gate* gate) const {
  KernelCall call = run.Call();
  call.Numbers(operands.a, type_, {operands.stored_a, product_.k});
  call.Int32s(operands.rows_a, {operands.count});
  AddTail(operands, product_, type_, &call);
  if (bits) call.Bits(bits, {operands.count, 2 * operands.panels.count});
  const int64_t tiles = TileCount(shape(tile), operands.count, product_.n);
  if (gate || operands.gate) {
    run.AddTurns(&call, tiles, gate ? *gate : Gate{operands.gate, 0});
  } else {
    run.AddTurns(&call, tiles);
  }
  run.Launch(kernels_[tile], call);
}

}  // namespace pitc::cuda

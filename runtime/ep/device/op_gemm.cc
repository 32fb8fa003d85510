// gather_gemm on a device: one launch of the kernel whose dense tile suits the number of rows.
#include <algorithm>

#include "device/device_operation.h"
#include "ops/product.h"

namespace pitc::cuda {
namespace {

class GatherGemm final : public DeviceOperation {
 public:
  GatherGemm(const ContractPlan& plan, std::vector<DenseTile> tiles,
             std::vector<DeviceKernel> kernels)
      : plan_(plan), tiles_(std::move(tiles)), kernels_(std::move(kernels)) {}
  int InputCount() const override {
    return 3 + plan_.residual + 2 * (plan_.gather || plan_.scatter);
  }
  int OutputCount() const override { return 1; }

  void Run(const DeviceRun& run) const override {
    Arena::Scope scratch;
    int next = 0;
    const Element type = plan_.type;
    const DeviceInput a = run.Input(next++, "a");
    const int64_t stored = CheckLeft(plan_, a);
    const DeviceInput b = run.Input(next++, "b");
    const PanelExtents panels = CheckPanels(plan_.product, type, b);
    if (panels.width != kPanelWidth)
      Fail("expected b as panels of ", kPanelWidth, " columns, got ", panels.width);
    const DeviceInput bias = run.Input(next++, "bias");
    const int64_t padded = panels.count * kPanelWidth;
    ExpectNumbers(bias, Element::kFloat32, 1, 1);
    Expect(bias.shape.dims[0] == padded, bias, "as float32 [", padded, "]");
    const ProductRows<DeviceInput> lists = ReadProductRows(run, plan_, a, stored, &next, scratch);

    const int64_t t = lists.count, k = plan_.product.k, n = plan_.product.n;
    const int bytes = RecordOf(type).bytes;
    void* const c = run.Output(0, lists.shape, bytes);
    ExpectAligned(c, "the output");
    if (plan_.scatter && t < lists.stored) run.Zero(c, lists.stored * n * bytes);
    if (t == 0) return;
    const int32_t* const every =
        plan_.gather && plan_.scatter ? nullptr : run.OnDevice(Identity(t, scratch), t);
    const int32_t* const listed = lists.rows ? run.OnDevice(lists.rows, t) : nullptr;
    const int processors = run.device().multiprocessors();
    const size_t at = FastestTile(tiles_, plan_, t, processors);
    KernelCall call = run.Call();
    call.Numbers(run.OnDevice(a), type, {stored, k});
    call.Int32s(plan_.gather ? listed : every, {t});
    call.Numbers(run.OnDevice(b), type, {panels.count, k, kPanelWidth});
    call.Floats(run.OnDevice(bias), {padded});
    if (plan_.residual) call.Numbers(run.OnDevice(lists.residual), type, {t, n});
    call.Int32s(plan_.scatter ? listed : every, {t}).Numbers(c, type, {lists.stored, n});
    run.AddTurns(&call, TileCount(*tiles_[at].shape, t, n));
    run.Launch(kernels_[at], call);
  }

 private:
  const ContractPlan plan_;
  const std::vector<DenseTile> tiles_;
  const std::vector<DeviceKernel> kernels_;  // of each tile
};

}  // namespace

std::unique_ptr<DeviceOperation> MakeGatherGemm(const ContractPlan& plan,
                                                std::vector<DenseTile> tiles,
                                                std::vector<DeviceKernel> kernels) {
  return std::make_unique<GatherGemm>(plan, std::move(tiles), std::move(kernels));
}

}  // namespace pitc::cuda

// contract on a device: launches one behind the other, and nobody waits.
#include <algorithm>

#include "device/device_operation.h"

namespace pitc::cuda {
namespace {

class Contract final : public DeviceOperation {
 public:
  Contract(const ContractPlan& plan, DenseProduct dense, std::optional<DenseProduct> inner,
           std::optional<ListedProduct> listed)
      : plan_(plan),
        dense_(std::move(dense)),
        inner_(std::move(inner)),
        listed_(std::move(listed)) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return ContractPlan::kOutputs; }

  void Run(const DeviceRun& run) const override {
    Arena::Scope scratch;
    const ContractPlan::Inputs in = plan_.Places();
    const Element type = plan_.dtype;
    const DeviceInput a = run.Input(in.a, "a");
    const int64_t stored = CheckLeft(plan_, a);
    DevicePanels before;
    if (inner_) before = ReadPanels(run, in.b1, in.bias1, "b1", inner_->product(), type);
    const DevicePanels panels = ReadPanels(run, in.b, in.bias, "b", ProductOf(plan_), type);
    const ProductRows<DeviceInput> lists = ReadProductRows(run, plan_, a, stored, scratch);

    const int64_t t = lists.count;
    const int64_t bytes = lists.stored * plan_.n * RecordOf(type).bytes;
    void* const c = run.Output(0, lists.shape, RecordOf(type).bytes);
    ExpectAligned(c, "the output");
    const DeviceInput& list = lists.list;
    const int32_t* const gate = plan_.gather ? list.gate : a.gate;
    if (plan_.scatter && (gate || t < lists.stored)) run.Zero(c, bytes);
    if (t == 0) return;
    const bool reads_every = inner_ || !plan_.gather || !plan_.scatter;
    const int32_t* const every = reads_every ? run.OnDevice(Identity(t, scratch), t) : nullptr;
    const int32_t* const listed = list.gate    ? list.Int32s()
                                  : lists.rows ? run.OnDevice(lists.rows, t)
                                               : nullptr;

    ProductOperands operands;
    operands.a = run.OnDevice(a);
    operands.stored_a = stored;
    operands.rows_a = plan_.gather ? listed : every;
    operands.count = t;
    operands.panels = panels;
    if (plan_.residual) operands.residual = run.OnDevice(lists.residual);
    operands.rows_c = plan_.scatter ? listed : every;
    operands.c = c;
    operands.stored_c = lists.stored;
    operands.gate = gate;
    const void* const bits = inner_ ? RunInner(run, before, every, &operands) : nullptr;
    if (listed_) return listed_->Run(run, operands, bits, dense_);
    dense_.Run(run, operands, dense_.TileFor(t, run.device()));
  }

 private:
  // The product in front, whose result becomes the left operand; what of it is not 0.
  const void* RunInner(const DeviceRun& run, const DevicePanels& panels, const int32_t* every,
                       ProductOperands* operands) const {
    const int64_t t = operands->count, hidden = inner_->product().n;
    const int64_t bytes = Product({t, hidden}, "the inner product") * RecordOf(plan_.dtype).bytes;
    ProductOperands front = *operands;
    front.panels = panels;
    front.residual = nullptr;
    front.rows_c = every;
    front.c = run.Take(static_cast<size_t>(bytes));
    front.stored_c = t;
    void* const bits = run.Take(static_cast<size_t>(t * 2 * panels.count) * sizeof(uint32_t));
    inner_->Run(run, front, inner_->TileFor(t, run.device()), bits);
    operands->a = front.c;
    operands->stored_a = t;
    operands->rows_a = every;
    return bits;
  }

  const ContractPlan plan_;
  const DenseProduct dense_;
  const std::optional<DenseProduct> inner_;
  const std::optional<ListedProduct> listed_;
};

}  // namespace

std::unique_ptr<DeviceOperation> MakeContract(const ContractPlan& plan, DenseProduct dense,
                                              std::optional<DenseProduct> inner,
                                              std::optional<ListedProduct> listed) {
  return std::make_unique<Contract>(plan, std::move(dense), std::move(inner), std::move(listed));
}

}  // namespace pitc::cuda

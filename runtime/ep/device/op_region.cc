// region on a device: the live points of a mask, then products for them, one behind the other. How
// many points live the device alone knows, so that nobody waits.
#include "device/device_operation.h"

namespace pitc::cuda {
namespace {

// What a step reads and writes while a region runs.
class Values final : public StepValues {
 public:
  // `made`: what earlier steps have made; the result of this one is added. `output`: its place
  // among the outputs of the node; -1: it stays inside.
  Values(const DeviceRun& run, const RegionStep& step, const DeviceInput& rows,
         std::vector<DeviceInput>* made, int output)
      : run_(run), step_(step), rows_(rows), made_(made), output_(output) {}

  DeviceInput Input(int index, const char* role) const override {
    const StepOperand& from = step_.reads[static_cast<size_t>(index)];
    if (from.kind == StepOperand::kInput) return run_.Input(from.number, role);
    DeviceInput found =
        from.kind == StepOperand::kRows ? rows_ : (*made_)[static_cast<size_t>(from.number)];
    found.role = role;
    return found;
  }

  void* Output(const Shape& shape, int element_bytes) override {
    const auto bytes = static_cast<size_t>(shape.Elements() * element_bytes);
    void* const memory =
        output_ < 0 ? run_.Take(bytes) : run_.Output(output_, shape, element_bytes);
    DeviceInput result;
    result.type = OnnxType(step_.plan.dtype);
    result.shape = shape;
    result.data = memory;
    result.on_device = true;
    if (!step_.plan.scatter) result.gate = rows_.gate;
    made_->push_back(result);
    return memory;
  }

 private:
  const DeviceRun& run_;
  const RegionStep& step_;
  const DeviceInput& rows_;
  std::vector<DeviceInput>* const made_;
  const int output_;
};

class Region final : public DeviceOperation {
 public:
  Region(const RegionPlan& plan, LivePoints points,
         std::vector<std::unique_ptr<DeviceOperation>> steps)
      : plan_(plan), points_(std::move(points)), steps_(std::move(steps)) {}
  int InputCount() const override { return plan_.inputs; }
  int OutputCount() const override { return static_cast<int>(plan_.gives.size()); }

  void Run(const DeviceRun& run) const override {
    const DeviceInput rows = points_.Find(run, run.MaskInput(0, "live"));
    std::vector<DeviceInput> made;
    int given = 0;
    for (size_t i = 0; i < steps_.size(); ++i) {
      const RegionStep& step = plan_.steps[i];
      const bool is_given =
          given < OutputCount() && plan_.gives[static_cast<size_t>(given)] == static_cast<int>(i);
      Values values(run, step, rows, &made, is_given ? given++ : -1);
      const auto in_step = [&](const Failure& failure) {
        return Text("step ", i, ": ", failure.what());
      };
      try {
        steps_[i]->Run(DeviceRun(run, values));
      } catch (const OutOfDeviceMemory& failure) {
        throw OutOfDeviceMemory(in_step(failure));
      } catch (const Failure& failure) {
        Fail(in_step(failure));
      }
    }
  }

 private:
  const RegionPlan plan_;
  const LivePoints points_;
  const std::vector<std::unique_ptr<DeviceOperation>> steps_;
};

}  // namespace

std::unique_ptr<DeviceOperation> MakeRegion(const RegionPlan& plan, LivePoints points,
                                            std::vector<std::unique_ptr<DeviceOperation>> steps) {
  return std::make_unique<Region>(plan, std::move(points), std::move(steps));
}

}  // namespace pitc::cuda

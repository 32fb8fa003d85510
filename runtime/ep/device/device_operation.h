// Operations of docs/plans.md on a device. Like those of the CPU they hold only what their plan
// says.
#pragma once

#include <memory>
#include <vector>

#include "device/device_run.h"
#include "plan/plan.h"

namespace pitc::cuda {

class DeviceOperation {
 public:
  virtual ~DeviceOperation() = default;
  virtual int InputCount() const = 0;
  virtual int OutputCount() const = 0;
  virtual void Run(const DeviceRun& run) const = 0;  // throws Failure
};

// A kernel that moves words of so many bytes.
struct MoveKernel {
  int64_t bytes;
  DeviceKernel kernel;
};

// pack and unpack. `kernels`: widest first; the last one moves the plan's own words.
std::unique_ptr<DeviceOperation> MakeMove(const MovePlan& plan, std::vector<MoveKernel> kernels);

}  // namespace pitc::cuda

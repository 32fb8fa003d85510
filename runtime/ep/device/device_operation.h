// Operations of docs/plans.md on a device. Like those of the CPU they hold only what their plan
// says.
#pragma once

#include <memory>

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

// pack and unpack. `wide` moves 16 bytes at once, where rows are so many and lie so; it may be
// none.
std::unique_ptr<DeviceOperation> MakeMove(const MovePlan& plan, DeviceKernel kernel,
                                          DeviceKernel wide);

}  // namespace pitc::cuda

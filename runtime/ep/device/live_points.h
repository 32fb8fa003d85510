// Live points of a mask, found on a device: in one launch or two, and nobody waits.
#pragma once

#include "device/device_run.h"

namespace pitc::cuda {

class LivePoints {
 public:
  // Kernels `live_counts` and `live_points`.
  LivePoints(DeviceKernel count, DeviceKernel list)
      : count_(std::move(count)), list_(std::move(list)) {}

  // The numbers of the live points of `live`, in memory of the run, with room for all points; its
  // gate says how many there are. Without points there is no gate.
  DeviceInput Find(const DeviceRun& run, const DeviceInput& live) const;

 private:
  const DeviceKernel count_, list_;
};

}  // namespace pitc::cuda

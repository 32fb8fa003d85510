// The execution provider for an NVIDIA GPU in one session: claims the PIT nodes that were compiled
// for it. What it cannot run is an error, never a run on the CPU.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "device/device_operation.h"
#include "provider/planned_node.h"
#include "select/trace.h"

namespace pitc {

// What the factory says of a device, and is told when it is chosen.
constexpr const char* kDeviceKey = "cuda_device";

class CudaEp : public OrtEp {
 public:
  // Throws Failure where the driver or the device does.
  CudaEp(const Host& host, const OrtSessionOptions* options, int device, uint32_t version);

 private:
  using LoadKernel = std::function<cuda::DeviceKernel(const std::string& base)>;

  static OrtStatus* ClaimNodes(OrtEp* self, const OrtGraph* graph, OrtEpGraphSupportInfo* info);
  static OrtStatus* CompileNodes(OrtEp* self, const OrtGraph** graphs, const OrtNode** fused,
                                 size_t count, OrtNodeComputeInfo** infos, OrtNode** context_nodes);

  OrtNodeComputeInfo* MakeNode(const OrtGraph* graph, const OrtNode* fused);
  std::unique_ptr<cuda::DeviceOperation> MakeOperation(const PlannedNode& planned,
                                                       const OrtGraph* graph) const;
  std::unique_ptr<cuda::DeviceOperation> MakeProduct(const ContractPlan& contract,
                                                     const KernelNames& kernels,
                                                     const LoadKernel& load) const;
  // The dense kernels of a product, of each tile that the device offers.
  cuda::DenseProduct MakeDense(const ProductPlan& product, Element type, const Prices& prices,
                               const LoadKernel& load, const std::string& base) const;

  const Host host_;
  Plans plans_{Machine::kCuda};
  const std::shared_ptr<cuda::SessionDevice> session_;  // nodes may outlive it
  const std::shared_ptr<Trace> trace_;                  // null: nobody asks
  const std::optional<CudaCut> variant_;                // session option variant
  const bool tf32_;                                     // session option tf32
  const std::string context_path_;                      // session option ep.context_file_path
  const bool writes_context_;                           // session option ep.context_enable
};

}  // namespace pitc

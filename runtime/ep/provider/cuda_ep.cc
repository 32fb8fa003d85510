#include "provider/cuda_ep.h"

namespace pitc {
namespace {

constexpr const char* kTraceOption = "ep.pitcudaexecutionprovider.trace";

class CudaNode : public OrtNodeComputeInfo {
 public:
  CudaNode(const Host& host, std::string label, std::unique_ptr<cuda::DeviceOperation> operation,
           cuda::DeviceRun::Places places, std::shared_ptr<cuda::SessionDevice> session,
           std::shared_ptr<Trace> trace, uint32_t version)
      : OrtNodeComputeInfo{},
        host_(host),
        label_(std::move(label)),
        operation_(std::move(operation)),
        places_(std::move(places)),
        session_(std::move(session)),
        trace_(std::move(trace)) {
    ort_version_supported = version;
    CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*, void** state) -> OrtStatus* {
      *state = self;
      return nullptr;
    };
    ReleaseState = [](OrtNodeComputeInfo*, void*) {};
    Compute = [](OrtNodeComputeInfo* self, void*, OrtKernelContext* context) {
      return static_cast<const CudaNode*>(self)->Run(context);
    };
  }

 private:
  OrtStatus* Run(OrtKernelContext* context) const {
    return Guard(host_, ORT_INVALID_ARGUMENT, [&] {
      try {
        const cuda::DeviceRun run(host_, context, places_, *session_);
        const Arena::Borrowing borrowing(run.memory());
        operation_->Run(run);
        if (trace_) trace_->Write(label_, run.transfers());
      } catch (const OutOfDeviceMemory& failure) {
        throw OutOfDeviceMemory(label_ + failure.what());
      } catch (const Failure& failure) {
        Fail(label_, failure.what());
      }
    });
  }

  const Host host_;
  const std::string label_;  // `pitc: node 'NAME' (OP): `
  const std::unique_ptr<cuda::DeviceOperation> operation_;
  const cuda::DeviceRun::Places places_;
  const std::shared_ptr<cuda::SessionDevice> session_;
  const std::shared_ptr<Trace> trace_;
};

}  // namespace

CudaEp::CudaEp(const Host& host, const OrtSessionOptions* options, int device, uint32_t version)
    : OrtEp{},
      host_(host),
      session_(std::make_shared<cuda::SessionDevice>(cuda::Device::At(device))),
      trace_(Trace::Open(ConfigEntry(host, options, kTraceOption))),
      context_path_(ConfigEntry(host, options, "ep.context_file_path")),
      writes_context_(ConfigEntry(host, options, "ep.context_enable") == "1") {
  ort_version_supported = version;
  OrtEp::GetName = [](const OrtEp*) { return kCudaEpName; };
  OrtEp::GetCapability = ClaimNodes;
  OrtEp::Compile = CompileNodes;
  OrtEp::ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** infos, size_t count) {
    for (size_t i = 0; i < count; ++i) delete static_cast<CudaNode*>(infos[i]);
  };
}

OrtStatus* CudaEp::ClaimNodes(OrtEp* self, const OrtGraph* graph, OrtEpGraphSupportInfo* info) {
  const Host& host = static_cast<const CudaEp*>(self)->host_;
  return Guard(host, ORT_FAIL, [&] {
    // Constants are kept here, once for all sessions. In a branch ONNX Runtime cannot tell what
    // external initializers of the graph around it hold: it passes them.
    const OrtNodeFusionOptions options{kOrtApiVersion, !IsBranch(host, graph)};
    for (const OrtNode* node : Nodes(host, graph)) {
      if (IsFor(host, node, kCudaEpName))
        Check(host, host.ep_api->EpGraphSupportInfo_AddNodesToFuse(info, &node, 1, &options));
    }
  });
}

OrtStatus* CudaEp::CompileNodes(OrtEp* self, const OrtGraph** graphs, const OrtNode** fused,
                                size_t count, OrtNodeComputeInfo** infos, OrtNode**) {
  auto* const ep = static_cast<CudaEp*>(self);
  return Guard(ep->host_, ORT_FAIL, [&] {
    if (ep->writes_context_)
      Fail("pitc: the model is compiled already; run it without ep.context_enable");
    std::vector<std::unique_ptr<CudaNode>> nodes;
    for (size_t i = 0; i < count; ++i)
      nodes.emplace_back(static_cast<CudaNode*>(ep->MakeNode(graphs[i], fused[i])));
    for (size_t i = 0; i < count; ++i) infos[i] = nodes[i].release();
  });
}

OrtNodeComputeInfo* CudaEp::MakeNode(const OrtGraph* graph, const OrtNode* fused) {
  return MakeFor(host_, graph, fused, kCudaEpName, [&](const PlannedNode& planned) {
    std::unique_ptr<cuda::DeviceOperation> operation = MakeOperation(planned, graph);
    ExpectCounts(planned, operation->InputCount(), operation->OutputCount());
    cuda::DeviceRun::Places places{planned.inputs, planned.outputs, {}};
    places.constants.resize(places.inputs.size());
    const std::vector<std::string> names = InputNames(host_, planned.node);
    for (size_t i = 0; i < names.size(); ++i) {
      if (places.inputs[i] >= 0 || names[i].empty()) continue;
      const Initializer initializer = InitializerOf(host_, planned.node, i);
      if (!initializer.value) continue;
      const Tensor tensor = ReadTensor(host_, initializer.value, names[i].c_str());
      places.constants[i] = cuda::KeepOnDevice(session_->device, tensor);
    }
    return new CudaNode(host_, planned.label, std::move(operation), std::move(places), session_,
                        trace_, ort_version_supported);
  });
}

std::unique_ptr<cuda::DeviceOperation> CudaEp::MakeOperation(const PlannedNode& planned,
                                                             const OrtGraph* graph) const {
  const Plan& plan = planned.plan;
  const auto* const move = std::get_if<MovePlan>(&plan.body);
  if (!move) Fail("expected an operation that runs on CUDA devices (pack, unpack), got ", plan.op);
  const std::shared_ptr<const KernelLibrary> library =
      OpenKernels(plan, ModelFolder(host_, graph, context_path_));
  const std::shared_ptr<cuda::Kernels> kernels = cuda::Kernels::Of(library);
  // One that the library does not have is empty.
  const auto find = [&](const std::string& symbol) {
    Kernel kernel{library, library->Find(symbol), symbol};
    if (!kernel.function) return cuda::DeviceKernel{};
    kernels->Load(symbol, session_->device);
    return cuda::DeviceKernel{kernels, std::move(kernel)};
  };
  cuda::DeviceKernel kernel = find(plan.kernel + "_cuda"), wide;
  if (!kernel.kernels) {
    Fail("expected kernel '", plan.kernel, "_cuda' in '", plan.library,
         "', got none; compile the model again for CUDA");
  }
  if (move->word_bytes == 4) wide = find(plan.op + "_b16_cuda");
  return cuda::MakeMove(*move, std::move(kernel), std::move(wide));
}

}  // namespace pitc

#include "provider/cuda_ep.h"

#include <algorithm>

namespace pitc {
namespace {

constexpr const char* kTf32Option = "ep.pitcudaexecutionprovider.tf32";
constexpr const char* kTraceOption = "ep.pitcudaexecutionprovider.trace";
constexpr const char* kVariantOption = "ep.pitcudaexecutionprovider.variant";

// Whether products of float32 go through tensor cores, as ONNX Runtime's CUDA provider has it.
bool ChooseTf32(const std::string& wanted) {
  if (wanted.empty() || wanted == "1") return true;
  if (wanted == "0") return false;
  Fail("pitc: expected tf32 0 or 1, got ", Quoted(wanted));
}

// The cut that is chosen wherever it is offered; none: the fastest.
std::optional<CudaCut> ChooseCut(const std::string& wanted) {
  if (wanted.empty()) return std::nullopt;
  const auto* const found = std::find(std::begin(kCudaCutNames), std::end(kCudaCutNames), wanted);
  if (found == std::end(kCudaCutNames))
    Fail("pitc: expected variant dense, tile, block or square, got ", Quoted(wanted));
  return static_cast<CudaCut>(found - kCudaCutNames);
}

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
        const cuda::DeviceRun run(host_, context, places_, *session_, trace_ != nullptr);
        const Arena::Borrowing borrowing(run.memory());
        operation_->Run(run);
        if (!trace_) return;
        for (const DeviceChoice& choice : run.choices()) trace_->Write(label_, choice);
        trace_->Write(label_, run.transfers());
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
      variant_(ChooseCut(ConfigEntry(host, options, kVariantOption))),
      tf32_(ChooseTf32(ConfigEntry(host, options, kTf32Option))),
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
  return MakeFor(host_, plans_, graph, fused, kCudaEpName, [&](const PlannedNode& planned) {
    std::unique_ptr<cuda::DeviceOperation> operation = MakeOperation(planned, graph);
    ExpectCounts(planned, operation->InputCount(), operation->OutputCount());
    cuda::DeviceRun::Places places{planned.inputs, planned.outputs, {}};
    places.constants.resize(places.inputs.size());
    const std::vector<std::string> names = InputNames(host_, planned.node);
    for (size_t i = 0; i < names.size(); ++i) {
      if (places.inputs[i] >= 0 || names[i].empty()) continue;
      const OrtValue* const value = InitializerOf(host_, planned.node, i);
      if (!value) continue;
      const Tensor tensor = ReadTensor(host_, value, names[i].c_str());
      places.constants[i] = cuda::KeepOnDevice(session_->device, tensor);
    }
    return new CudaNode(host_, planned.label, std::move(operation), std::move(places), session_,
                        trace_, ort_version_supported);
  });
}

std::unique_ptr<cuda::DeviceOperation> CudaEp::MakeOperation(const PlannedNode& planned,
                                                             const OrtGraph* graph) const {
  const Plan& plan = *planned.plan;
  const std::shared_ptr<const KernelLibrary> library =
      OpenKernels(plan, ModelFolder(host_, graph, context_path_));
  const std::shared_ptr<cuda::Kernels> kernels = cuda::Kernels::Of(library);
  cuda::Device& device = session_->device;
  const LoadKernel load = [&](const std::string& base) {
    Kernel kernel{library, nullptr, base + "_cuda"};
    kernel.function = library->Find(kernel.symbol);
    if (!kernel.function) {
      Fail("expected kernel '", kernel.symbol, "' in '", plan.library,
           "', got none; compile the model again for CUDA");
    }
    kernels->Load(kernel.symbol, device);
    return cuda::DeviceKernel{kernels, std::move(kernel)};
  };
  if (const auto* const move = std::get_if<MovePlan>(&plan.body)) {
    cuda::MoveKernel narrow{move->word_bytes, load(plan.kernels.Of("move"))};
    std::vector<cuda::MoveKernel> moving;
    for (const int bytes : kCudaMovedBytes) {
      const std::string wide = Text(plan.op, "_b", bytes);
      if (bytes > move->word_bytes && library->Find(wide + "_cuda"))
        moving.push_back({bytes, load(wide)});
    }
    moving.push_back(std::move(narrow));
    return cuda::MakeMove(*move, std::move(moving));
  }
  if (const auto* const attention = std::get_if<AttentionPlan>(&plan.body)) {
    const bool chooses = attention->dtype == Element::kFloat32;
    const char* const engine = !chooses ? "" : tf32_ ? "_mma" : "_simt";
    return cuda::MakeAttention(*attention, load(plan.kernels.Of("attention") + engine));
  }
  if (const auto* const grad = std::get_if<AttentionGradPlan>(&plan.body)) {
    const std::string base = plan.kernels.Of("attention_grad");
    cuda::DeviceKernel queries = load(base + "_queries");
    return cuda::MakeAttentionGrad(*grad, std::move(queries), load(base + "_keys"));
  }
  if (const auto* const elementwise = std::get_if<ElementwisePlan>(&plan.body))
    return cuda::MakeElementwise(*elementwise, load(plan.kernels.Of("elementwise")));
  if (const auto* const region = std::get_if<RegionPlan>(&plan.body)) {
    std::vector<std::unique_ptr<cuda::DeviceOperation>> steps;
    for (const RegionStep& step : region->steps)
      steps.push_back(MakeProduct(step.plan, step.kernels, load));
    cuda::LivePoints points(load(plan.kernels.Of("counts")), load(plan.kernels.Of("points")));
    return cuda::MakeRegion(*region, std::move(points), std::move(steps));
  }
  if (const auto* const grouped = std::get_if<GroupedPlan>(&plan.body)) {
    const ProductPlan product{grouped->k, grouped->n, false};
    const std::string& rows = plan.kernels.Of("rows");
    const std::string base = rows.substr(0, rows.rfind('_'));
    return cuda::MakeGrouped(
        *grouped, {load(base + "_counts"), load(rows)},
        MakeDense(product, grouped->dtype, grouped->prices, load, plan.kernels.Of("dense")));
  }
  return MakeProduct(std::get<ContractPlan>(plan.body), plan.kernels, load);
}

cuda::DenseProduct CudaEp::MakeDense(const ProductPlan& product, Element type, const Prices& prices,
                                     const LoadKernel& load, const std::string& base) const {
  const cuda::Device& device = session_->device;
  std::vector<cuda::DenseTile> tiles =
      cuda::OfferedTiles(type, prices.clocks, device.arch(), device.most_shared_bytes(), tf32_);
  std::vector<cuda::DeviceKernel> tiled;
  for (const cuda::DenseTile& tile : tiles) tiled.push_back(load(base + "_" + tile.shape->name));
  return cuda::DenseProduct(product, type, std::move(tiles), std::move(tiled));
}

std::unique_ptr<cuda::DeviceOperation> CudaEp::MakeProduct(const ContractPlan& contract,
                                                           const KernelNames& kernels,
                                                           const LoadKernel& load) const {
  const cuda::Device& device = session_->device;
  const int arch = device.arch(), most_shared = device.most_shared_bytes();
  const auto dense = [&](const ProductPlan& product, const std::string& base) {
    return MakeDense(product, contract.dtype, contract.prices, load, base);
  };
  std::optional<cuda::DenseProduct> inner;
  if (contract.inner) inner.emplace(dense(InnerOf(contract), kernels.Of("inner")));
  std::optional<cuda::ListedProduct> listed;
  if (contract.skips) {
    std::vector<cuda::OfferedVariant> offered =
        cuda::OfferedVariants(contract, arch, most_shared, tf32_);
    cuda::ListedKernels made{load(kernels.Of("detect")), load(kernels.Of("choose")), {}, {}};
    for (const int64_t height : kCudaGroupHeights)
      made.lists.emplace(height, load(Text(kernels.Of("lists"), "_h", height)));
    for (const cuda::OfferedVariant& variant : offered) {
      const bool is_dense = variant.shape->cut == CudaCut::kDense;
      made.products.push_back(is_dense ? cuda::DeviceKernel{} : load(variant.Kernel(kernels)));
    }
    listed.emplace(std::move(offered), std::move(made), variant_);
  }
  return cuda::MakeContract(contract, dense(ProductOf(contract), kernels.Of("dense")),
                            std::move(inner), std::move(listed));
}

}  // namespace pitc

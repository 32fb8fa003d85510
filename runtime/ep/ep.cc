#include "ep.h"

#include <algorithm>

namespace pitc {
namespace {

constexpr const char* kLevelOption = "ep.pitexecutionprovider.cpu_level";

bool IsOurs(const OrtNode* node) {
  return OperatorType(node) == "com.microsoft::EPContext" &&
         StringAttribute(node, "source") == kEpName;
}

CpuLevel ChooseLevel(const std::string& wanted) {
  const CpuLevel machine = MachineCpuLevel();
  if (wanted.empty()) return machine;
  for (CpuLevel level : {CpuLevel::kV3, CpuLevel::kV4}) {
    if (wanted != Name(level)) continue;
    if (level > machine)
      Fail("pitc: expected cpu_level up to ", Name(machine), " on this CPU, got ", wanted);
    return level;
  }
  Fail("pitc: expected cpu_level v3 or v4, got ", Quoted(wanted));
}

// The place of each name in `among`: -1 for "" and for names that are not there.
std::vector<int> PlacesOf(const std::vector<std::string>& names,
                          const std::vector<std::string>& among) {
  std::vector<int> places;
  for (const std::string& name : names) {
    auto at = std::find(among.begin(), among.end(), name);
    places.push_back(name.empty() || at == among.end() ? -1 : static_cast<int>(at - among.begin()));
  }
  return places;
}

}  // namespace

Ep::Ep(const OrtSessionOptions* options, uint32_t version)
    : OrtEp{},
      level_(ChooseLevel(ConfigEntry(options, kLevelOption))),
      context_path_(ConfigEntry(options, "ep.context_file_path")),
      writes_context_(ConfigEntry(options, "ep.context_enable") == "1") {
  ort_version_supported = version;
  OrtEp::GetName = [](const OrtEp*) { return kEpName; };
  OrtEp::GetCapability = ClaimNodes;
  OrtEp::Compile = CompileNodes;
  OrtEp::ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** infos, size_t count) {
    for (size_t i = 0; i < count; ++i) delete static_cast<Node*>(infos[i]);
  };
}

OrtStatus* Ep::ClaimNodes(OrtEp*, const OrtGraph* graph, OrtEpGraphSupportInfo* info) {
  return Guard(ORT_FAIL, [&] {
    for (const OrtNode* node : Nodes(graph)) {
      if (IsOurs(node)) Check(ort_ep->EpGraphSupportInfo_AddNodesToFuse(info, &node, 1, nullptr));
    }
  });
}

OrtStatus* Ep::CompileNodes(OrtEp* self, const OrtGraph** graphs, const OrtNode** fused,
                            size_t count, OrtNodeComputeInfo** infos, OrtNode**) {
  return Guard(ORT_FAIL, [&] {
    const Ep* ep = static_cast<const Ep*>(self);
    if (ep->writes_context_)
      Fail("pitc: the model is compiled already; run it without ep.context_enable");
    std::vector<std::unique_ptr<Node>> nodes;
    for (size_t i = 0; i < count; ++i) nodes.push_back(ep->MakeNode(graphs[i], fused[i]));
    for (size_t i = 0; i < count; ++i) infos[i] = nodes[i].release();
  });
}

std::unique_ptr<Node> Ep::MakeNode(const OrtGraph* graph, const OrtNode* fused) const {
  const std::vector<const OrtNode*> inner = Nodes(graph);
  if (inner.size() != 1 || !IsOurs(inner[0]))
    Fail("pitc: expected one EPContext node, got another graph");
  const OrtNode* node = inner[0];
  std::string name = NodeName(node);
  if (name.empty()) name = StringAttribute(node, "partition_name").value_or("");
  std::string label = NodeLabel(name, "EPContext");
  try {
    if (IntAttribute(node, "embed_mode").value_or(1) != 1)
      Fail("expected embed_mode 1, got another");
    if (IntAttribute(node, "main_context").value_or(1) != 1)
      Fail("expected main_context 1, got another");
    std::optional<std::string> text = StringAttribute(node, "ep_cache_context");
    if (!text) Fail("expected a plan in ep_cache_context, got none");
    const Plan plan = ParsePlan(*text);
    label = NodeLabel(name, plan.op);
    std::unique_ptr<Operation> operation = MakeOperation(plan, graph);
    RunContext::Places places{PlacesOf(InputNames(node), InputNames(fused)),
                              PlacesOf(OutputNames(node), OutputNames(fused))};
    const auto inputs = static_cast<int>(places.inputs.size()),
               outputs = static_cast<int>(places.outputs.size());
    if (inputs != operation->InputCount() || outputs != operation->OutputCount()) {
      Fail("expected ", operation->InputCount(), " inputs and ", operation->OutputCount(),
           " outputs, got ", inputs, " and ", outputs);
    }
    return std::make_unique<Node>(label, std::move(operation), std::move(places),
                                  ort_version_supported);
  } catch (const Failure& failure) {
    Fail(label, failure.what());
  }
}

std::unique_ptr<Operation> Ep::MakeOperation(const Plan& plan, const OrtGraph* graph) const {
  if (auto* detect = std::get_if<DetectPlan>(&plan.body)) return MakeDetect(*detect, level_);
  Kernel kernel = LoadKernel(plan, graph);
  if (auto* gemm = std::get_if<GatherGemmPlan>(&plan.body))
    return MakeGatherGemm(*gemm, std::move(kernel));
  if (auto* attention = std::get_if<AttentionPlan>(&plan.body))
    return MakeAttention(*attention, std::move(kernel));
  const auto& move = std::get<MovePlan>(plan.body);
  return move.unpack ? MakeUnpack(move, std::move(kernel)) : MakePack(move, std::move(kernel));
}

Kernel Ep::LoadKernel(const Plan& plan, const OrtGraph* graph) const {
  if (level_ == CpuLevel::kBaseline) {
    Fail(
        "expected a CPU with AVX2, FMA and BMI (v3) or AVX-512 (v4), got neither; load "
        "fallback.onnx instead");
  }
  std::string model = ModelPath(graph);
  if (model.empty()) model = context_path_;
  if (model.empty()) {
    Fail("expected the model's folder, where '", plan.library,
         "' lies, got a model from memory; set the session option ep.context_file_path to a file "
         "in that folder");
  }
  const size_t slash = model.rfind('/');
  const std::string folder = slash == std::string::npos ? "."
                             : slash == 0               ? "/"
                                                        : model.substr(0, slash);
  Kernel kernel{KernelLibrary::Open(folder, plan.library), nullptr, {}};
  for (CpuLevel level : {CpuLevel::kV4, CpuLevel::kV3}) {  // the best one there is
    if (level > level_) continue;
    kernel.symbol = plan.kernel + "_" + Name(level);
    kernel.function = kernel.library->Find(kernel.symbol);
    if (kernel.function) return kernel;
  }
  Fail("expected kernel '", plan.kernel, "' for CPU level ", Name(level_), " in '", plan.library,
       "', got none; compile the model again for this CPU");
}

}  // namespace pitc

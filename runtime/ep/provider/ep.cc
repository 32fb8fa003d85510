#include "provider/ep.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdlib>

#include "ort/large_memory.h"

namespace pitc {
namespace {

// Options of a session.
constexpr const char* kLevelOption = "ep.pitexecutionprovider.cpu_level";
constexpr const char* kTraceOption = "ep.pitexecutionprovider.trace";
constexpr const char* kTaskTraceOption = "ep.pitexecutionprovider.task_trace";
constexpr const char* kVariantOption = "ep.pitexecutionprovider.variant";
constexpr const char* kThreadsOption = "ep.pitexecutionprovider.threads";
constexpr const char* kHugePagesOption = "ep.pitexecutionprovider.huge_pages";
constexpr const char* kDenormalsOption = "session.set_denormal_as_zero";  // ONNX Runtime's own
constexpr int kMostThreads = 1024;
// Environment variables: for sessions without the option.
constexpr const char* kLevelVariable = "PITC_CPU";
constexpr const char* kTraceVariable = "PITC_TRACE";

// What is wanted, and the name of who says so: an option, or a variable.
struct Wanted {
  const char* name;
  std::string value;
};

Wanted OrVariable(const char* option, const std::string& value, const char* variable) {
  const char* const everywhere = std::getenv(variable);
  if (value.empty() && everywhere) return {variable, everywhere};
  return {option, value};
}

// The level that the user asks for.
std::optional<CpuLevel> ForcedLevel(const std::string& option) {
  const auto [name, wanted] = OrVariable("cpu_level", option, kLevelVariable);
  if (wanted.empty()) return std::nullopt;
  const CpuLevel machine = MachineCpuLevel();
  for (CpuLevel level : kKernelLevels) {
    if (wanted != Name(level)) continue;
    if (level > machine)
      Fail("pitc: expected ", name, " up to ", Name(machine), " on this CPU, got ", wanted);
    return level;
  }
  Fail("pitc: expected ", name, " ", kKernelLevelNames, ", got ", Quoted(wanted));
}

// Says once in this process why faster kernels do not run.
void Tell(const Host& host, Lack lack) {
  static std::atomic<bool> units{false}, tiles{false}, speed{false};
  if (lack == Lack::kUnits) {
    WarnOnce(host, &units,
             "pitc: this CPU shows no AVX512-BF16: products of bfloat16 are computed in float32. "
             "`pitc doctor` says more");
  }
  if (lack == Lack::kTiles) {
    WarnOnce(host, &tiles,
             "pitc: this CPU has AMX, but the operating system gives no tile registers to this "
             "process: products of bfloat16 are computed in float32. `pitc doctor` says more");
  }
  if (lack == Lack::kSpeed) {
    WarnOnce(host, &speed,
             "pitc: this CPU shows no AMX, and its AVX512-BF16 is slower than float32: products of "
             "bfloat16 are computed in float32. `pitc doctor` says more");
  }
}

// Whether kernels of a level of bfloat16 may use its unit. Tile registers are asked for by the
// first kernel that needs them.
bool UsesUnit(CpuLevel level, CpuLevel machine, bool forced) {
  if (level != machine) return false;
  return level == CpuLevel::kV4Amx ? AllowsTiles() : forced || HasFastPairs();
}

std::shared_ptr<Trace> ChooseTrace(const std::string& option) {
  return Trace::Open(OrVariable("trace", option, kTraceVariable).value);
}

std::optional<Variant> ChooseVariant(const std::string& wanted) {
  if (wanted.empty()) return std::nullopt;
  std::string all;
  for (int v = 0; v < kVariants; ++v) {
    const auto variant = static_cast<Variant>(v);
    if (wanted == Name(variant)) return variant;
    all += Text(v ? ", " : "", Name(variant));
  }
  Fail("pitc: expected variant as one of ", all, ", got ", Quoted(wanted));
}

// 0: as many as there are.
int ChooseThreads(const std::string& wanted) {
  if (wanted.empty()) return 0;
  int threads = 0;
  const char* const end = wanted.data() + wanted.size();
  const auto read = std::from_chars(wanted.data(), end, threads);
  if (read.ec != std::errc() || read.ptr != end || threads < 1 || threads > kMostThreads)
    Fail("pitc: expected threads from 1 to ", kMostThreads, ", got ", Quoted(wanted));
  return threads;
}

// Whether constants are kept in huge pages: unless told otherwise where there are any.
bool ChooseHugePages(const std::string& wanted) {
  if (!wanted.empty() && wanted != "0" && wanted != "1")
    Fail("pitc: expected huge_pages 0 or 1, got ", Quoted(wanted));
  return wanted.empty() ? HasHugePages() : wanted == "1";
}

}  // namespace

Ep::Ep(const Host& host, const OrtSessionOptions* options, uint32_t version)
    : OrtEp{},
      host_(host),
      forced_(ForcedLevel(ConfigEntry(host, options, kLevelOption))),
      level_(forced_.value_or(MachineCpuLevel())),
      simd_(PrimitivesOf(level_)),
      mode_{
          ConfigEntry(host, options, kDenormalsOption) == "1" ? Denormals::kZero : Denormals::kKept,
          std::make_shared<Workers>(ChooseThreads(ConfigEntry(host, options, kThreadsOption))),
          Trace::Open(ConfigEntry(host, options, kTaskTraceOption))},
      keeps_constants_(ChooseHugePages(ConfigEntry(host, options, kHugePagesOption))),
      trace_(ChooseTrace(ConfigEntry(host, options, kTraceOption))),
      variant_(ChooseVariant(ConfigEntry(host, options, kVariantOption))),
      context_path_(ConfigEntry(host, options, "ep.context_file_path")),
      writes_context_(ConfigEntry(host, options, "ep.context_enable") == "1") {
  ort_version_supported = version;
  OrtEp::GetName = [](const OrtEp*) { return kEpName; };
  OrtEp::GetCapability = ClaimNodes;
  OrtEp::Compile = CompileNodes;
  OrtEp::ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** infos, size_t count) {
    for (size_t i = 0; i < count; ++i) delete static_cast<Node*>(infos[i]);
  };
}

bool Ep::SkipsRows(const OrtNode* node) {
  try {
    const Plan& plan = plans_.Of(StringAttribute(host_, node, "ep_cache_context").value_or(""));
    const auto* contract = std::get_if<ContractPlan>(&plan.body);
    return contract && contract->skips && contract->right == ContractPlan::kPanels;
  } catch (const Failure&) {  // is told when the node is made
    return false;
  }
}

OrtStatus* Ep::ClaimNodes(OrtEp* self, const OrtGraph* graph, OrtEpGraphSupportInfo* info) {
  auto* const ep = static_cast<Ep*>(self);
  const Host& host = ep->host_;
  return Guard(host, ORT_FAIL, [&] {
    // In a branch ONNX Runtime cannot tell what external initializers of the graph around it hold.
    const bool keeps = ep->keeps_constants_ && !IsBranch(host, graph);
    for (const OrtNode* node : Nodes(host, graph)) {
      if (!IsFor(host, node, kEpName)) continue;
      const OrtNodeFusionOptions options{kOrtApiVersion, keeps && ep->SkipsRows(node)};
      Check(host, host.ep_api->EpGraphSupportInfo_AddNodesToFuse(info, &node, 1, &options));
    }
  });
}

OrtStatus* Ep::CompileNodes(OrtEp* self, const OrtGraph** graphs, const OrtNode** fused,
                            size_t count, OrtNodeComputeInfo** infos, OrtNode**) {
  Ep* ep = static_cast<Ep*>(self);
  return Guard(ep->host_, ORT_FAIL, [&] {
    if (ep->writes_context_)
      Fail("pitc: the model is compiled already; run it without ep.context_enable");
    std::vector<std::unique_ptr<Node>> nodes;
    for (size_t i = 0; i < count; ++i) nodes.push_back(ep->MakeNode(graphs[i], fused[i]));
    for (size_t i = 0; i < count; ++i) infos[i] = nodes[i].release();
  });
}

std::unique_ptr<Node> Ep::MakeNode(const OrtGraph* graph, const OrtNode* fused) {
  return MakeFor(host_, plans_, graph, fused, kEpName, [&](const PlannedNode& planned) {
    const OrtNode* const node = planned.node;
    std::unique_ptr<Operation> operation = MakeOperation(*planned.plan, planned.name, graph);
    RunContext::Places places{planned.inputs, planned.outputs, {}, {}};
    places.constants = KeepConstants(graph, node, places.inputs);
    for (size_t i = 0; i < places.inputs.size(); ++i) {
      const bool passed = places.inputs[i] >= 0 && IsConstant(host_, node, i);
      places.passed.push_back(passed ? std::make_unique<PassedConstant>() : nullptr);
    }
    ExpectCounts(planned, operation->InputCount(), operation->OutputCount());
    return std::make_unique<Node>(host_, planned.label, std::move(operation), std::move(places),
                                  mode_, ort_version_supported);
  });
}

std::vector<std::shared_ptr<const Constant>> Ep::KeepConstants(const OrtGraph* graph,
                                                               const OrtNode* node,
                                                               const std::vector<int>& places) {
  const std::vector<std::string> names = InputNames(host_, node);
  const std::string folder = ModelFolder(host_, graph, context_path_);
  std::vector<std::shared_ptr<const Constant>> found(places.size());
  for (size_t i = 0; i < places.size(); ++i) {
    if (places[i] >= 0 || names[i].empty()) continue;
    std::optional<FilePart> file;
    if (!folder.empty()) file = FileOf(host_, node, i);
    if (file) {
      file->path = folder + "/" + file->path;
      found[i] = constants_.Find(names[i], *file);
    }
    const OrtValue* const value = found[i] ? nullptr : InitializerOf(host_, node, i);
    if (value)
      found[i] = constants_.Keep(names[i], ReadTensor(host_, value, names[i].c_str()), file);
  }
  return found;
}

std::unique_ptr<Operation> Ep::MakeOperation(const Plan& plan, const std::string& name,
                                             const OrtGraph* graph) const {
  if (auto* detect = std::get_if<DetectPlan>(&plan.body)) return MakeDetect(*detect, simd_);
  if (auto* pairs = std::get_if<PairsPlan>(&plan.body)) return MakePairs(*pairs, simd_);
  if (auto* add = std::get_if<AddRowsPlan>(&plan.body)) return MakeAddRows(*add);
  if (auto* sparse = std::get_if<SparseProductPlan>(&plan.body))
    return MakeSparseProduct(*sparse, simd_);
  if (auto* choose = std::get_if<ChannelsPlan>(&plan.body))
    return MakeChooseChannels(*choose, trace_, variant_ == Variant::kDense);
  const auto load = [&](const char* role) {
    return LoadKernel(plan, plan.kernels.Of(role), graph);
  };
  if (auto* attention = std::get_if<AttentionPlan>(&plan.body))
    return MakeAttention(*attention, load("attention"), attention->pairs ? load("pairs") : Kernel{},
                         name, trace_);
  if (auto* grad = std::get_if<AttentionGradPlan>(&plan.body))
    return MakeAttentionGrad(*grad, load("attention_grad"), grad->pairs ? load("pairs") : Kernel{});
  if (auto* outer = std::get_if<OuterProductsPlan>(&plan.body))
    return MakeOuterProducts(*outer, simd_, load("dense"),
                             outer->masked ? load("listed") : Kernel{}, variant_);
  if (auto* norm = std::get_if<NormPlan>(&plan.body)) return MakeNorm(*norm, load("norm"));
  if (auto* elementwise = std::get_if<ElementwisePlan>(&plan.body))
    return MakeElementwise(*elementwise, load("elementwise"));
  if (auto* move = std::get_if<MovePlan>(&plan.body))
    return move->unpack ? MakeUnpack(*move, load("move")) : MakePack(*move, load("move"));

  const SelectorOptions options{name, trace_, variant_};
  ContractionKernels kernels{load("dense"), {}, {}, {}, {}};
  const CpuLevel dense = kernels.dense.level;
  const auto lists = [&] { return ListKernels{load("row"), load("tile"), load("block")}; };
  if (auto* grouped = std::get_if<GroupedPlan>(&plan.body)) {
    if (grouped->skips) kernels.listed = lists();
    const CostTable& costs = grouped->prices.Of(level_, dense);
    Contraction one(costs, simd_, std::move(kernels), options);
    return MakeGrouped(*grouped, load("dense"), std::move(one), name, trace_);
  }
  const auto& contract = std::get<ContractPlan>(plan.body);
  const CostTable& costs = contract.prices.Of(level_, dense);
  if (contract.tiles) {
    kernels.listed.block = load("block");
    return MakeSampled(contract, costs, simd_, std::move(kernels), options);
  }
  if (contract.skips) kernels.listed = lists();
  if (contract.right != ContractPlan::kPanels) {
    kernels.panels = load("panels");
    kernels.swrite = load("swrite");
    if (contract.right == ContractPlan::kKn || contract.factor) kernels.rows = load("rows");
  }
  return MakeContract(contract, contract.inner ? load("inner") : Kernel{},
                      Contraction(costs, simd_, std::move(kernels), options));
}

Kernel Ep::LoadKernel(const Plan& plan, const std::string& symbol, const OrtGraph* graph) const {
  if (level_ == CpuLevel::kBaseline) {
    Fail(
        "expected a CPU with AVX2, FMA and BMI (v3) or AVX-512 (v4), got neither; load "
        "fallback.onnx instead");
  }
  Kernel kernel{OpenKernels(plan, ModelFolder(host_, graph, context_path_)), nullptr, {}};
  for (CpuLevel level : kKernelLevels) {  // the best one there is
    kernel.symbol = symbol + "_" + Name(level), kernel.level = level;
    kernel.function = kernel.library->Find(kernel.symbol);
    if (!kernel.function) continue;
    const bool unit = UsesUnit(level, level_, forced_.has_value());
    if (Runs(level, level_, unit)) return kernel;
    Tell(host_, LackOf(level, level_, unit, forced_.has_value()));
  }
  Fail("expected kernel '", symbol, "' for CPU level ", Name(level_), " in '", plan.library,
       "', got none; compile the model again for this CPU");
}

}  // namespace pitc

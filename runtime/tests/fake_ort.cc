#include "fake_ort.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <thread>

struct OrtStatus {
  std::string text;
  OrtErrorCode code = ORT_FAIL;
};

struct OrtMemoryInfo {};

struct OrtTensorTypeAndShapeInfo {
  ONNXTensorElementDataType type;
  std::vector<int64_t> dims;
};

struct OrtExternalInitializerInfo {
  std::string path;
  size_t bytes;
};

struct OrtKernelContext {
  const OrtNode& node;
  std::vector<OrtValue> inputs;
  std::vector<OrtValue> outputs;
};

struct OrtEpGraphSupportInfo {
  std::vector<const OrtNode*> nodes;
  bool drops_initializers = false;
};

struct OrtHardwareDevice {};

struct OrtEpDevice {
  std::string provider;
};

// Leaks are looked for without thread-local memory: where that of a plug-in lies the sanitizer
// guesses, and a wrong guess ends it. When it looks, threads have given theirs back.
extern "C" __attribute__((visibility("default"))) const char* __lsan_default_options() {
  return "use_tls=0";
}

namespace {

size_t ElementBytes(ONNXTensorElementDataType type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return 4;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return 8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return 2;
    default:
      return 1;
  }
}

}  // namespace

size_t OrtValue::Bytes() const {
  size_t size = ElementBytes(type);
  for (int64_t dim : dims) size *= static_cast<size_t>(dim);
  return size;
}

namespace pitc::test {

std::atomic<int64_t> alive{0};
std::atomic<int64_t> failing_call{0};
const char* version = "1.24.0";
std::function<void(std::vector<OrtValue>&)> meanwhile;
std::function<void(void (*)(void*, size_t), size_t, void*)> share;
std::atomic<int64_t> lent{0}, most_lent{0}, lendable{-1};

namespace {

constexpr size_t kPieceHeader = 64;  // keeps how large a lent piece is

constexpr size_t kMostBytes = size_t{1} << 28;  // of an output: more is an error, as without memory
constexpr int kPoolThreads = 2;

OrtStatus* NewStatus(std::string text, OrtErrorCode code = ORT_FAIL) {
  ++alive;
  return new OrtStatus{std::move(text), code};
}

// Null, unless this call is the one that is to fail.
OrtStatus* Injected() {
  if (failing_call <= 0 || --failing_call > 0) return nullptr;
  return NewStatus("injected");
}

// A function of the table: it gives a value through its last argument.
template <class Out, class Value>
OrtStatus* Give(Out* out, Value&& value) {
  if (OrtStatus* status = Injected()) return status;
  *out = std::forward<Value>(value);
  return nullptr;
}

template <class T>
OrtStatus* GiveText(const std::string& text, T* out, size_t* size, size_t room) {
  if (OrtStatus* status = Injected()) return status;
  *size = room;
  if (!out) return NewStatus("too small");
  memcpy(out, text.c_str(), room);
  return nullptr;
}

OrtStatus* GiveInfos(const std::vector<OrtValueInfo>& infos, const OrtValueInfo** out,
                     size_t count) {
  if (OrtStatus* status = Injected()) return status;
  for (size_t i = 0; i < std::min(count, infos.size()); ++i)
    out[i] = infos[i].name.empty() ? nullptr : &infos[i];
  return nullptr;
}

OrtStatus* GetOutput(OrtKernelContext* context, size_t index, const int64_t* dims, size_t rank,
                     OrtValue** value) {
  if (OrtStatus* status = Injected()) return status;
  if (meanwhile) meanwhile(context->inputs);
  OrtValue& output = context->outputs.at(index);
  size_t bytes = ElementBytes(output.type);
  for (size_t d = 0; d < rank; ++d) {
    if (dims[d] < 0) return NewStatus("negative extent");
    bytes *= static_cast<size_t>(dims[d]);
    if (bytes > kMostBytes) return NewStatus("Failed to allocate memory for requested buffer");
  }
  output.dims.assign(dims, dims + rank);
  output.bytes = std::vector<char>(bytes, '\x55');
  *value = &output;
  return nullptr;
}

OrtStatus* ParallelFor(const OrtKernelContext*, void (*task)(void*, size_t), size_t total, size_t,
                       void* data) {
  if (OrtStatus* status = Injected()) return status;
  if (share) {
    share(task, total, data);
    return nullptr;
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < total; i = next++) task(data, i);
  };
  std::vector<std::thread> pool;
  for (int i = 1; i < kPoolThreads; ++i) pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
  return nullptr;
}

OrtStatus* Alloc(OrtAllocator*, size_t bytes, void** out) {
  if (OrtStatus* status = Injected()) return status;
  if (lendable == 0) return NewStatus("Failed to allocate memory for requested buffer");
  if (lendable > 0) --lendable;
  // At no more than the least alignment that is promised.
  auto* piece = static_cast<char*>(malloc(kPieceHeader + bytes));
  memcpy(piece, &bytes, sizeof bytes);
  const int64_t now = lent += static_cast<int64_t>(bytes);
  for (int64_t most = most_lent; now > most && !most_lent.compare_exchange_weak(most, now);) {
  }
  ++alive;
  *out = piece + kPieceHeader;
  return nullptr;
}

OrtStatus* Free(OrtAllocator*, void* memory) {
  char* const piece = static_cast<char*>(memory) - kPieceHeader;
  size_t bytes;
  memcpy(&bytes, piece, sizeof bytes);
  lent -= static_cast<int64_t>(bytes);
  --alive;
  free(piece);
  return nullptr;
}

const OrtEpApi* EpApi() {
  static const OrtEpApi api = [] {
    OrtEpApi a{};
    a.CreateEpDevice = [](OrtEpFactory* factory, const OrtHardwareDevice*, const OrtKeyValuePairs*,
                          const OrtKeyValuePairs*, OrtEpDevice** out) {
      if (OrtStatus* status = Injected()) return status;
      ++alive;
      *out = new OrtEpDevice{factory->GetName(factory)};
      return static_cast<OrtStatus*>(nullptr);
    };
    a.EpGraphSupportInfo_AddNodesToFuse = [](OrtEpGraphSupportInfo* info,
                                             const OrtNode* const* nodes, size_t count,
                                             const OrtNodeFusionOptions* options) {
      if (OrtStatus* status = Injected()) return status;
      info->drops_initializers = options && options->drop_constant_initializers;
      info->nodes.insert(info->nodes.end(), nodes, nodes + count);
      return static_cast<OrtStatus*>(nullptr);
    };
    return a;
  }();
  return &api;
}

OrtApi MakeApi() {
  OrtApi a{};
  a.CreateStatus = [](OrtErrorCode code, const char* text) { return NewStatus(text, code); };
  a.GetErrorMessage = [](const OrtStatus* status) { return status->text.c_str(); };
  a.ReleaseStatus = [](OrtStatus* status) {
    --alive;
    delete status;
  };
  a.GetEpApi = EpApi;
  a.HardwareDevice_Type = [](const OrtHardwareDevice*) { return OrtHardwareDeviceType_CPU; };
  // the session's options
  a.HasSessionConfigEntry = [](const OrtSessionOptions* options, const char* key, int* has) {
    return Give(has, static_cast<int>(options->entries.count(key)));
  };
  a.GetSessionConfigEntry = [](const OrtSessionOptions* options, const char* key, char* out,
                               size_t* size) {
    const std::string& text = options->entries.at(key);
    return GiveText(text, out, size, text.size() + 1);
  };
  // the graph
  a.Graph_GetModelPath = [](const OrtGraph* graph, const ORTCHAR_T** path) {
    return Give(path, graph->path.c_str());
  };
  a.Graph_GetParentNode = [](const OrtGraph* graph, const OrtNode** out) {
    return Give(out, graph->parent);
  };
  a.Graph_GetNumNodes = [](const OrtGraph*, size_t* count) { return Give(count, size_t{1}); };
  a.Graph_GetNodes = [](const OrtGraph* graph, const OrtNode** nodes, size_t) {
    return Give(nodes, &graph->node);
  };
  a.Node_GetName = [](const OrtNode* node, const char** out) {
    return Give(out, node->name.c_str());
  };
  a.Node_GetOperatorType = [](const OrtNode* node, const char** out) {
    return Give(out, node->op.c_str());
  };
  a.Node_GetDomain = [](const OrtNode* node, const char** out) {
    return Give(out, node->domain.c_str());
  };
  a.Node_GetNumInputs = [](const OrtNode* node, size_t* out) {
    return Give(out, node->inputs.size());
  };
  a.Node_GetNumOutputs = [](const OrtNode* node, size_t* out) {
    return Give(out, node->outputs.size());
  };
  a.Node_GetInputs = [](const OrtNode* node, const OrtValueInfo** out, size_t count) {
    return GiveInfos(node->inputs, out, count);
  };
  a.Node_GetOutputs = [](const OrtNode* node, const OrtValueInfo** out, size_t count) {
    return GiveInfos(node->outputs, out, count);
  };
  a.GetValueInfoName = [](const OrtValueInfo* info, const char** out) {
    return Give(out, info->name.c_str());
  };
  a.ValueInfo_IsConstantInitializer = [](const OrtValueInfo* info, bool* out) {
    return Give(out, bool{info->constant});
  };
  a.ValueInfo_GetInitializerValue = [](const OrtValueInfo* info, const OrtValue** out) {
    return Give(out, info->initializer);
  };
  a.ValueInfo_GetExternalInitializerInfo = [](const OrtValueInfo* info,
                                              OrtExternalInitializerInfo** out) {
    if (OrtStatus* status = Injected()) return status;
    const bool external = info->initializer && !info->path.empty();
    alive += external;
    *out = external ? new OrtExternalInitializerInfo{info->path, info->initializer->bytes.size()}
                    : nullptr;
    return static_cast<OrtStatus*>(nullptr);
  };
  a.ReleaseExternalInitializerInfo = [](OrtExternalInitializerInfo* info) {
    --alive;
    delete info;
  };
  a.ExternalInitializerInfo_GetFilePath = [](const OrtExternalInitializerInfo* info) {
    return info->path.c_str();
  };
  a.ExternalInitializerInfo_GetFileOffset = [](const OrtExternalInitializerInfo*) {
    return pitc::test::kExternalOffset;
  };
  a.ExternalInitializerInfo_GetByteSize = [](const OrtExternalInitializerInfo* info) {
    return info->bytes;
  };
  a.Node_GetAttributeByName = [](const OrtNode* node, const char* key, const OrtOpAttr** out) {
    const auto at = node->attributes.find(key);
    if (at == node->attributes.end()) return NewStatus("no such attribute");
    return Give(out, &at->second);
  };
  a.ReadOpAttr = [](const OrtOpAttr* attribute, OrtOpAttrType type, void* out, size_t room,
                    size_t* size) -> OrtStatus* {
    if (type == ORT_OP_ATTR_STRING) {
      const auto* text = std::get_if<std::string>(&attribute->value);
      return text ? GiveText(*text, out, size, text->size()) : NewStatus("not a text");
    }
    const auto* number = std::get_if<int64_t>(&attribute->value);
    if (!number || room < sizeof *number) return NewStatus("not a number");
    return Give(static_cast<int64_t*>(out), *number);
  };
  // values
  a.KernelContext_GetInput = [](const OrtKernelContext* context, size_t index,
                                const OrtValue** out) {
    const OrtValueInfo& info = context->node.inputs.at(index);
    return Give(out, info.constant ? info.initializer : &context->inputs.at(index));
  };
  a.KernelContext_GetOutput = GetOutput;
  a.KernelContext_ParallelFor = ParallelFor;
  // scratch memory
  a.CreateCpuMemoryInfo = [](OrtAllocatorType, OrtMemType, OrtMemoryInfo** out) {
    if (OrtStatus* status = Injected()) return status;
    ++alive;
    *out = new OrtMemoryInfo;
    return static_cast<OrtStatus*>(nullptr);
  };
  a.ReleaseMemoryInfo = [](OrtMemoryInfo* info) {
    --alive;
    delete info;
  };
  a.KernelContext_GetAllocator = [](const OrtKernelContext*, const OrtMemoryInfo*,
                                    OrtAllocator** out) {
    if (OrtStatus* status = Injected()) return status;
    ++alive;
    *out = new OrtAllocator{};
    return static_cast<OrtStatus*>(nullptr);
  };
  a.ReleaseAllocator = [](OrtAllocator* allocator) {
    --alive;
    delete allocator;
  };
  a.AllocatorAlloc = Alloc;
  a.AllocatorFree = Free;
  a.GetTensorElementTypeAndShapeDataReference =
      [](const OrtValue* value, ONNXTensorElementDataType* type, const int64_t** dims,
         size_t* rank) -> OrtStatus* {
    if (OrtStatus* status = Injected()) return status;
    if (strcmp(version, "1.24.0") < 0) return NewStatus("there is no such function yet");
    *type = value->type;
    *dims = value->dims.data();
    *rank = value->dims.size();
    return nullptr;
  };
  a.GetTensorTypeAndShape = [](const OrtValue* value, OrtTensorTypeAndShapeInfo** out) {
    if (OrtStatus* status = Injected()) return status;
    ++alive;
    *out = new OrtTensorTypeAndShapeInfo{value->type, value->dims};
    return static_cast<OrtStatus*>(nullptr);
  };
  a.ReleaseTensorTypeAndShapeInfo = [](OrtTensorTypeAndShapeInfo* info) {
    --alive;
    delete info;
  };
  a.GetTensorElementType = [](const OrtTensorTypeAndShapeInfo* info,
                              ONNXTensorElementDataType* out) { return Give(out, info->type); };
  a.GetDimensionsCount = [](const OrtTensorTypeAndShapeInfo* info, size_t* out) {
    return Give(out, info->dims.size());
  };
  a.GetDimensions = [](const OrtTensorTypeAndShapeInfo* info, int64_t* out, size_t count) {
    if (OrtStatus* status = Injected()) return status;
    std::copy_n(info->dims.begin(), std::min(count, info->dims.size()), out);
    return static_cast<OrtStatus*>(nullptr);
  };
  a.GetTensorData = [](const OrtValue* value, const void** out) {
    return Give(out, value->bytes.empty() ? nullptr : value->bytes.data());
  };
  a.GetTensorMutableData = [](OrtValue* value, void** out) {
    return Give(out, value->bytes.empty() ? nullptr : value->bytes.data());
  };
  return a;
}

const OrtApiBase* Base() {
  static const OrtApi api = MakeApi();
  static const OrtApiBase base{[](uint32_t) { return &api; }, [] { return version; }};
  return &base;
}

// Another ONNX Runtime in the same process. Nothing of the first one may come here.
const OrtApiBase* OtherBase() {
  static const OrtApi api = [] {
    OrtApi a = MakeApi();
    const auto strange = [](auto...) { return NewStatus("from another ONNX Runtime"); };
    a.HasSessionConfigEntry = strange;
    a.Graph_GetModelPath = strange;
    a.Graph_GetNumNodes = strange;
    a.KernelContext_GetInput = strange;
    a.GetTensorTypeAndShape = strange;
    a.GetTensorElementTypeAndShapeDataReference = strange;
    return a;
  }();
  static const OrtApiBase base{[](uint32_t) { return &api; }, [] { return version; }};
  return &base;
}

void Check(OrtStatus* status) {
  if (!status) return;
  const Error error(status->text, status->code);
  --alive;
  delete status;
  throw error;
}

std::vector<OrtValueInfo> Named(const char* prefix, int count) {
  std::vector<OrtValueInfo> infos;
  for (int i = 0; i < count; ++i) infos.push_back({prefix + std::to_string(i), nullptr, false, ""});
  return infos;
}

}  // namespace

int64_t Calls(const std::function<void()>& body) {
  constexpr int64_t kMany = int64_t{1} << 40;
  failing_call = kMany;
  body();
  return kMany - failing_call.exchange(0);
}

Library::Library(const std::string& path, bool other)
    : handle_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (!handle_) throw std::runtime_error(dlerror());
  const auto create = reinterpret_cast<OrtStatus* (*)(
      const char*, const OrtApiBase*, const OrtLogger*, OrtEpFactory**, size_t, size_t*)>(
      dlsym(handle_, "CreateEpFactories"));
  size_t count = 0;
  Check(create("pitc", other ? OtherBase() : Base(), nullptr, &factory_, 1, &count));
}

Library::~Library() {
  const auto release =
      reinterpret_cast<OrtStatus* (*)(OrtEpFactory*)>(dlsym(handle_, "ReleaseEpFactory"));
  release(factory_);
  dlclose(handle_);
}

Session::Session(const Library& library, const std::string& plan, const std::string& model,
                 int input_count, int output_count, const Options& options,
                 Initializers initializers, const std::string& external, bool overridable)
    : initializers_(std::move(initializers)),
      factory_(library.Factory()),
      output_count_(static_cast<size_t>(output_count)),
      chooses_(plan.find("\nop=choose_channels\n") != plan.npos) {
  graph_.path = model;
  graph_.node = {"n",
                 "EPContext",
                 "com.microsoft",
                 Named("x", input_count),
                 Named("y", output_count),
                 {{"source", {std::string("PitExecutionProvider")}},
                  {"embed_mode", {int64_t{1}}},
                  {"ep_cache_context", {plan}}}};
  for (const auto& [input, value] : initializers_) {
    OrtValueInfo& info = graph_.node.inputs.at(static_cast<size_t>(input));
    info.initializer = &value;
    info.constant = !overridable;
    info.path = external;
  }
  const OrtHardwareDevice cpu;
  const OrtHardwareDevice* const devices[] = {&cpu};
  OrtEpDevice* offered = nullptr;
  size_t count = 0;
  Check(factory_->GetSupportedDevices(factory_, devices, 1, &offered, 1, &count));
  if (count) --alive;
  delete offered;
  OrtSessionOptions session_options;
  for (const auto& [key, value] : options)
    session_options.entries["ep.pitexecutionprovider." + key] = value;
  try {
    Check(factory_->CreateEp(factory_, devices, nullptr, count, &session_options, nullptr, &ep_));
    OrtEpGraphSupportInfo claimed;
    Check(ep_->GetCapability(ep_, &graph_, &claimed));
    if (claimed.nodes.size() != 1) throw std::runtime_error("the node was not claimed");
    fused_ = graph_.node;
    if (claimed.drops_initializers) {
      const auto kept = std::remove_if(fused_.inputs.begin(), fused_.inputs.end(),
                                       [](const OrtValueInfo& info) { return info.initializer; });
      fused_.inputs.erase(kept, fused_.inputs.end());
    }
    const OrtGraph* graphs[] = {&graph_};
    const OrtNode* fused[] = {&fused_};
    OrtNode* context = nullptr;
    Check(ep_->Compile(ep_, graphs, fused, 1, &node_, &context));
    Check(node_->CreateState(node_, nullptr, &state_));
  } catch (...) {
    Release();
    throw;
  }
}

Session::~Session() { Release(); }

void Session::Release() {
  if (node_) node_->ReleaseState(node_, state_);
  if (node_) ep_->ReleaseNodeComputeInfos(ep_, &node_, 1);
  if (ep_) factory_->ReleaseEp(factory_, ep_);
}

std::vector<OrtValue> Session::Run(const std::vector<OrtValue>& inputs) const {
  OrtKernelContext context{fused_, inputs, std::vector<OrtValue>(output_count_)};
  for (OrtValue& output : context.outputs) {
    // Each of a `detect` is int32, a choice bool, a moved tensor keeps its type, all else is float.
    output.type = output_count_ == 3 ? ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32
                  : chooses_         ? ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL
                  : inputs.empty()   ? ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT
                                     : inputs[0].type;
  }
  Check(node_->Compute(node_, state_, &context));
  return std::move(context.outputs);
}

}  // namespace pitc::test

// Run a compiled sentence encoder from C++: no Python, no compiler, no header of ONNX Runtime.
//
//   host LIBONNXRUNTIME PLUGIN MODEL TEXT...
//
// LIBONNXRUNTIME  libonnxruntime.so, 1.23.2 or newer
// PLUGIN          libpitc_ort_ep.so, see `python -c "import pitc; print(pitc.get_library_path())"`
// MODEL           model.onnx in an artifact
// TEXT            token numbers, e.g. "5 8 13 21"; shorter texts are padded with 0
//
// Prints one line per output: name, shape, and the checksum  sum of x[i] * (1 + i % 101).
// A program of your own includes onnxruntime_c_api.h instead of ort_abi.h; the calls are the same.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ort_abi.h"

namespace {

const OrtApi* ort;

void Check(OrtStatus* status) {
  if (!status) return;
  const std::string message = ort->GetErrorMessage(status);
  ort->ReleaseStatus(status);
  throw std::runtime_error(message);
}

// Owns an object of ONNX Runtime: `Owned<OrtEnv> env(ort->ReleaseEnv)`.
template <class T>
class Owned {
 public:
  explicit Owned(void (*release)(T*)) : release_(release) {}
  Owned(Owned&& other) noexcept : release_(other.release_), it_(other.it_) { other.it_ = nullptr; }
  ~Owned() {
    if (it_) release_(it_);
  }
  T** out() { return &it_; }
  T* get() const { return it_; }

 private:
  void (*release_)(T*);
  T* it_ = nullptr;
};

void LoadOnnxRuntime(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) throw std::runtime_error(dlerror());
  void* symbol = dlsym(library, "OrtGetApiBase");
  if (!symbol) throw std::runtime_error(std::string(path) + ": no OrtGetApiBase");
  const OrtApiBase* (*base)() = nullptr;
  std::memcpy(&base, &symbol, sizeof base);
  ort = base()->GetApi(kOrtApiVersion);
  if (!ort) {
    throw std::runtime_error(std::string("needs ONNX Runtime 1.23.2 or newer, got ") +
                             base()->GetVersionString());
  }
}

// Steps 1 to 3 of docs/deploy.md: the plug-in library, its device, the session options.
void AddProvider(OrtEnv* env, OrtSessionOptions* options, const char* plugin) {
  Check(ort->RegisterExecutionProviderLibrary(env, "pitc", plugin));
  const OrtEpDevice* const* devices = nullptr;
  size_t count = 0;
  Check(ort->GetEpDevices(env, &devices, &count));
  const auto* end = devices + count;
  const auto* found = std::find_if(devices, end, [](const OrtEpDevice* device) {
    return std::strcmp(ort->EpDevice_EpName(device), "PitExecutionProvider") == 0;
  });
  if (found == end) throw std::runtime_error("the plug-in offers no device");
  Check(ort->SessionOptionsAppendExecutionProvider_V2(options, env, found, 1, nullptr, nullptr, 0));
}

using NameAt = OrtStatus* (*)(const OrtSession*, size_t, OrtAllocator*, char**);

std::vector<std::string> Names(const OrtSession* session, size_t count, NameAt name_at) {
  OrtAllocator* allocator = nullptr;  // ONNX Runtime's own: never released
  Check(ort->GetAllocatorWithDefaultOptions(&allocator));
  std::vector<std::string> names(count);
  for (size_t i = 0; i < count; ++i) {
    char* text = nullptr;
    Check(name_at(session, i, allocator, &text));
    names[i] = text;
    Check(ort->AllocatorFree(allocator, text));
  }
  return names;
}

using Texts = std::vector<std::vector<int64_t>>;

Texts Parse(char** first, char** last) {
  Texts texts;
  for (; first != last; ++first) {
    std::istringstream words(*first);
    texts.emplace_back();
    for (int64_t token = 0; words >> token;) texts.back().push_back(token);
    if (!words.eof()) throw std::runtime_error(std::string("not token numbers: ") + *first);
  }
  return texts;
}

// One input of a BERT-like encoder, int64 [texts, longest text].
Owned<OrtValue> MakeInput(const std::string& name, const Texts& texts) {
  size_t longest = 0;
  for (const auto& text : texts) longest = std::max(longest, text.size());
  const int64_t shape[] = {static_cast<int64_t>(texts.size()), static_cast<int64_t>(longest)};
  OrtAllocator* allocator = nullptr;
  Check(ort->GetAllocatorWithDefaultOptions(&allocator));
  Owned<OrtValue> value(ort->ReleaseValue);
  Check(ort->CreateTensorAsOrtValue(allocator, shape, 2, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
                                    value.out()));
  void* data = nullptr;
  Check(ort->GetTensorMutableData(value.get(), &data));
  auto* numbers = static_cast<int64_t*>(data);
  std::fill_n(numbers, texts.size() * longest, 0);
  for (size_t row = 0; row < texts.size(); ++row) {
    for (size_t at = 0; at < texts[row].size(); ++at) {
      int64_t& cell = numbers[row * longest + at];
      if (name == "input_ids") {
        cell = texts[row][at];
      } else if (name == "attention_mask") {
        cell = 1;
      } else if (name != "token_type_ids") {
        throw std::runtime_error("this example does not know the input " + name);
      }
    }
  }
  return value;
}

void Print(const std::string& name, OrtValue* value) {
  Owned<OrtTensorTypeAndShapeInfo> info(ort->ReleaseTensorTypeAndShapeInfo);
  Check(ort->GetTensorTypeAndShape(value, info.out()));
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  Check(ort->GetTensorElementType(info.get(), &type));
  if (type != ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT) throw std::runtime_error(name + " is not float");
  size_t rank = 0;
  Check(ort->GetDimensionsCount(info.get(), &rank));
  std::vector<int64_t> shape(rank);
  Check(ort->GetDimensions(info.get(), shape.data(), rank));
  int64_t size = 1;
  std::printf("%s", name.c_str());
  for (int64_t extent : shape) {
    std::printf(" %lld", static_cast<long long>(extent));
    size *= extent;
  }
  void* data = nullptr;
  Check(ort->GetTensorMutableData(value, &data));
  const auto* x = static_cast<const float*>(data);
  double checksum = 0;
  for (int64_t i = 0; i < size; ++i) checksum += double{x[i]} * static_cast<double>(1 + i % 101);
  std::printf(" checksum %.9g\n", checksum);
}

void Run(OrtSession* session, const Texts& texts) {
  size_t count = 0;
  Check(ort->SessionGetInputCount(session, &count));
  const auto inputs = Names(session, count, ort->SessionGetInputName);
  Check(ort->SessionGetOutputCount(session, &count));
  const auto outputs = Names(session, count, ort->SessionGetOutputName);

  std::vector<const char*> input_names, output_names;
  std::vector<Owned<OrtValue>> feeds, results;
  std::vector<const OrtValue*> in;
  for (const auto& name : inputs) {
    input_names.push_back(name.c_str());
    feeds.push_back(MakeInput(name, texts));
    in.push_back(feeds.back().get());
  }
  for (const auto& name : outputs) output_names.push_back(name.c_str());
  std::vector<OrtValue*> out(outputs.size(), nullptr);  // null: ONNX Runtime allocates
  Check(ort->Run(session, nullptr, input_names.data(), in.data(), in.size(), output_names.data(),
                 out.size(), out.data()));
  for (OrtValue* value : out) {
    results.emplace_back(ort->ReleaseValue);
    *results.back().out() = value;
  }
  for (size_t i = 0; i < outputs.size(); ++i) Print(outputs[i], results[i].get());
}

void Main(char** argv, char** end) {
  LoadOnnxRuntime(argv[1]);
  Owned<OrtEnv> env(ort->ReleaseEnv);
  Check(ort->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "host", env.out()));
  {
    Owned<OrtSessionOptions> options(ort->ReleaseSessionOptions);
    Check(ort->CreateSessionOptions(options.out()));
    // ONNX Runtime warns of every node that runs on its own CPU provider; here that is wanted.
    Check(ort->SetSessionLogSeverityLevel(options.get(), ORT_LOGGING_LEVEL_ERROR));
    AddProvider(env.get(), options.get(), argv[2]);
    Owned<OrtSession> session(ort->ReleaseSession);
    // By its path, not from memory: the kernels and the weights lie beside it.
    Check(ort->CreateSession(env.get(), argv[3], options.get(), session.out()));
    Run(session.get(), Parse(argv + 4, end));
  }
  Check(ort->UnregisterExecutionProviderLibrary(env.get(), "pitc"));  // after its last session
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: %s LIBONNXRUNTIME PLUGIN MODEL TEXT...\n", argv[0]);
    return 2;
  }
  try {
    Main(argv, argv + argc);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
  return 0;
}

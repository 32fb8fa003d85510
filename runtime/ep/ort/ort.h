// ONNX Runtime's API as seen from here: status handling, names, attributes, options.
#pragma once

#include <atomic>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "base/failure.h"
#include "ort_abi.h"

namespace pitc {

// They stand in compiled models as `source`: never change them.
constexpr const char* kEpName = "PitExecutionProvider";
constexpr const char* kCudaEpName = "PitCudaExecutionProvider";
constexpr const char* kEpVersion = PITC_VERSION;

// No other failure has it.
constexpr OrtErrorCode kOutOfMemory = ORT_EP_FAIL;

// The ONNX Runtime that something was made for. A process may hold several, each with tables and
// objects of its own.
struct Host {
  const OrtApi* api;
  const OrtEpApi* ep_api;
  int version;  // N of ONNX Runtime 1.N, which is the newest API that its tables have
  const OrtLogger* logger = nullptr;  // for what no status can tell; null: nobody listens
};

// A line in ONNX Runtime's log.
void LogError(const Host& host, const std::string& text) noexcept;
// One that is shown once: not where `told` holds already, which is set where warnings are shown.
void WarnOnce(const Host& host, std::atomic<bool>* told, const char* text) noexcept;

// Throws Failure with the status's message, std::bad_alloc where that tells of no memory.
void Check(const Host& host, OrtStatus* status);

// Runs `body` at the C boundary: a failure becomes a status. `no_memory`: what is said then, when
// no text can be made.
template <class Body>
OrtStatus* Guard(const Host& host, OrtErrorCode code, const Body& body,
                 const char* no_memory = "pitc: out of memory") noexcept {
  try {
    body();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return host.api->CreateStatus(kOutOfMemory, no_memory);
  } catch (const OutOfDeviceMemory& e) {
    return host.api->CreateStatus(kOutOfMemory, e.what());
  } catch (const std::exception& e) {
    return host.api->CreateStatus(code, e.what());
  } catch (...) {
    return host.api->CreateStatus(ORT_FAIL, "pitc: unknown failure");
  }
}

std::vector<const OrtNode*> Nodes(const Host& host, const OrtGraph* graph);
bool IsBranch(const Host& host, const OrtGraph* graph);  // of an If, or a body of a loop
// "" for an absent one.
std::vector<std::string> InputNames(const Host& host, const OrtNode* node);
std::vector<std::string> OutputNames(const Host& host, const OrtNode* node);
// Where a file has the elements of an initializer.
struct FilePart {
  std::string path;  // relative to the model's folder
  int64_t offset = 0;
  size_t bytes = 0;
};
// False for initializers that a caller may give otherwise.
bool IsConstant(const Host& host, const OrtNode* node, size_t input);
// Where the elements of an input lie in a file, if they do.
std::optional<FilePart> FileOf(const Host& host, const OrtNode* node, size_t input);
// The value of an input that is an initializer, else null. ONNX Runtime reads it for each node that
// asks, and keeps it as long as the node's graph.
const OrtValue* InitializerOf(const Host& host, const OrtNode* node, size_t input);
std::string NodeName(const Host& host, const OrtNode* node);
// With the domain: `com.microsoft::EPContext`.
std::string OperatorType(const Host& host, const OrtNode* node);

std::optional<std::string> StringAttribute(const Host& host, const OrtNode* node, const char* key);
std::optional<int64_t> IntAttribute(const Host& host, const OrtNode* node, const char* key);

// The model's own file, or "" when it came from memory.
std::string ModelPath(const Host& host, const OrtGraph* graph);

// A session's config entry, or "".
std::string ConfigEntry(const Host& host, const OrtSessionOptions* options, const std::string& key);

}  // namespace pitc

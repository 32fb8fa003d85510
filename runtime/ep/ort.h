// ONNX Runtime's API as seen from here: status handling, names, attributes, options.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "failure.h"
#include "ort_abi.h"

namespace pitc {

constexpr const char* kEpName =
    "PitExecutionProvider";  // stands in compiled models as `source`: never change it
constexpr const char* kEpVersion = PITC_VERSION;
constexpr const char* kPlanFormat = "pitc-plan 1";

// Set once, before anything else is called.
extern const OrtApi* ort;
extern const OrtEpApi* ort_ep;

// Throws Failure with the status's message.
void Check(OrtStatus* status);

// Runs `body` at the C boundary: a failure becomes a status.
template <class Body>
OrtStatus* Guard(OrtErrorCode code, const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return ort->CreateStatus(ORT_FAIL, "pitc: out of memory");
  } catch (const std::exception& e) {
    return ort->CreateStatus(code, e.what());
  } catch (...) {
    return ort->CreateStatus(ORT_FAIL, "pitc: unknown failure");
  }
}

std::vector<const OrtNode*> Nodes(const OrtGraph* graph);
bool IsBranch(const OrtGraph* graph);                       // of an If, or a body of a loop
std::vector<std::string> InputNames(const OrtNode* node);   // "" for an absent one
std::vector<std::string> OutputNames(const OrtNode* node);  // "" for an absent one
// Where a file has the elements of an initializer.
struct FilePart {
  std::string path;  // relative to the model's folder
  int64_t offset = 0;
  size_t bytes = 0;
};
// An input that is an initializer.
struct Initializer {
  const OrtValue* value = nullptr;  // as long as the graph is there; null: it is none
  std::optional<FilePart> file;
};
Initializer InitializerOf(const OrtNode* node, size_t input);
std::string NodeName(const OrtNode* node);
std::string OperatorType(const OrtNode* node);  // with the domain: `com.microsoft::EPContext`

std::optional<std::string> StringAttribute(const OrtNode* node, const char* key);
std::optional<int64_t> IntAttribute(const OrtNode* node, const char* key);

// The model's own file, or "" when it came from memory.
std::string ModelPath(const OrtGraph* graph);

// A session's config entry, or "".
std::string ConfigEntry(const OrtSessionOptions* options, const std::string& key);

}  // namespace pitc

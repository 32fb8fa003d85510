#include "ort/ort.h"

#include <cstring>

namespace pitc {

namespace {

// Reads a function that gives a C string.
template <class Handle>
std::string Name(const Host& host, OrtStatus* (*read)(const Handle*, const char**),
                 const Handle* handle) {
  const char* text = nullptr;
  Check(host, read(handle, &text));
  return text ? text : "";
}

std::vector<const OrtValueInfo*> Inputs(const Host& host, const OrtNode* node) {
  size_t count = 0;
  Check(host, host.api->Node_GetNumInputs(node, &count));
  std::vector<const OrtValueInfo*> values(count);
  Check(host, host.api->Node_GetInputs(node, values.data(), count));
  return values;
}

std::vector<std::string> Names(const Host& host, const std::vector<const OrtValueInfo*>& values) {
  std::vector<std::string> names;
  for (const OrtValueInfo* value : values)
    names.push_back(value ? Name(host, host.api->GetValueInfoName, value) : "");
  return names;
}

// Null when the node has no such attribute.
const OrtOpAttr* Attribute(const Host& host, const OrtNode* node, const char* key) {
  const OrtOpAttr* attribute = nullptr;
  if (OrtStatus* status = host.api->Node_GetAttributeByName(node, key, &attribute)) {
    host.api->ReleaseStatus(status);
    return nullptr;
  }
  return attribute;
}

void Log(const Host& host, OrtLoggingLevel level, const char* text) noexcept {
  OrtStatus* const status = host.api->Logger_LogMessage(host.logger, level, text, "", 0, "pitc");
  if (status) host.api->ReleaseStatus(status);
}

}  // namespace

void LogError(const Host& host, const std::string& text) noexcept {
  if (host.logger) Log(host, ORT_LOGGING_LEVEL_ERROR, text.c_str());
}

void WarnOnce(const Host& host, std::atomic<bool>* told, const char* text) noexcept {
  if (!host.logger || *told) return;
  OrtLoggingLevel least = ORT_LOGGING_LEVEL_FATAL;
  if (OrtStatus* status = host.api->Logger_GetLoggingSeverityLevel(host.logger, &least)) {
    host.api->ReleaseStatus(status);
    return;
  }
  if (least > ORT_LOGGING_LEVEL_WARNING || told->exchange(true)) return;
  Log(host, ORT_LOGGING_LEVEL_WARNING, text);
}

void Check(const Host& host, OrtStatus* status) {
  if (!status) return;
  Failure failure(host.api->GetErrorMessage(status));
  host.api->ReleaseStatus(status);
  // It has no code for that: these are its arena's words, and those of the C++ library.
  const std::string_view text = failure.what();
  for (const char* words : {"Failed to allocate memory", "bad_alloc", "bad allocation"}) {
    if (text.find(words) != text.npos) throw std::bad_alloc();
  }
  throw failure;
}

std::vector<const OrtNode*> Nodes(const Host& host, const OrtGraph* graph) {
  size_t count = 0;
  Check(host, host.api->Graph_GetNumNodes(graph, &count));
  std::vector<const OrtNode*> nodes(count);
  Check(host, host.api->Graph_GetNodes(graph, nodes.data(), count));
  return nodes;
}

bool IsBranch(const Host& host, const OrtGraph* graph) {
  const OrtNode* parent = nullptr;
  Check(host, host.api->Graph_GetParentNode(graph, &parent));
  return parent != nullptr;
}

std::vector<std::string> InputNames(const Host& host, const OrtNode* node) {
  return Names(host, Inputs(host, node));
}

bool IsConstant(const Host& host, const OrtNode* node, size_t input) {
  const OrtValueInfo* const value = Inputs(host, node)[input];
  bool constant = false;
  if (value) Check(host, host.api->ValueInfo_IsConstantInitializer(value, &constant));
  return constant;
}

std::optional<FilePart> FileOf(const Host& host, const OrtNode* node, size_t input) {
  const OrtValueInfo* const value = Inputs(host, node)[input];
  OrtExternalInitializerInfo* info = nullptr;
  if (value) Check(host, host.api->ValueInfo_GetExternalInitializerInfo(value, &info));
  if (!info) return std::nullopt;
  struct Release {
    const Host& host;
    OrtExternalInitializerInfo* info;
    ~Release() { host.api->ReleaseExternalInitializerInfo(info); }
  } release{host, info};
  const ORTCHAR_T* path = host.api->ExternalInitializerInfo_GetFilePath(info);
  return FilePart{path ? path : "", host.api->ExternalInitializerInfo_GetFileOffset(info),
                  host.api->ExternalInitializerInfo_GetByteSize(info)};
}

const OrtValue* InitializerOf(const Host& host, const OrtNode* node, size_t input) {
  const OrtValueInfo* const value = Inputs(host, node)[input];
  const OrtValue* found = nullptr;
  if (value) Check(host, host.api->ValueInfo_GetInitializerValue(value, &found));
  return found;
}

std::vector<std::string> OutputNames(const Host& host, const OrtNode* node) {
  size_t count = 0;
  Check(host, host.api->Node_GetNumOutputs(node, &count));
  std::vector<const OrtValueInfo*> values(count);
  Check(host, host.api->Node_GetOutputs(node, values.data(), count));
  return Names(host, values);
}

std::string NodeName(const Host& host, const OrtNode* node) {
  return Name(host, host.api->Node_GetName, node);
}

std::string OperatorType(const Host& host, const OrtNode* node) {
  return Name(host, host.api->Node_GetDomain, node) +
         "::" + Name(host, host.api->Node_GetOperatorType, node);
}

std::optional<std::string> StringAttribute(const Host& host, const OrtNode* node, const char* key) {
  const OrtOpAttr* attribute = Attribute(host, node, key);
  if (!attribute) return std::nullopt;
  size_t size = 0;  // the first call tells the size, through an error status
  if (OrtStatus* status = host.api->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, nullptr, 0, &size)) {
    host.api->ReleaseStatus(status);
  }
  std::string text(size, '\0');
  if (size)
    Check(host, host.api->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, text.data(), size, &size));
  return text;
}

std::optional<int64_t> IntAttribute(const Host& host, const OrtNode* node, const char* key) {
  const OrtOpAttr* attribute = Attribute(host, node, key);
  if (!attribute) return std::nullopt;
  int64_t value = 0;
  size_t size = 0;
  Check(host, host.api->ReadOpAttr(attribute, ORT_OP_ATTR_INT, &value, sizeof value, &size));
  return value;
}

std::string ModelPath(const Host& host, const OrtGraph* graph) {
  return Name(host, host.api->Graph_GetModelPath, graph);
}

std::string ConfigEntry(const Host& host, const OrtSessionOptions* options,
                        const std::string& key) {
  int has = 0;
  Check(host, host.api->HasSessionConfigEntry(options, key.c_str(), &has));
  if (!has) return "";
  size_t size = 0;
  if (OrtStatus* status = host.api->GetSessionConfigEntry(options, key.c_str(), nullptr, &size)) {
    host.api->ReleaseStatus(status);
  }
  std::string value(size, '\0');
  Check(host, host.api->GetSessionConfigEntry(options, key.c_str(), value.data(), &size));
  value.resize(strlen(value.c_str()));
  return value;
}

}  // namespace pitc

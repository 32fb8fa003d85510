#include "ort.h"

#include <cstring>

namespace pitc {

const OrtApi* ort;
const OrtEpApi* ort_ep;

namespace {

// Reads a function that gives a C string.
template <class Handle>
std::string Name(OrtStatus* (*read)(const Handle*, const char**), const Handle* handle) {
  const char* text = nullptr;
  Check(read(handle, &text));
  return text ? text : "";
}

using ListValues = OrtStatus* (*)(const OrtNode*, const OrtValueInfo**, size_t);

std::vector<std::string> Names(const OrtNode* node, size_t count, ListValues list) {
  std::vector<const OrtValueInfo*> values(count);
  Check(list(node, values.data(), count));
  std::vector<std::string> names;
  for (const OrtValueInfo* value : values)
    names.push_back(value ? Name(ort->GetValueInfoName, value) : "");
  return names;
}

// Null when the node has no such attribute.
const OrtOpAttr* Attribute(const OrtNode* node, const char* key) {
  const OrtOpAttr* attribute = nullptr;
  if (OrtStatus* status = ort->Node_GetAttributeByName(node, key, &attribute)) {
    ort->ReleaseStatus(status);
    return nullptr;
  }
  return attribute;
}

}  // namespace

void Check(OrtStatus* status) {
  if (!status) return;
  Failure failure(ort->GetErrorMessage(status));
  ort->ReleaseStatus(status);
  throw failure;
}

std::vector<const OrtNode*> Nodes(const OrtGraph* graph) {
  size_t count = 0;
  Check(ort->Graph_GetNumNodes(graph, &count));
  std::vector<const OrtNode*> nodes(count);
  Check(ort->Graph_GetNodes(graph, nodes.data(), count));
  return nodes;
}

bool IsBranch(const OrtGraph* graph) {
  const OrtNode* parent = nullptr;
  Check(ort->Graph_GetParentNode(graph, &parent));
  return parent != nullptr;
}

std::vector<std::string> InputNames(const OrtNode* node) {
  size_t count = 0;
  Check(ort->Node_GetNumInputs(node, &count));
  return Names(node, count, ort->Node_GetInputs);
}

Initializer InitializerOf(const OrtNode* node, size_t input) {
  size_t count = 0;
  Check(ort->Node_GetNumInputs(node, &count));
  std::vector<const OrtValueInfo*> values(count);
  Check(ort->Node_GetInputs(node, values.data(), count));
  Initializer found;
  if (input >= count || !values[input]) return found;
  Check(ort->ValueInfo_GetInitializerValue(values[input], &found.value));
  OrtExternalInitializerInfo* info = nullptr;
  if (found.value) Check(ort->ValueInfo_GetExternalInitializerInfo(values[input], &info));
  if (!info) return found;
  struct Release {
    OrtExternalInitializerInfo* info;
    ~Release() { ort->ReleaseExternalInitializerInfo(info); }
  } release{info};
  const ORTCHAR_T* path = ort->ExternalInitializerInfo_GetFilePath(info);
  found.file = {path ? path : "", ort->ExternalInitializerInfo_GetFileOffset(info),
                ort->ExternalInitializerInfo_GetByteSize(info)};
  return found;
}

std::vector<std::string> OutputNames(const OrtNode* node) {
  size_t count = 0;
  Check(ort->Node_GetNumOutputs(node, &count));
  return Names(node, count, ort->Node_GetOutputs);
}

std::string NodeName(const OrtNode* node) { return Name(ort->Node_GetName, node); }

std::string OperatorType(const OrtNode* node) {
  return Name(ort->Node_GetDomain, node) + "::" + Name(ort->Node_GetOperatorType, node);
}

std::optional<std::string> StringAttribute(const OrtNode* node, const char* key) {
  const OrtOpAttr* attribute = Attribute(node, key);
  if (!attribute) return std::nullopt;
  size_t size = 0;  // the first call tells the size, through an error status
  if (OrtStatus* status = ort->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, nullptr, 0, &size)) {
    ort->ReleaseStatus(status);
  }
  std::string text(size, '\0');
  if (size) Check(ort->ReadOpAttr(attribute, ORT_OP_ATTR_STRING, text.data(), size, &size));
  return text;
}

std::optional<int64_t> IntAttribute(const OrtNode* node, const char* key) {
  const OrtOpAttr* attribute = Attribute(node, key);
  if (!attribute) return std::nullopt;
  int64_t value = 0;
  size_t size = 0;
  Check(ort->ReadOpAttr(attribute, ORT_OP_ATTR_INT, &value, sizeof value, &size));
  return value;
}

std::string ModelPath(const OrtGraph* graph) { return Name(ort->Graph_GetModelPath, graph); }

std::string ConfigEntry(const OrtSessionOptions* options, const std::string& key) {
  int has = 0;
  Check(ort->HasSessionConfigEntry(options, key.c_str(), &has));
  if (!has) return "";
  size_t size = 0;
  if (OrtStatus* status = ort->GetSessionConfigEntry(options, key.c_str(), nullptr, &size)) {
    ort->ReleaseStatus(status);
  }
  std::string value(size, '\0');
  Check(ort->GetSessionConfigEntry(options, key.c_str(), value.data(), &size));
  value.resize(strlen(value.c_str()));
  return value;
}

}  // namespace pitc

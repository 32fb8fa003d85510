#include "node.h"

namespace pitc {

std::string NodeLabel(const std::string& name, const std::string& op) {
  return "pitc: node " + Quoted(name) + " (" + op + "): ";
}

Node::Node(std::string label, std::unique_ptr<Operation> operation, RunContext::Places places,
           uint32_t version)
    : OrtNodeComputeInfo{},
      label_(std::move(label)),
      operation_(std::move(operation)),
      places_(std::move(places)) {
  ort_version_supported = version;
  CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*, void** state) -> OrtStatus* {
    *state = self;
    return nullptr;
  };
  ReleaseState = [](OrtNodeComputeInfo*, void*) {};
  Compute = [](OrtNodeComputeInfo* self, void*, OrtKernelContext* context) -> OrtStatus* {
    const Node* node = static_cast<const Node*>(self);
    return Guard(ORT_INVALID_ARGUMENT, [&] {
      try {
        node->operation_->Run(RunContext(context, node->places_));
      } catch (const Failure& failure) {
        Fail(node->label_, failure.what());
      }
    });
  };
}

}  // namespace pitc

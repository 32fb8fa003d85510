#include "provider/node.h"

namespace pitc {

Node::Node(const Host& host, std::string label, std::unique_ptr<Operation> operation,
           RunContext::Places places, SessionMode mode, uint32_t version)
    : OrtNodeComputeInfo{},
      host_(host),
      label_(std::move(label)),
      no_memory_(label_ + "out of memory"),
      operation_(std::move(operation)),
      places_(std::move(places)),
      mode_(std::move(mode)) {
  ort_version_supported = version;
  CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*, void** state) -> OrtStatus* {
    *state = self;
    return nullptr;
  };
  ReleaseState = [](OrtNodeComputeInfo*, void*) {};
  Compute = [](OrtNodeComputeInfo* self, void*, OrtKernelContext* context) -> OrtStatus* {
    const Node* node = static_cast<const Node*>(self);
    const auto compute = [&] {
      try {
        const RunContext run(node->host_, context, node->places_, node->mode_);
        const RunContext::OnThread here(run);
        if (!node->mode_.tasks) return node->operation_->Run(run);
        const auto start = std::chrono::steady_clock::now();
        node->operation_->Run(run);
        const std::chrono::duration<double, std::micro> took =
            std::chrono::steady_clock::now() - start;
        node->mode_.tasks->Write(node->label_, run.loops(), took.count());
      } catch (const Failure& failure) {
        Fail(node->label_, failure.what());
      }
    };
    return Guard(node->host_, ORT_INVALID_ARGUMENT, compute, node->no_memory_.c_str());
  };
}

}  // namespace pitc

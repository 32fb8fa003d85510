// A PIT node of a graph, read: its plan, where its tensors are among those that ONNX Runtime
// passes, and the kernels beside the model.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel_library.h"
#include "ort/ort.h"
#include "plan/plan.h"

namespace pitc {

// The plans of a session, each read once: layers of one shape have the same text.
class Plans {
 public:
  explicit Plans(Machine machine) : machine_(machine) {}
  // Throws Failure.
  const Plan& Of(const std::string& text);

 private:
  const Machine machine_;
  std::map<std::string, Plan> read_;
};

struct PlannedNode {
  const OrtNode* node = nullptr;
  std::string name;
  std::string label;  // how messages about it begin
  const Plan* plan = nullptr;
  // Places of its inputs and outputs among those of the fused node; -1: absent.
  std::vector<int> inputs, outputs;
};

// Whether a node is for the provider `source`.
bool IsFor(const Host& host, const OrtNode* node, const char* source);

// How messages about a node begin.
std::string NodeLabel(const std::string& name, const std::string& op);

// The one node of a graph that was claimed, without its plan.
PlannedNode ClaimedNode(const Host& host, const OrtGraph* graph, const char* source);
// The rest of it. Throws Failure.
void ReadPlan(const Host& host, Plans& plans, const OrtNode* fused, PlannedNode* planned);

// Throws Failure unless the node has so many.
void ExpectCounts(const PlannedNode& planned, int inputs, int outputs);

// What `make` makes of the node; failures name the node.
template <class Make>
auto MakeFor(const Host& host, Plans& plans, const OrtGraph* graph, const OrtNode* fused,
             const char* source, const Make& make) {
  PlannedNode planned = ClaimedNode(host, graph, source);
  try {
    ReadPlan(host, plans, fused, &planned);
    return make(planned);
  } catch (const Failure& failure) {
    Fail(planned.label, failure.what());
  }
}

// `context_path`: the session option ep.context_file_path. "" when the folder is not known.
std::string ModelFolder(const Host& host, const OrtGraph* graph, const std::string& context_path);

// The plan's library, which must be the one that the plan was made with. Throws Failure.
std::shared_ptr<const KernelLibrary> OpenKernels(const Plan& plan, const std::string& folder);

}  // namespace pitc

#include "provider/planned_node.h"

#include <algorithm>

namespace pitc {
namespace {

constexpr size_t kLongestIdentity = 400;  // of it that is told

// The place of each name in `among`: -1 for "" and for names that are not there.
std::vector<int> PlacesOf(const std::vector<std::string>& names,
                          const std::vector<std::string>& among) {
  std::vector<int> places;
  for (const std::string& name : names) {
    auto at = std::find(among.begin(), among.end(), name);
    places.push_back(name.empty() || at == among.end() ? -1 : static_cast<int>(at - among.begin()));
  }
  return places;
}

}  // namespace

const Plan& Plans::Of(const std::string& text) {
  const auto at = read_.find(text);
  return at != read_.end() ? at->second
                           : read_.emplace(text, ParsePlan(text, machine_)).first->second;
}

bool IsFor(const Host& host, const OrtNode* node, const char* source) {
  return OperatorType(host, node) == "com.microsoft::EPContext" &&
         StringAttribute(host, node, "source") == source;
}

std::string NodeLabel(const std::string& name, const std::string& op) {
  return "pitc: node " + Quoted(name) + " (" + op + "): ";
}

PlannedNode ClaimedNode(const Host& host, const OrtGraph* graph, const char* source) {
  const std::vector<const OrtNode*> inner = Nodes(host, graph);
  if (inner.size() != 1 || !IsFor(host, inner[0], source))
    Fail("pitc: expected one EPContext node, got another graph");
  PlannedNode planned;
  planned.node = inner[0];
  planned.name = NodeName(host, inner[0]);
  if (planned.name.empty())
    planned.name = StringAttribute(host, inner[0], "partition_name").value_or("");
  planned.label = NodeLabel(planned.name, "EPContext");
  return planned;
}

void ReadPlan(const Host& host, Plans& plans, const OrtNode* fused, PlannedNode* planned) {
  const OrtNode* const node = planned->node;
  if (IntAttribute(host, node, "embed_mode").value_or(1) != 1)
    Fail("expected embed_mode 1, got another");
  if (IntAttribute(host, node, "main_context").value_or(1) != 1)
    Fail("expected main_context 1, got another");
  const std::optional<std::string> text = StringAttribute(host, node, "ep_cache_context");
  if (!text) Fail("expected a plan in ep_cache_context, got none");
  planned->plan = &plans.Of(*text);
  planned->label = NodeLabel(planned->name, planned->plan->op);
  planned->inputs = PlacesOf(InputNames(host, node), InputNames(host, fused));
  planned->outputs = PlacesOf(OutputNames(host, node), OutputNames(host, fused));
}

void ExpectCounts(const PlannedNode& planned, int inputs, int outputs) {
  const auto got_inputs = static_cast<int>(planned.inputs.size()),
             got_outputs = static_cast<int>(planned.outputs.size());
  if (got_inputs != inputs || got_outputs != outputs) {
    Fail("expected ", inputs, " inputs and ", outputs, " outputs, got ", got_inputs, " and ",
         got_outputs);
  }
}

std::string ModelFolder(const Host& host, const OrtGraph* graph, const std::string& context_path) {
  std::string model = ModelPath(host, graph);
  if (model.empty()) model = context_path;
  const size_t slash = model.rfind('/');
  return model.empty()                ? ""
         : slash == std::string::npos ? "."
         : slash == 0                 ? "/"
                                      : model.substr(0, slash);
}

std::shared_ptr<const KernelLibrary> OpenKernels(const Plan& plan, const std::string& folder) {
  if (folder.empty()) {
    Fail("expected the model's folder, where '", plan.library,
         "' lies, got a model from memory; set the session option ep.context_file_path to a file "
         "in that folder");
  }
  std::shared_ptr<const KernelLibrary> library = KernelLibrary::Open(folder, plan.library);
  if (const std::string& found = library->Identity(); found != plan.identity) {
    // Symbols of another build may be the same, and mean other arguments.
    Fail("expected kernels ", Quoted(plan.identity, kLongestIdentity), " in '", plan.library,
         "', got ", found.empty() ? "some without a name" : Quoted(found, kLongestIdentity),
         "; run: pitc compile MODEL.onnx -o ", Quoted(folder, kLongestIdentity), " --force");
  }
  return library;
}

}  // namespace pitc

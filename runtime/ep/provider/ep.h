// The execution provider of one session: claims PIT nodes and makes them ready to run.
#pragma once

#include <memory>
#include <string>

#include "base/cpu_level.h"
#include "provider/node.h"
#include "provider/planned_node.h"

namespace pitc {

class Ep : public OrtEp {
 public:
  Ep(const Host& host, const OrtSessionOptions* options, uint32_t version);

 private:
  static OrtStatus* ClaimNodes(OrtEp* self, const OrtGraph* graph, OrtEpGraphSupportInfo* info);
  static OrtStatus* CompileNodes(OrtEp* self, const OrtGraph** graphs, const OrtNode** fused,
                                 size_t count, OrtNodeComputeInfo** infos, OrtNode** context_nodes);

  std::unique_ptr<Node> MakeNode(const OrtGraph* graph, const OrtNode* fused);
  std::unique_ptr<Operation> MakeOperation(const Plan& plan, const std::string& name,
                                           const OrtGraph* graph) const;
  // The constants among a node's inputs that ONNX Runtime does not pass when it runs.
  std::vector<std::shared_ptr<const Constant>> KeepConstants(const OrtGraph* graph,
                                                             const OrtNode* node,
                                                             const std::vector<int>& places);
  // The kernel `symbol` of the plan's library, for the best level that the CPU has.
  Kernel LoadKernel(const Plan& plan, const std::string& symbol, const OrtGraph* graph) const;

  // True for a node that reads rows of its weights here and there.
  bool SkipsRows(const OrtNode* node);

  const Host host_;
  Plans plans_{Machine::kCpu};
  const std::optional<CpuLevel> forced_;  // by the user
  const CpuLevel level_;
  const Primitives& simd_;
  SessionMode mode_;
  bool keeps_constants_;  // session option huge_pages
  Constants constants_;
  std::shared_ptr<Trace> trace_;    // null: decisions are not told
  std::optional<Variant> variant_;  // for every contraction that offers it
  std::string context_path_;        // session option ep.context_file_path
  bool writes_context_;             // session option ep.context_enable
};

}  // namespace pitc

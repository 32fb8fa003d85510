// One PIT node of a session: what ONNX Runtime calls for it.
#pragma once

#include <memory>
#include <string>

#include "ops/operation.h"

namespace pitc {

class Node : public OrtNodeComputeInfo {
 public:
  Node(const Host& host, std::string label, std::unique_ptr<Operation> operation,
       RunContext::Places places, SessionMode mode, uint32_t version);

 private:
  const Host host_;
  const std::string label_;      // `pitc: node 'NAME' (OP): `
  const std::string no_memory_;  // what is said where there is none
  const std::unique_ptr<Operation> operation_;
  const RunContext::Places places_;
  const SessionMode mode_;
};

}  // namespace pitc

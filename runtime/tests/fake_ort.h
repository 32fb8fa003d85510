// As much of ONNX Runtime as the execution provider calls, so that the provider itself runs where
// every instruction is watched by a sanitizer. One model of one PIT node.
#pragma once

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include "ort_abi.h"

struct OrtValue {
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  std::vector<int64_t> dims;
  std::vector<char> bytes;

  template <class T>
  static OrtValue Of(ONNXTensorElementDataType type, std::vector<int64_t> dims,
                     const std::vector<T>& elements) {
    OrtValue value{type, std::move(dims), std::vector<char>(elements.size() * sizeof(T))};
    if (!elements.empty()) memcpy(value.bytes.data(), elements.data(), value.bytes.size());
    return value;
  }
  size_t Bytes() const;  // that its type and shape need
  bool operator==(const OrtValue& other) const {
    return type == other.type && dims == other.dims && bytes == other.bytes;
  }
};

struct OrtValueInfo {
  std::string name;
  const OrtValue* initializer = nullptr;
  bool constant = false;  // nobody may give another
  std::string path;       // of the file that has it
};

struct OrtOpAttr {
  std::variant<int64_t, std::string> value;
};

struct OrtNode {
  std::string name, op, domain;
  std::vector<OrtValueInfo> inputs, outputs;
  std::map<std::string, OrtOpAttr> attributes;
};

struct OrtGraph {
  std::string path;
  OrtNode node;
  const OrtNode* parent = nullptr;
};

struct OrtSessionOptions {
  std::map<std::string, std::string> entries;
};

namespace pitc::test {

// What is not released yet: statuses, type infos, devices.
extern std::atomic<int64_t> alive;

// The call with this number fails, counted from 1 since this was set; 0: none does.
extern std::atomic<int64_t> failing_call;

// Which ONNX Runtime it says to be; the functions are those of the newest. Set it before a library
// is loaded.
extern const char* version;

// Called with a run's inputs before an output of it is made: what a host may do to memory of its
// own at any time.
extern std::function<void(std::vector<OrtValue>&)> meanwhile;

// Who runs the tasks of a loop, all of them before it returns; null: threads of that loop only.
extern std::function<void(void (*task)(void*, size_t), size_t total, void* data)> share;

// Scratch memory: bytes that are lent now, the most that were since it was set, and how many pieces
// are still to be had (below 0: any number).
extern std::atomic<int64_t> lent, most_lent, lendable;

// A status of the provider's.
struct Error : std::runtime_error {
  Error(const std::string& text, OrtErrorCode code_) : std::runtime_error(text), code(code_) {}
  OrtErrorCode code;
};

// The provider's library, loaded and with its factory made. Errors are std::runtime_error.
class Library {
 public:
  // `other`: for a second ONNX Runtime, all of whose functions fail.
  explicit Library(const std::string& path, bool other = false);
  ~Library();
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  OrtEpFactory* Factory() const { return factory_; }

 private:
  void* handle_;
  OrtEpFactory* factory_ = nullptr;
};

using Options = std::map<std::string, std::string>;

// Where it begins in that file.
constexpr int64_t kExternalOffset = 4096;

// Inputs that are initializers, by their number.
using Initializers = std::map<int, OrtValue>;

// How many calls of its functions something makes.
int64_t Calls(const std::function<void()>& body);

// A session of one node.
class Session {
 public:
  // `model`: path of the model's file, beside which the kernels lie. `options`: the provider's.
  // `external`: the file beside it that has the initializers. `overridable`: a run may give others.
  Session(const Library& library, const std::string& plan, const std::string& model,
          int input_count, int output_count, const Options& options = {},
          Initializers initializers = {}, const std::string& external = "",
          bool overridable = false);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The provider keeps initializers: they are not among the inputs.
  bool DropsInitializers() const { return fused_.inputs.size() < graph_.node.inputs.size(); }

  // The outputs, made by the provider in memory of exactly their size. Many threads may call it.
  // `inputs`: all, or all but initializers that the provider keeps.
  std::vector<OrtValue> Run(const std::vector<OrtValue>& inputs) const;

 private:
  void Release();

  Initializers initializers_;
  OrtGraph graph_;
  OrtNode fused_;
  OrtEpFactory* factory_;
  OrtEp* ep_ = nullptr;
  OrtNodeComputeInfo* node_ = nullptr;
  void* state_ = nullptr;
  size_t output_count_;
  bool chooses_;  // its output is a bool
};

}  // namespace pitc::test

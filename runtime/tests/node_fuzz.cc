// Any plan on any inputs, in the provider itself: results, or one printable line that names the
// node. The bytes after a plan's zero choose the inputs: such as fit it, with some spoiled.
#include <dlfcn.h>

#include <climits>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string_view>

#include "base/failure.h"
#include "node_inputs.h"

namespace {

using pitc::test::kBoolType;
using pitc::test::kFloatType;
using pitc::test::kInt32Type;
using pitc::test::Random;

constexpr const char* kModel = PITC_TEST_KERNELS;  // "beside it" is where the kernels lie
constexpr int64_t kMostExtent = 6;

void Demand(bool good, const std::string& what) {
  if (good) return;
  fprintf(stderr, "%s\n", what.c_str());
  abort();
}

size_t Pick(Random& random, size_t count) {
  return static_cast<size_t>(random.Below(static_cast<int64_t>(count)));
}

void SetInt32(Random& random, OrtValue* value) {
  static constexpr int32_t kEdges[] = {-1, 0, 1, 2, 3, 7, INT_MAX, INT_MIN, INT_MAX / 2};
  const size_t at = Pick(random, value->bytes.size() / sizeof(int32_t)) * sizeof(int32_t);
  memcpy(&value->bytes[at], &kEdges[Pick(random, std::size(kEdges))], sizeof(int32_t));
}

void SetShape(Random& random, std::vector<int64_t>* dims) {
  switch (random.Below(5)) {
    case 0:
      dims->insert(dims->begin() + random.Below(static_cast<int64_t>(dims->size()) + 1), 1);
      break;
    case 1:
      if (!dims->empty()) std::swap((*dims)[Pick(random, dims->size())], dims->back());
      break;
    case 2:
      if (dims->size() > 1) {
        (*dims)[0] *= (*dims)[1];
        dims->erase(dims->begin() + 1);
      }
      break;
    case 3:
      if (!dims->empty()) (*dims)[Pick(random, dims->size())] = random.Below(9);
      break;
    default:
      dims->assign(static_cast<size_t>(random.Below(20)), 1);
  }
}

void Spoil(Random& random, std::vector<OrtValue>* inputs) {
  static constexpr ONNXTensorElementDataType kTypes[] = {kFloatType,
                                                         kInt32Type,
                                                         kBoolType,
                                                         ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
                                                         ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
                                                         ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING};
  OrtValue& value = (*inputs)[Pick(random, inputs->size())];
  switch (random.Below(4)) {
    case 0:
      if (value.bytes.size() >= sizeof(int32_t)) SetInt32(random, &value);
      break;
    case 1:
      SetShape(random, &value.dims);
      break;
    case 2:
      std::swap(value, (*inputs)[Pick(random, inputs->size())]);
      break;
    default:
      value.type = kTypes[Pick(random, std::size(kTypes))];
  }
  value.bytes.resize(value.Bytes());
}

void DemandMessage(const std::string& message) {
  Demand(message.compare(0, 12, "pitc: node '") == 0 && message.size() < 700, message);
  for (char c : message) Demand(c >= ' ' && c <= '~', message);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The kernels stay loaded: libFuzzer counts in their memory.
  static void* const kernels = dlopen(kModel, RTLD_NOW | RTLD_LOCAL);
  Demand(kernels != nullptr, "no kernels");
  static const auto& library = *new pitc::test::Library(PITC_TEST_LIBRARY);
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), size);
  const std::string text(input.substr(0, end));
  uint64_t choice = 0;
  for (char c : input.substr(end)) choice = choice * 257 + static_cast<uint8_t>(c);
  Random random(choice);
  pitc::Plan plan;
  try {
    plan = pitc::ParsePlan(text);
  } catch (const pitc::Failure&) {  // the session will say so
  }
  try {
    pitc::test::Options options;
    if (random.Below(2)) {
      const auto variant = static_cast<pitc::Variant>(random.Below(pitc::kVariants));
      options["variant"] = pitc::Name(variant);
    }
    const pitc::test::Session session(library, text, kModel, pitc::test::InputCount(plan),
                                      pitc::test::OutputCount(plan), options);
    std::vector<OrtValue> inputs = pitc::test::MakeInputs(plan, random, kMostExtent);
    for (int64_t spoiled = random.Below(3); spoiled > 0; --spoiled) Spoil(random, &inputs);
    session.Run(inputs);
  } catch (const std::runtime_error& error) {
    DemandMessage(error.what());
  }
  Demand(pitc::test::alive == 0, "something was not released");
  return 0;
}

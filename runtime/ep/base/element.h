// The types of numbers that kernels compute with.
#pragma once

#include <cstdint>

namespace pitc {

enum class Element : int { kFloat32, kFloat16, kBFloat16 };

// Of a type: its name and its size.
struct ElementRecord {
  const char* name;
  int bytes;
};
constexpr ElementRecord kElements[] = {{"float32", 4}, {"float16", 2}, {"bfloat16", 2}};
constexpr const ElementRecord& RecordOf(Element type) { return kElements[static_cast<int>(type)]; }

}  // namespace pitc

// What the tests of contraction nodes have in common: comparing, and reading traces.
#pragma once

#include <unistd.h>

#include <cmath>

#include "node_inputs.h"

// References, on one thread: under ThreadSanitizer each of their reads would be a call.
#if defined(__SANITIZE_THREAD__)
#define UNWATCHED __attribute__((no_sanitize("thread")))
#else
#define UNWATCHED
#endif

namespace pitc::test {

// Levels that this CPU has; `c` is any plan with a kernel.
inline std::vector<std::string> Levels(const Library& library, const PlanCase& c) {
  std::vector<std::string> levels;
  for (const char* level : {"neon", "v3", "v4"}) {
    if (Thrown([&] { c.Make(library, {{"cpu_level", level}}); }).empty())
      levels.emplace_back(level);
  }
  return levels;
}

template <class T>
const T* Data(const OrtValue& value) {
  return reinterpret_cast<const T*>(value.bytes.data());
}

inline double Activate(const std::string& kernel, double x) {
  return Contains(kernel, "relu") && x < 0 ? 0 : x;
}

// Equal but for the rounding of results, and of a sum in front of bias and residual.
UNWATCHED inline bool Same(const OrtValue& got, const std::vector<double>& expected) {
  if (got.bytes.size() != expected.size() * sizeof(float)) return false;
  const float* const found = Data<float>(got);
  const double* const sums = expected.data();
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto x = static_cast<double>(found[i]), y = sums[i];
    if (std::isnan(x) != std::isnan(y)) return false;
    if (x != y && !(std::abs(x - y) <= 1e-6 * std::max(1.0, std::abs(y))) && !std::isnan(x))
      return false;
  }
  return true;
}

// A file that holds what sessions have told.
class TraceFile {
 public:
  TraceFile()
      : path_(std::filesystem::temp_directory_path() / ("pitc_trace." + std::to_string(getpid()))) {
  }
  ~TraceFile() { std::filesystem::remove(path_); }
  std::string Path() const { return path_; }
  // The lines, which are then forgotten.
  std::vector<std::string> Take() const {
    std::vector<std::string> lines;
    std::ifstream stream(path_);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    std::filesystem::resize_file(path_, 0);
    return lines;
  }

 private:
  std::filesystem::path path_;
};

inline std::string Chosen(const std::string& line) {
  const std::string key = "\"chosen\": \"";
  const size_t at = line.find(key) + key.size();
  return line.substr(at, line.find('"', at) - at);
}

}  // namespace pitc::test

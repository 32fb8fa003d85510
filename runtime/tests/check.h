// The smallest test framework: CHECK counts failures, RunTests names them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>

namespace pitc::test {

inline int failures = 0;

#define CHECK(condition)                                                   \
  do {                                                                     \
    if (!(condition)) {                                                    \
      ++pitc::test::failures;                                              \
      printf("%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
    }                                                                      \
  } while (0)

// The message of the exception that `body` throws, or "" when it throws none.
template <class Body>
std::string Thrown(const Body& body) {
  try {
    body();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

inline bool Contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

struct Test {
  const char* name;
  void (*run)();
};

// Runs all; returns the process's exit code.
template <size_t kCount>
int RunTests(const Test (&tests)[kCount]) {
  for (const Test& test : tests) {
    const int before = failures;
    try {
      test.run();
    } catch (const std::exception& e) {
      ++failures;
      printf("uncaught: %s\n", e.what());
    }
    printf("%-6s %s\n", failures == before ? "ok" : "FAILED", test.name);
  }
  return failures ? 1 : 0;
}

// A small deterministic generator (xorshift).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2654435761u + 1) {}
  uint64_t Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  int64_t Below(int64_t limit) { return static_cast<int64_t>(Next() >> 1) % limit; }

 private:
  uint64_t state_;
};

}  // namespace pitc::test

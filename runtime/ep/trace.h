// What selectors decided, one line of JSON per decision, in a file that a user names.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "selector.h"

namespace pitc {

class Trace {
 public:
  // The trace with that file name, shared by all sessions that name it; null for "". Lines are
  // appended. Throws Failure when the file cannot be written.
  static std::shared_ptr<Trace> Open(const std::string& path);

  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  ~Trace();

  void Write(const std::string& node, const Work& work, const Choice& choice, double measured_us);

 private:
  explicit Trace(int file) : file_(file) {}

  const int file_;
};

}  // namespace pitc

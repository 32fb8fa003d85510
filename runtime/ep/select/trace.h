// What selectors decided, one line of JSON per decision, in a file that a user names.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "select/selector.h"

namespace pitc {

// What lives of a convolution, and of all that have chosen together with it.
struct LiveChannels {
  std::string node;
  int64_t channels, live_channels;
  int64_t filters, live_filters;
};
struct ChannelChoice {
  std::vector<LiveChannels> convolutions;
  int64_t work, live_work, budget;
  bool dense;
};

// What attention read of all pairs of a query and a key, by its lists; the same for each head.
struct LivePairs {
  int64_t pairs = 0, live_pairs = 0;
  int64_t tiles = 0, keys = 0, listed_keys = 0;  // of the keys of all tiles those that are read
};

// Which matrices a grouped product read.
struct GroupRows {
  int64_t groups = 0, hit_groups = 0;  // all, and those that have rows
  int64_t rows = 0, most_rows = 0;     // of all, and of the one that has most
  int64_t matrix_bytes = 0;            // of one
};

// What a device chose; all that it has counted and predicted, if it has looked.
struct DeviceChoice {
  int64_t rows, k, n;
  std::vector<std::pair<const char*, int64_t>> counts;
  std::vector<std::pair<std::string, double>> predicted_us;
  std::string chosen;
};

// What a run on a device moved between it and the host. A download waits for the device.
struct Transfers {
  int64_t uploads = 0, uploaded_bytes = 0;
  int64_t downloads = 0, downloaded_bytes = 0;
};

class Trace {
 public:
  // The trace with that file name, shared by all sessions that name it; null for "". Lines are
  // appended. Throws Failure when the file cannot be written.
  static std::shared_ptr<Trace> Open(const std::string& path);

  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  ~Trace();

  // `cpu_us`: CPU time of the one thread that did it; below 0: several did.
  void Write(const std::string& node, const Work& work, const Choice& choice, double measured_us,
             double cpu_us = -1);
  void Write(const ChannelChoice& choice);  // a line for each convolution
  void Write(const std::string& node, const LivePairs& pairs);
  void Write(const std::string& node, const GroupRows& groups);
  // What a run took, and of it each loop that many threads may share, with its tasks.
  struct Loop {
    std::vector<double> tasks_us;
    double loop_us;
  };
  void Write(const std::string& node, const std::vector<Loop>& loops, double run_us);
  void Write(const std::string& node, const Transfers& transfers);
  void Write(const std::string& node, const DeviceChoice& choice);

 private:
  explicit Trace(int file) : file_(file) {}
  void Append(const std::string& lines);

  const int file_;
};

}  // namespace pitc

// What the fake driver knows: its knobs, contexts and memory, and the work that waits in streams.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "../../runtime/ep/device/cuda_abi.h"
#include "device_memory.h"

namespace fake_cuda {

using namespace pitc::cuda;

constexpr Result kInvalidValue = 1, kNotInitialized = 3, kInvalidContext = 201, kNewerPtx = 222,
                 kInvalidHandle = 400, kNotFound = 500;
constexpr int kCacheBytes = 38;
constexpr int64_t kForever = INT64_MAX;
constexpr int kUsualShared = 48 << 10, kMostShared = 227 << 10;

inline std::recursive_mutex mutex;

inline int64_t& Knob(const std::string& name) {
  static std::map<std::string, int64_t> knobs = [] {
    std::map<std::string, int64_t> all = {
        {"devices", 1},       {"version", 13000},    {"arch", 90}, {"pools", 1},
        {"memory", kForever}, {"failing_launch", 0}, {"l2", 0},    {"refusal", 0}};
    for (auto& [key, value] : all) {
      std::string variable = "FAKE_CUDA_" + key;
      for (char& c : variable) c = static_cast<char>(toupper(c));
      if (const char* text = getenv(variable.c_str())) value = atoll(text);
    }
    return all;
  }();
  return knobs[name];
}

// Like all that follows never destroyed: a process may end with work under way.
inline auto& counts = *new std::map<std::string, int64_t>;
inline auto& launched = *new std::string;  // the last kernel

// ---- what the handles are

struct Work {
  int64_t ticket;
  std::function<void()> run;
};

}  // namespace fake_cuda

namespace pitc::cuda {
struct ContextObject {
  int device;
  bool retained;
  Result lost;  // what every call says since
};
struct StreamObject {
  Context context;
  bool waits_for_null;
  std::deque<fake_cuda::Work> queue;
};
struct EventObject {
  Stream stream;
  int64_t ticket;
};
struct ModuleObject {
  Context context;
  void* library;
};
struct FunctionObject {
  Module module;
  void (*plain)(void**, const unsigned*);
  int parameters;
  void (*emulated)(void**);
  int shared, carveout;  // percent; below 0: the driver chooses
  std::string name;
};
struct PoolObject {};
struct GraphObject {};
using Graph = GraphObject*;
}  // namespace pitc::cuda

namespace fake_cuda {

inline bool initialized = false;
inline auto& contexts = *new std::map<int, ContextObject>;
inline thread_local Context current = nullptr;
inline auto& streams = *new std::set<Stream>;  // of all contexts
inline auto& null_streams = *new std::map<Context, StreamObject>;
inline auto& functions = *new std::map<std::pair<Module, std::string>, FunctionObject>;
auto &pinned = *new std::map<void*, size_t>, &pieces = *new std::map<void*, size_t>;
inline int64_t next_ticket = 1, in_use = 0;

inline Stream Of(Stream stream) {
  if (stream) return stream;
  return &null_streams.try_emplace(current, StreamObject{current, false, {}}).first->second;
}

// Does what a stream was told before `ticket`. The null stream and those that
// are not apart from it take turns in the order of the calls.
inline void Drain(Stream stream, int64_t ticket) {
  const bool is_null = &null_streams.at(stream->context) == stream;
  while (!stream->queue.empty() && stream->queue.front().ticket < ticket) {
    const Work work = std::move(stream->queue.front());
    stream->queue.pop_front();
    if (is_null) {
      for (Stream other : std::vector<Stream>(streams.begin(), streams.end()))
        if (other->waits_for_null && other->context == stream->context) Drain(other, work.ticket);
    } else if (stream->waits_for_null) {
      Drain(&null_streams.at(stream->context), work.ticket);
    }
    if (!stream->context->lost) work.run();
  }
}

inline void DrainAll() {
  if (!current) return;
  Drain(Of(nullptr), kForever);
  for (Stream stream : std::vector<Stream>(streams.begin(), streams.end()))
    if (stream->context == current) Drain(stream, kForever);
}

inline void Later(Stream stream, std::function<void()> run) {
  Of(nullptr);  // exists
  Of(stream)->queue.push_back({next_ticket++, std::move(run)});
}

struct Opened {
  Opened() { fake_cuda::Open(true); }
  ~Opened() { fake_cuda::Open(false); }
};

inline void* Pointer(Address address) { return reinterpret_cast<void*>(address); }

inline bool IsDevice(Address address, size_t bytes) {
  return fake_cuda::IsInside(Pointer(address), bytes);
}

inline bool IsPinned(const void* memory) {
  auto at = pinned.upper_bound(const_cast<void*>(memory));
  if (at == pinned.begin()) return false;
  --at;
  return static_cast<const char*>(memory) < static_cast<char*>(at->first) + at->second;
}

// Runs a call that needs a context.
template <class Body>
Result In(const Body& body) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  if (!initialized) return kNotInitialized;
  if (!current) return kInvalidContext;
  if (current->lost) return current->lost;
  const Result result = body();
  return current->lost ? current->lost : result;
}

inline Result Allocate(Address* out, size_t bytes) {
  if (bytes == 0) return kInvalidValue;
  ++counts["allocations"];
  if (in_use + static_cast<int64_t>(bytes) > Knob("memory")) return kOutOfMemory;
  void* memory = fake_cuda::Allocate(bytes);
  if (!memory) return kOutOfMemory;
  pieces[memory] = bytes;
  in_use += static_cast<int64_t>(bytes);
  counts["bytes"] = in_use;
  *out = reinterpret_cast<Address>(memory);
  return kSuccess;
}

inline void Release(void* memory) {
  const auto at = pieces.find(memory);
  if (at == pieces.end() || !fake_cuda::Free(memory)) abort();  // freed twice
  in_use -= static_cast<int64_t>(at->second);
  counts["bytes"] = in_use;
  pieces.erase(at);
}

}  // namespace fake_cuda

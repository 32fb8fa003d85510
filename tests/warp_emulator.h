// Runs the text of CUDA kernels on a CPU. A warp is 32 fibers: each runs to its
// next collective, and when all have come to the same one, it happens. A kernel
// in which a lane ends early or takes another way is refused, as is a mask that
// leaves lanes out.
//
// The host code that launches the kernels is the real one: it finds them
// through the functions below, by name, with the grid behind a kernel's
// arguments.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

using std::max;
using std::min;

#define __global__
#define __launch_bounds__(threads)

struct Dim {
  unsigned x, y;
};

// A word that TVM's calling convention passes.
struct Argument {
  int32_t type, padding;
  union {
    int64_t integer;
    void *pointer;
  };
};

extern "C" void TVMFFIErrorSetRaisedFromCStrParts(const char *kind,
                                                  const char **parts,
                                                  int32_t n);

namespace emulator {

constexpr int kLanes = 32, kStackBytes = 1 << 16;
constexpr unsigned kAll = 0xffffffff;

enum Collective { kNone, kEnd, kBallot, kAdd, kShiftUp };

struct Lane {
  ucontext_t context;
  Collective at;
  unsigned mask;
  int value, distance, result;
  char stack[kStackBytes];
};

struct Kernel {
  const char *name;
  void (*call)(const Argument *arguments);
  int arguments;
};

extern const Kernel kKernels[];
extern const int kKernelCount;

inline Lane lanes[kLanes];
inline ucontext_t scheduler;
inline Lane *current;
inline const Kernel *kernel;
inline const Argument *arguments;

inline int Meet(Collective at, unsigned mask, int value, int distance) {
  Lane &lane = *current;
  lane.at = at;
  lane.mask = mask;
  lane.value = value;
  lane.distance = distance;
  swapcontext(&lane.context, &scheduler);
  return lane.result;
}

inline void RunLane() {
  kernel->call(arguments);
  current->at = kEnd;
}

inline void Happen(Collective at) {
  unsigned all = 0;
  int sum = 0;
  for (int i = 0; i < kLanes; ++i) {
    all |= (lanes[i].value != 0 ? 1u : 0u) << i;
    sum += lanes[i].value;
  }
  for (int i = 0; i < kLanes; ++i) {
    Lane &lane = lanes[i];
    const int from = i - lane.distance;
    lane.result = at == kBallot ? static_cast<int>(all)
                  : at == kAdd  ? sum
                                : lanes[from < 0 ? i : from].value;
  }
}

} // namespace emulator

inline Dim threadIdx, blockIdx;

inline unsigned __ballot_sync(unsigned mask, int condition) {
  return static_cast<unsigned>(
      emulator::Meet(emulator::kBallot, mask, condition, 0));
}
inline int __reduce_add_sync(unsigned mask, int value) {
  return emulator::Meet(emulator::kAdd, mask, value, 0);
}
inline int __shfl_up_sync(unsigned mask, int value, int distance) {
  return emulator::Meet(emulator::kShiftUp, mask, value, distance);
}
inline int __popc(unsigned word) { return __builtin_popcount(word); }

namespace emulator {

inline bool RunWarp(bool reversed) {
  for (Lane &lane : lanes) {
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack;
    lane.context.uc_stack.ss_size = kStackBytes;
    lane.context.uc_link = &scheduler;
    makecontext(&lane.context, RunLane, 0);
    lane.at = kNone;
  }
  for (;;) {
    for (int i = 0; i < kLanes; ++i) {
      const int number = reversed ? kLanes - 1 - i : i;
      current = &lanes[number];
      threadIdx.x = static_cast<unsigned>(number);
      swapcontext(&scheduler, &current->context);
    }
    const Collective at = lanes[0].at;
    for (const Lane &lane : lanes)
      if (lane.at != at || (at != kEnd && lane.mask != kAll))
        return false;
    if (at == kEnd)
      return true;
    Happen(at);
  }
}

inline bool RunGrid(int64_t blocks, int64_t warps, bool reversed) {
  for (int64_t i = 0; i < blocks * warps; ++i) {
    const int64_t job = reversed ? blocks * warps - 1 - i : i;
    blockIdx.x = static_cast<unsigned>(job / warps);
    threadIdx.y = static_cast<unsigned>(job % warps);
    if (!RunWarp(reversed))
      return false;
  }
  return true;
}

inline int Fail(const char *what, const char *which) {
  const char *parts[] = {what, which};
  TVMFFIErrorSetRaisedFromCStrParts("EmulatorError", parts, 2);
  return -1;
}

inline const Kernel kSetDevice = {"__tvm_set_device", nullptr, 2};

inline int Find(void *, const char *name, void **found) {
  const Kernel *end = kKernels + kKernelCount;
  const auto named = [name](const Kernel &k) {
    return strcmp(k.name, name) == 0;
  };
  const Kernel *k =
      named(kSetDevice) ? &kSetDevice : std::find_if(kKernels, end, named);
  if (k == end)
    return Fail("no kernel is named ", name);
  *found = const_cast<Kernel *>(k);
  return 0;
}

inline int Initialise(void **place, int (*initialise)(void **)) {
  return *place ? 0 : initialise(place);
}

} // namespace emulator

extern "C" {
// Lanes, warps and blocks take turns the other way round.
inline int reversed = 0;

inline int Call(void *found, Argument *given, int32_t count, void *) {
  using namespace emulator;
  kernel = static_cast<const Kernel *>(found);
  if (kernel == &kSetDevice)
    return 0;
  arguments = given;
  if (count != kernel->arguments + 3)
    return Fail("wrong number of arguments of ", kernel->name);
  const Argument *grid = given + kernel->arguments;
  const int64_t blocks = grid[0].integer, warps = grid[1].integer;
  if (blocks < 1 || warps < 1 || grid[2].integer != kLanes)
    return Fail("no grid of warps in ", kernel->name);
  return RunGrid(blocks, warps, reversed != 0)
             ? 0
             : Fail("lanes part in ", kernel->name);
}
}

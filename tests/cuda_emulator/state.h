// What the parts of the run time share. All of it belongs to one launch at a time.
#pragma once
#undef _FORTIFY_SOURCE  // longjmp between stacks is meant
#include <ucontext.h>

#include <array>
#include <csetjmp>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cuda_emulator.h"

#define SITE __builtin_return_address(0)
#define PLACED __attribute__((noinline))  // its SITE is a place in the kernel

namespace emulator {
constexpr int kMaxLanes = 1024, kWarp = 32;
constexpr size_t kStack = 256 << 10, kWindow = 228 << 10;  // bytes of a lane, of shared memory

// device.py has the same names, which emulator_counts() tells.
struct Counts {
  int64_t load_requests, load_sectors, load_bytes, store_requests, store_sectors, store_bytes;
  int64_t shared_requests, shared_wavefronts, shared_ideal, barriers, mma_flops, fmas, async_bytes;
  int64_t atomics, rewritten, blocks, unique_read, unique_written;
};

// An access to a word: when, by which thread of the grid, and to which of its bytes.
struct Stamp {
  uint32_t clock;
  uint32_t thread : 27, strong : 1, bytes : 4;
};
// Four bytes of memory. `beside` is the write before the last one, of other bytes; `other` is the
// last read by another block than that of `read`; `known` are the bytes that were written;
// `pending` is the lane, from 1, whose cp.async may still write.
struct Word {
  Stamp write, beside, read, other;
  uint16_t known, pending;
};
// What is released of a block: all before clock `whole`, and what `warps` did up to `clock`.
struct Released {
  uint32_t whole, clock, warps;
};
using Knowledge = std::shared_ptr<const std::map<uint32_t, Released>>;  // replaced, not changed

struct Access {
  const void* site;
  uintptr_t address;  // in shared memory: from its begin
  int bytes;
  bool write, shared;
};
struct Copy {
  unsigned to;
  const void* from;
  int bytes, valid;
};
enum State { kRuns, kBarrier, kMeets, kDone };
using Act = void (*)(void* const operands[kWarp]);  // of lanes that take no part: null
struct LaneState {
  Dim thread;
  uint32_t number;  // in the grid
  ucontext_t start;
  jmp_buf at;
  bool started, paused;
  State state;
  int call;          // where it waits, in the source
  const void* site;  // and in the module
  Act act;
  unsigned mask;
  bool whole;  // the whole warp must be there
  void* operands;
  uint32_t synced;  // the clock of its last __syncwarp
  std::vector<Access> accesses;
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> groups;
  Knowledge released, seen;  // by its last fence; by strong reads since
  uint64_t progress;         // when it last saw some
  int waits;
  uint64_t steps;
};

inline std::recursive_mutex lock;
inline LaneState lanes[kMaxLanes];
inline LaneState* current;  // null while the run time itself reads and writes
inline char *stacks, *window;
inline Word shadow[kWindow / 4];  // of shared memory
inline uint32_t now;              // ticks at launches, blocks, barriers, __syncwarp and fences
inline uint64_t progress;         // ticks whenever something happens that a lane may wait for
inline std::string error;
inline std::unordered_map<const void*, Counts> sites;
inline Counts unplaced;

// The launch.
inline Dim threads, blocks;
inline int lane_count;  // of a block
inline size_t dynamic_bytes;
inline uint32_t launch_number, launch_clock;
inline std::unordered_map<uintptr_t, Knowledge> flags;  // what strong writes release

// The block.
inline Dim block;
inline uint32_t block_number, block_clock, barrier_clock;  // of its begin and last barrier
inline size_t static_bytes;
inline Knowledge knowledge[kMaxLanes / kWarp];  // of warps, about other blocks

inline int Number() { return static_cast<int>(current - lanes); }
inline Dim Unrank(uint32_t n, Dim d) { return {n % d.x, n / d.x % d.y, n / d.x / d.y}; }

// run.cc
std::string Named(Dim thread, Dim of);
std::string At(const void* site);
[[noreturn]] void Fail(const std::string& what, const void* site);
void Yield();
void Pause();
void CountWait(uintptr_t address, const void* site);

// memory.cc
Knowledge Join(const Knowledge& a, const Knowledge& b);
void Settle();
std::string Described(uintptr_t address);
void Touch(uintptr_t address, int bytes, Kind kind, const void* site);
void TouchCopy(unsigned to, int bytes, const void* site);
void StartMemory();

// traffic.cc
void Flush(int warp);
}  // namespace emulator

// Launches: whose turn it is, and what a kernel's accesses lead to.
//
// A lane is a fiber of the host's thread. It runs until its next barrier or collective, so the same
// launch does the same; blocks run one after the other. Every read and write of a kernel comes
// through the hooks of -fsanitize=thread (at the end), which are ours.
#include <dlfcn.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>

#include "state.h"

namespace emulator {
namespace {
constexpr size_t kTurn = 8192;                       // accesses after which other lanes have a turn
constexpr uint64_t kMostSteps = 1000 * 1000 * 1000;  // of a lane
constexpr int kLongestWait = 25600;  // strong reads of a lane while nothing else happens
constexpr char kNames[] =
    "load_requests load_sectors load_bytes store_requests store_sectors store_bytes "
    "shared_requests shared_wavefronts shared_ideal barriers mma_flops fmas async_bytes "
    "atomics rewritten blocks unique_read unique_written";

void (*kernel)(void**);
void** arguments;
int order;
std::mt19937 shuffle;
jmp_buf scheduler;
size_t dirty_bytes;  // of shared memory
std::map<int, size_t> arrays;
std::vector<std::pair<const void*, Counts>> counted;

void Leave() { _longjmp(scheduler, 1); }
void RunLane() {
  for (;;) {
    kernel(arguments);
    Settle();
    current->state = kDone;
    ++progress;
    Yield();
  }
}
void Resume(LaneState& lane) {
  current = &lane;
  if (_setjmp(scheduler)) return;
  if (lane.started) _longjmp(lane.at, 1);
  lane.started = true;
  getcontext(&lane.start);
  lane.start.uc_stack.ss_sp = stacks + kStack * static_cast<size_t>(Number());
  lane.start.uc_stack.ss_size = kStack;
  lane.start.uc_link = nullptr;
  makecontext(&lane.start, RunLane, 0);
  setcontext(&lane.start);
}
void Part(const LaneState& a, const LaneState& b, const char* where) {
  const auto told = [](const LaneState& l) {
    const std::string who = Named(l.thread, block);
    if (l.state == kDone) return who + " has returned";
    return who + (l.state == kBarrier ? " is at a barrier" : " is at a collective") + At(l.site);
  };
  error = std::string("threads part at a ") + where + ": " + told(a) + ", " + told(b);
}
// Lets the collective of one set of lanes happen, if all of it have come.
bool MeetOnce(LaneState* from, int n) {
  const LaneState *waits = nullptr, *misses = nullptr;
  bool may_come = false;
  for (int i = 0; i < n; ++i) {
    const LaneState& first = from[i];
    if (first.state != kMeets) continue;
    void* operands[kWarp] = {};
    const LaneState* missing = nullptr;
    for (int j = 0; j < n; ++j) {
      const LaneState& other = from[j];
      if (!(first.mask >> j & 1)) continue;
      if (other.state == kDone && !first.whole) continue;  // who has returned is not missed
      may_come |= other.state == kRuns;
      const bool here = other.state == kMeets && other.call == first.call;
      if (!here || other.mask != first.mask) missing = &other;
      operands[j] = other.operands;
    }
    if (missing) {
      waits = &first, misses = missing;
      continue;
    }
    current = nullptr;
    first.act(operands);
    for (int j = 0; j < n; ++j)
      if (operands[j]) from[j].state = kRuns;
    Flush(static_cast<int>(from - lanes) / kWarp);
    ++progress;
    return true;
  }
  if (waits && !may_come) Part(*waits, *misses, "collective");
  return false;
}
// Runs lanes of a warp until all wait, or are done, or had their turn. Whether some had.
bool RunWarp(int warp, bool descending) {
  LaneState* from = lanes + warp * kWarp;
  const int n = std::min(kWarp, lane_count - warp * kWarp);
  do {
    for (int i = 0; i < n; ++i) {
      LaneState& lane = from[descending ? n - 1 - i : i];
      if (lane.state == kRuns && !lane.paused) Resume(lane);
      if (!error.empty()) return false;
    }
  } while (MeetOnce(from, n));
  Flush(warp);
  bool runs = false;
  for (int i = 0; i < n; ++i) from[i].paused = false, runs |= from[i].state == kRuns;
  return runs;
}
void StartBlock() {
  memset(window, 0xff, dirty_bytes);  // NaN
  memset(shadow, 0, dirty_bytes / 4 * sizeof(Word));
  dirty_bytes = (dynamic_bytes + 3) / 4 * 4;
  static_bytes = 0, arrays.clear();
  block_clock = barrier_clock = ++now;
  for (Knowledge& k : knowledge) k.reset();
  for (int i = 0; i < lane_count; ++i) {
    LaneState& l = lanes[i];
    const auto number = static_cast<uint32_t>(i);
    if (l.state != kDone) l.started = false;  // a wrong launch left it somewhere
    l.thread = Unrank(number, threads);
    l.number = block_number * static_cast<uint32_t>(lane_count) + number;
    l.state = kRuns, l.paused = false, l.synced = 0, l.waits = 0, l.progress = 0, l.steps = 0;
    l.accesses.clear(), l.open.clear(), l.groups.clear(), l.released.reset(), l.seen.reset();
  }
}
void PassBarrier(int warps) {
  sites[lanes[0].site].barriers += 1;
  barrier_clock = ++now;
  ++progress;
  Knowledge all;
  for (int w = 0; w < warps; ++w) all = Join(all, knowledge[w]);
  for (int w = 0; w < warps; ++w) knowledge[w] = all;
  for (int i = 0; i < lane_count; ++i) lanes[i].state = kRuns;
}
void RunBlock() {
  StartBlock();
  const int warps = (lane_count + kWarp - 1) / kWarp;
  std::vector<int> turns;
  for (int w = 0; w < warps; ++w) turns.push_back(order == 1 ? warps - 1 - w : w);
  if (order > 1) std::shuffle(turns.begin(), turns.end(), shuffle);
  const bool descending = order == 1 || (order > 1 && (shuffle() & 1));
  for (;;) {
    bool runs = false;
    for (const int w : turns) {
      runs |= RunWarp(w, descending);
      if (!error.empty()) return;
    }
    if (runs) continue;
    const LaneState& first = lanes[0];
    for (int i = 1; i < lane_count; ++i) {
      const bool apart = first.state == kBarrier && lanes[i].call != first.call;
      if (lanes[i].state != first.state || apart) return Part(first, lanes[i], "barrier");
    }
    if (first.state == kDone) return;
    PassBarrier(warps);
  }
}
bool Refused(const uint64_t threads_in_all, size_t shared) {
  const uint64_t in_block = uint64_t{threads.x} * threads.y * threads.z;
  if (!threads_in_all)
    error = "an empty grid or block is launched";
  else if (in_block > kMaxLanes || threads.z > 64)
    error = "a block of more than 1024 threads, or 64 along z, is launched";
  else if (blocks.y > 65535 || blocks.z > 65535)
    error = "more than 65535 blocks along y or z are launched";
  else if (threads_in_all >= 1u << 27)
    error = "more threads are launched than the emulator can tell apart";
  else if (shared > kWindow)
    error = "more shared memory is asked for than there is";
  return !error.empty();
}
}  // namespace

std::string At(const void* site) {
  Dl_info info;
  if (!site || !dladdr(site, &info)) return "";
  char text[32];
  const char* begin = static_cast<const char*>(info.dli_fbase);
  snprintf(text, sizeof text, " at +0x%zx",
           static_cast<size_t>(static_cast<const char*>(site) - begin - 1));
  return text;
}
std::string Named(Dim t, Dim b) {
  char text[128];
  snprintf(text, sizeof text, "thread (%u,%u,%u) of block (%u,%u,%u)",  //
           t.x, t.y, t.z, b.x, b.y, b.z);
  return text;
}
void Fail(const std::string& what, const void* site) {
  error = what + ", by " + Named(current->thread, block) + At(site);
  current->state = kRuns;
  _longjmp(scheduler, 1);
}
void Yield() {
  current->steps += 100;
  if (!_setjmp(current->at)) Leave();
}
void Pause() {
  current->paused = true;
  Yield();
}
void CountWait(uintptr_t address, const void* site) {
  LaneState& me = *current;
  if (me.progress != progress) me.progress = progress, me.waits = 0;
  if (++me.waits > kLongestWait)
    Fail("waits for ever: no thread that can still run writes " + Described(address), site);
  if (me.waits % 64 == 0) Pause();
}

uint64_t Thread() { return Packed(current->thread); }
uint64_t Block() { return Packed(block); }
uint64_t Threads() { return Packed(threads); }
uint64_t Blocks() { return Packed(blocks); }
int Lane() { return Number() % kWarp; }

PLACED unsigned Place(const void* shared) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(shared) - reinterpret_cast<uintptr_t>(window);
  if (at >= kWindow) Fail("what is no shared memory is addressed as such", SITE);
  return static_cast<unsigned>(at);
}
PLACED void* Shared(int array, size_t bytes) {
  if (array < 0) return window;
  const auto found = arrays.find(array);
  if (found != arrays.end()) return window + found->second;
  const size_t at = (dynamic_bytes + static_bytes + 127) / 128 * 128;
  if (at + bytes > kWindow) Fail("more shared memory is asked for than there is", SITE);
  static_bytes = at + bytes - dynamic_bytes;
  dirty_bytes = (at + bytes + 3) / 4 * 4;
  return window + (arrays[array] = at);
}
void See(const void* address, int bytes, Kind kind, const void* site) {
  for (; bytes > 16; bytes -= 16, address = static_cast<const char*>(address) + 16)
    See(address, 16, kind, site);
  const auto a = reinterpret_cast<uintptr_t>(address);
  if (a - reinterpret_cast<uintptr_t>(stacks) < kStack * kMaxLanes) return;
  Settle();
  LaneState& me = *current;
  me.steps += 16;
  // Others have their turn before the access is looked at: it happens with what follows.
  if (kind == kStrongLoad || kind == kAtomic) CountWait(a, site);
  if (me.accesses.size() >= kTurn) Pause();
  if (a % static_cast<uintptr_t>(bytes))
    Fail("misaligned access of " + std::to_string(bytes) + " bytes to " + Described(a), site);
  Touch(a, bytes, kind, site);
  const uintptr_t at = a - reinterpret_cast<uintptr_t>(window);
  const bool shared = at < kWindow, write = kind != kLoad && kind != kStrongLoad;
  me.accesses.push_back({site, shared ? at : a, bytes, write, shared});
  if (kind == kStore || kind == kStrongStore) ++progress;
  if (kind == kAtomic) sites[site].atomics += 1;
  if (kind == kLoad || kind == kStore || (flags.empty() && !me.released)) return;
  Knowledge& flag = flags[a];
  if (kind != kStrongStore) me.seen = Join(me.seen, flag);
  if (kind == kStrongStore) flag = me.released;
  if (kind == kAtomic) flag = Join(flag, me.released);
}
void Changed() { ++progress; }
PLACED void Barrier(int call) {
  Settle();
  current->state = kBarrier, current->call = call, current->site = SITE;
  Yield();
}
void CountFmas(int64_t count) { unplaced.fmas += count; }
}  // namespace emulator

using namespace emulator;
using Held = std::lock_guard<std::recursive_mutex>;

const char* emulator_counts() { return kNames; }
const char* emulator_launch(void (*function)(void**), void** given, const unsigned* shape,
                            size_t shared, int turns, int64_t* counts) {
  const Held held(lock);
  if (!stacks) {
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* p = mmap(nullptr, kStack * kMaxLanes + kWindow, PROT_READ | PROT_WRITE, kind, -1, 0);
    if (p == MAP_FAILED) return "the host has no memory for a block";
    stacks = static_cast<char*>(p);
    window = stacks + kStack * kMaxLanes;
  }
  blocks = {shape[0], shape[1], shape[2]}, threads = {shape[3], shape[4], shape[5]};
  error.clear(), sites.clear(), counted.clear(), unplaced = {};
  const uint64_t in_block = uint64_t{threads.x} * threads.y * threads.z;
  const uint64_t total = uint64_t{blocks.x} * blocks.y * blocks.z;
  if (Refused(total * in_block, shared)) return error.c_str();
  kernel = function, arguments = given, dynamic_bytes = shared, order = turns;
  lane_count = static_cast<int>(in_block), ++launch_number, launch_clock = ++now;
  StartMemory();
  std::vector<uint32_t> numbers(total);
  for (uint32_t i = 0; i < total; ++i)
    numbers[i] = turns == 1 ? static_cast<uint32_t>(total) - 1 - i : i;
  shuffle.seed(static_cast<unsigned>(turns));
  if (turns > 1) std::shuffle(numbers.begin(), numbers.end(), shuffle);
  emulator_open(1);
  for (const uint32_t n : numbers) {
    block_number = n, block = Unrank(n, blocks);
    RunBlock();
    if (!error.empty()) break;
    unplaced.blocks += 1;
  }
  current = nullptr;
  emulator_open(0);
  counted.assign(sites.begin(), sites.end());
  constexpr size_t kCounts = sizeof(Counts) / sizeof(int64_t);
  auto* sums = reinterpret_cast<int64_t*>(&unplaced);
  for (const auto& place : counted)
    for (size_t i = 0; i < kCounts; ++i)
      sums[i] += reinterpret_cast<const int64_t*>(&place.second)[i];
  if (counts) memcpy(counts, sums, sizeof unplaced);
  return error.empty() ? nullptr : error.c_str();
}
int emulator_site(int n, size_t* offset, int64_t* counts) {
  const Held held(lock);
  Dl_info info;
  if (n < 0 || static_cast<size_t>(n) >= counted.size()) return 0;
  const auto& [site, count] = counted[static_cast<size_t>(n)];
  if (!dladdr(site, &info)) return 0;
  const char* begin = static_cast<const char*>(info.dli_fbase);
  *offset = static_cast<size_t>(static_cast<const char*>(site) - begin - 1);
  memcpy(counts, &count, sizeof count);
  return 1;
}

#define HOOK(name, bytes, kind)             \
  extern "C" void __tsan_##name(void* p) {  \
    if (current) See(p, bytes, kind, SITE); \
  }
#define HOOKS(n)                                   \
  HOOK(read##n, n, kLoad)                          \
  HOOK(write##n, n, kStore)                        \
  HOOK(unaligned_read##n, n, kLoad)                \
  HOOK(unaligned_write##n, n, kStore)              \
  HOOK(volatile_read##n, n, kStrongLoad)           \
  HOOK(volatile_write##n, n, kStrongStore)         \
  HOOK(unaligned_volatile_read##n, n, kStrongLoad) \
  HOOK(unaligned_volatile_write##n, n, kStrongStore)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
extern "C" void __tsan_read_range(void* p, size_t n) {
  if (current) See(p, static_cast<int>(n), kLoad, SITE);
}
extern "C" void __tsan_write_range(void* p, size_t n) {
  if (current) See(p, static_cast<int>(n), kStore, SITE);
}
// The hook of -fsanitize-coverage=trace-pc, in each basic block.
extern "C" void __sanitizer_cov_trace_pc() {
  if (current && ++current->steps > kMostSteps) Fail("runs for ever", SITE);
}
extern "C" void __tsan_func_entry(void*) {}
extern "C" void __tsan_func_exit() {}
extern "C" void __tsan_init() {}

// Device memory and the rules of its use.
//
// Per word two *stamps* say who wrote it and who read it last, and when, by a clock that ticks at
// barriers, __syncwarp and fences. An access is ordered after a stamp if
//   - the same thread made it, or an earlier launch, or the block before its last barrier,
//   - or a lane of the warp before a __syncwarp of both (other collectives order no memory),
//   - or another block released it, by a fence before a strong write (volatile, relaxed, atomic),
//     and this warp acquired it, by a strong read of that word and a fence, or a barrier after
//     such.
// What conflicts and is not ordered is an error, unless both accesses are strong; a plain write may
// also follow another one if it writes what stands there.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace emulator {
namespace {
constexpr size_t kPage = 4096, kArena = size_t{64} << 30;
constexpr int kSector = 32;

struct Free {
  void operator()(void* p) const { free(p); }
};
struct Buffer {
  uintptr_t begin, end;
  std::string name;
  bool live;
  std::unique_ptr<Word[], Free> words;
  std::unique_ptr<uint32_t[], Free> read, written;  // per sector: the last launch that did so
};
// A write against another one: settled as soon as its value can be seen.
struct Suspect {
  uintptr_t address;
  int bytes;
  unsigned words;  // which are written against another; 0: there is no suspect
  char before[16];
  const void* site;
  Stamp other;  // that of one of these words, which is at `place`
  uintptr_t place;
};

char* arena;
size_t arena_used;
std::vector<Buffer> buffers;
std::vector<int> owners;  // per page of the arena
Suspect suspect;

Buffer* Owner(uintptr_t a) {
  const uintptr_t page = (a - reinterpret_cast<uintptr_t>(arena)) / kPage;
  return arena && page < owners.size() ? &buffers[static_cast<size_t>(owners[page])] : nullptr;
}
Buffer* Live(const void* p) {
  Buffer* b = Owner(reinterpret_cast<uintptr_t>(p));
  return b && b->live ? b : nullptr;
}
bool Ordered(const Stamp& s) {
  if (s.clock < launch_clock || s.thread == current->number) return true;
  const bool inside = s.clock >= block_clock;
  if (inside && s.clock < barrier_clock) return true;
  const auto count = static_cast<uint32_t>(lane_count);
  const uint32_t from = s.thread / count, lane = s.thread % count;
  const uint32_t warp = static_cast<uint32_t>(Number()) / kWarp;
  if (inside) {
    if (lane / kWarp == warp && s.clock < std::min(current->synced, lanes[lane].synced))
      return true;
  }
  if (!knowledge[warp]) return false;
  const auto found = knowledge[warp]->find(from);
  if (found == knowledge[warp]->end()) return false;
  const Released& r = found->second;
  return s.clock < r.whole || ((r.warps >> lane / kWarp & 1) && s.clock <= r.clock);
}
std::string Clash(const Stamp& s, uintptr_t address, const char* did, const char* does) {
  const auto count = static_cast<uint32_t>(lane_count);
  const bool inside = s.clock >= block_clock;
  return "race: " + Described(address) + " was " + did + " by " +
         Named(Unrank(s.thread % count, threads), Unrank(s.thread / count, blocks)) + " and is " +
         does + (inside ? " without a barrier between" : " without release and acquire between");
}
// Whether a write is suspect; all else that is wrong is an error.
bool TouchWord(Word& word, unsigned bytes, uintptr_t address, Kind kind, const void* site) {
  const bool write = kind == kStore || kind == kStrongStore || kind == kAtomic;
  const bool strong = kind != kLoad && kind != kStore;
  const auto clashes = [&](const Stamp& s) {
    return (s.bytes & bytes) && !(s.strong && strong) && !Ordered(s);
  };
  if (word.pending) Fail("cp.async may still write " + Described(address), site);
  if ((!write || kind == kAtomic) && (word.known & bytes) != bytes)
    Fail(Described(address) + " is read before anything was written there", site);
  const bool against = clashes(word.write) || clashes(word.beside);
  if (against) {
    const Stamp& other = clashes(word.write) ? word.write : word.beside;
    if (kind != kStore || other.strong)
      Fail(Clash(other, address, "written", write ? "written" : "read"), site);
    suspect.other = other, suspect.place = address;
  }
  if (write)
    for (const Stamp* s : {&word.read, &word.other})
      if (clashes(*s)) Fail(Clash(*s, address, "read", "written"), site);
  Stamp& last = write ? word.write : word.read;
  const bool again = last.clock == now && last.thread == current->number;
  if (write && !again && !(last.bytes & bytes)) word.beside = last;
  if (write) word.beside.bytes &= ~bytes & 15;
  if (!write && last.clock < block_clock) word.other = last;
  const unsigned before = again ? last.bytes : 0;
  last = {now, current->number, strong, (before | bytes) & 15};
  if (write) word.known |= static_cast<uint16_t>(bytes);
  return against;
}
void TouchWords(Word* words, uintptr_t at, uintptr_t address, int bytes, Kind kind,
                const void* site) {
  const uintptr_t end = at + static_cast<uintptr_t>(bytes);
  for (uintptr_t w = at / 4; w * 4 < end; ++w) {
    const uintptr_t first = std::max(at, w * 4), last = std::min(end, w * 4 + 4);
    const unsigned mask = (1u << (last - w * 4)) - (1u << (first - w * 4));
    if (TouchWord(words[w], mask, address + (first - at), kind, site))
      suspect.words |= 1u << (w - at / 4);
  }
  if (!suspect.words) return;
  suspect.address = address, suspect.bytes = bytes, suspect.site = site;
  memcpy(suspect.before, reinterpret_cast<const void*>(address), static_cast<size_t>(bytes));
}
void TouchShared(uintptr_t at, int bytes, Kind kind, const void* site) {
  const size_t size = dynamic_bytes + static_bytes;
  if (at + static_cast<size_t>(bytes) > size)
    Fail("access outside shared memory, at byte " + std::to_string(at) + " of " +
             std::to_string(size),
         site);
  TouchWords(shadow, at, reinterpret_cast<uintptr_t>(window) + at, bytes, kind, site);
}
void TouchGlobal(uintptr_t a, int bytes, Kind kind, const void* site) {
  const bool write = kind == kStore || kind == kStrongStore || kind == kAtomic;
  const uintptr_t end = a + static_cast<uintptr_t>(bytes);
  Buffer* b = Owner(a);
  if (!b || a < b->begin || end > b->end || !b->live) {
    const std::string what = write ? "write" : "read";
    if (!b) Fail("wild " + what + " of no device memory", site);
    if (a >= b->begin && end <= b->end) Fail(what + " of " + b->name + ", which was freed", site);
    const std::string how = a < b->begin ? std::to_string(b->begin - a) + " bytes before it"
                                         : std::to_string(end - b->end) + " bytes past its end";
    Fail(what + " outside " + b->name + ", " + how, site);
  }
  TouchWords(b->words.get(), a - b->begin, a, bytes, kind, site);
  for (uintptr_t s = (a - b->begin) / kSector; s <= (end - 1 - b->begin) / kSector; ++s) {
    uint32_t& last = (write ? b->written : b->read)[s];
    if (last != launch_number) (write ? unplaced.unique_written : unplaced.unique_read) += kSector;
    last = launch_number;
  }
}
void MarkWritten(void* to, size_t bytes) {
  Buffer* b = Live(to);
  if (!b) return;
  const size_t at = reinterpret_cast<uintptr_t>(to) - b->begin, end = at + bytes;
  for (size_t w = at / 4; w * 4 < end; ++w) {
    const size_t first = std::max(at, w * 4), last = std::min(end, w * 4 + 4);
    b->words[w].known |= static_cast<uint16_t>((1u << (last - w * 4)) - (1u << (first - w * 4)));
  }
}
}  // namespace

Knowledge Join(const Knowledge& a, const Knowledge& b) {
  if (!a || a == b) return b;
  if (!b) return a;
  auto all = std::make_shared<std::map<uint32_t, Released>>(*a);
  for (const auto& [number, r] : *b) {
    Released& known = all->emplace(number, r).first->second;
    if (r.whole == known.whole) known.warps |= r.warps;
    if (r.whole > known.whole) known.whole = r.whole, known.warps = r.warps;
    known.clock = std::max(known.clock, r.clock);
  }
  return all;
}
std::string Described(uintptr_t address) {
  const uintptr_t at = address - reinterpret_cast<uintptr_t>(window);
  if (at < kWindow) return "byte " + std::to_string(at) + " of shared memory";
  const Buffer* b = Owner(address);
  return b ? "byte " + std::to_string(address - b->begin) + " of " + b->name : "no memory";
}
void Settle() {
  if (!suspect.words) return;
  const unsigned words = suspect.words;
  suspect.words = 0;
  const auto* after = reinterpret_cast<const char*>(suspect.address);
  for (int i = 0; i < suspect.bytes; ++i)
    if (words >> i / 4 & 1 && after[i] != suspect.before[i])
      Fail(Clash(suspect.other, suspect.place, "written", "written"), suspect.site);
  sites[suspect.site].rewritten += 1;
}
void Touch(uintptr_t address, int bytes, Kind kind, const void* site) {
  const uintptr_t at = address - reinterpret_cast<uintptr_t>(window);
  if (at < kWindow)
    TouchShared(at, bytes, kind, site);
  else
    TouchGlobal(address, bytes, kind, site);
}
void TouchCopy(unsigned to, int bytes, const void* site) {
  TouchShared(to, bytes, kStore, site);
  if (!suspect.words) return;
  suspect.words = 0;  // its value comes later
  Fail(Clash(suspect.other, suspect.place, "written", "written"), site);
}
void StartMemory() {
  suspect.words = 0;
  flags.clear();
}
void Fence() {
  Settle();
  LaneState& me = *current;
  const int warp = Number() / kWarp;
  knowledge[warp] = Join(knowledge[warp], me.seen);
  me.seen.reset();
  std::map<uint32_t, Released> mine;
  mine[block_number] = {barrier_clock, now++, 1u << warp};
  me.released = Join(knowledge[warp], std::make_shared<decltype(mine)>(std::move(mine)));
}
}  // namespace emulator

using namespace emulator;
using Held = std::lock_guard<std::recursive_mutex>;

void emulator_open(int open) {
  if (arena_used) mprotect(arena, arena_used, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}
void* emulator_alloc(size_t bytes, const char* name) {
  const Held held(lock);
  if (!arena) {
    const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    void* p = mmap(nullptr, kArena, PROT_NONE, kind, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    arena = static_cast<char*>(p);
  }
  // A page before and one behind belong to the buffer: who strays is told from what.
  const size_t need = (bytes + kPage - 1) / kPage * kPage + 2 * kPage;
  if (bytes > kArena || arena_used + need > kArena) return nullptr;
  char* start = arena + arena_used + kPage;
  const auto begin = reinterpret_cast<uintptr_t>(start);
  Buffer b{begin, begin + bytes, name, true, nullptr, nullptr, nullptr};
  b.words.reset(static_cast<Word*>(calloc(bytes / 4 + 1, sizeof(Word))));
  b.read.reset(static_cast<uint32_t*>(calloc(bytes / kSector + 1, sizeof(uint32_t))));
  b.written.reset(static_cast<uint32_t*>(calloc(bytes / kSector + 1, sizeof(uint32_t))));
  if (!b.words || !b.read || !b.written) return nullptr;
  arena_used += need;
  owners.resize(arena_used / kPage, static_cast<int>(buffers.size()));
  buffers.push_back(std::move(b));
  return start;
}
int emulator_free(void* start) {
  const Held held(lock);
  Buffer* b = Live(start);
  if (!b || b->begin != reinterpret_cast<uintptr_t>(start)) return 0;
  b->live = false;
  b->words.reset(), b->read.reset(), b->written.reset();
  madvise(start, b->end - b->begin, MADV_DONTNEED);
  if (std::none_of(buffers.begin(), buffers.end(), [](const Buffer& x) { return x.live; })) {
    mprotect(arena, arena_used, PROT_NONE);
    buffers.clear(), owners.clear(), arena_used = 0;
  }
  return 1;
}
int emulator_inside(const void* p, size_t bytes) {
  const Held held(lock);
  const Buffer* b = Live(p);
  const auto a = reinterpret_cast<uintptr_t>(p);
  return b && a >= b->begin && a <= b->end && bytes <= b->end - a;
}
void emulator_name(const void* start, const char* name) {
  const Held held(lock);
  if (Buffer* b = Live(start)) b->name = name;
}
void emulator_copy(void* to, const void* from, size_t bytes) {
  const Held held(lock);
  emulator_open(1);
  MarkWritten(to, bytes);
  memmove(to, from, bytes);
  emulator_open(0);
}
void emulator_fill(void* to, int byte, size_t bytes) {
  const Held held(lock);
  emulator_open(1);
  MarkWritten(to, bytes);
  memset(to, byte, bytes);
  emulator_open(0);
}

// What the lanes of a warp do together, and cp.async.
#include <algorithm>
#include <cstring>

#include "device_code.h"
#include "state.h"
#undef threadIdx

namespace emulator {
namespace {
// Waits for the lanes of `mask`; the last one lets `act` happen with the operands of all.
void Meet(int call, unsigned mask, Act act, void* operands, const void* site, bool whole = false) {
  Settle();
  LaneState& me = *current;
  if (!(mask >> Lane() & 1)) Fail("a collective's mask leaves out its caller", site);
  if (whole && Number() / kWarp * kWarp + kWarp > lane_count)
    Fail("a warp of fewer than 32 lanes meets", site);
  me.state = kMeets, me.call = call, me.site = site, me.act = act, me.mask = mask,
  me.operands = operands;
  me.whole = whole;
  Yield();
}
struct Sent {
  uint64_t value, result;
  int from;
  bool answered;
};
struct Given {
  unsigned value;
  Reducer reducer;
};
struct Rows {
  const char* row;
  int count;
  bool transposed;
  Words words;
};
struct Fragments {
  Words a;
  unsigned b[2];
  Floats c;
};

void Answer(void* const all[kWarp]) {
  for (int i = 0; i < kWarp; ++i) {
    auto* mine = static_cast<Sent*>(all[i]);
    if (!mine || !all[mine->from]) continue;
    mine->result = static_cast<Sent*>(all[mine->from])->value;
    mine->answered = true;
  }
}
unsigned Reduced(unsigned a, unsigned b, Reducer reducer) {
  const int x = static_cast<int>(a), y = static_cast<int>(b);
  switch (reducer) {
    case kAdd:
      return a + b;
    case kMin:
      return static_cast<unsigned>(std::min(x, y));
    case kMax:
      return static_cast<unsigned>(std::max(x, y));
    case kAnd:
      return a & b;
    case kOr:
      return a | b;
    case kXor:
      return a ^ b;
    case kUnsignedMin:
      return std::min(a, b);
    case kUnsignedMax:
      return std::max(a, b);
  }
  __builtin_unreachable();
}
void ReduceAll(void* const all[kWarp]) {
  Given* sum = nullptr;
  for (int i = 0; i < kWarp; ++i) {
    auto* g = static_cast<Given*>(all[i]);
    if (g && sum) g->value = Reduced(sum->value, g->value, g->reducer);
    if (g) sum = g;
  }
  for (int i = 0; i < kWarp; ++i)
    if (all[i]) static_cast<Given*>(all[i])->value = sum->value;
}
// Row r of matrix m is that of lane 8 m + r; lane l gets elements 2 (l % 4) and the next of row
// l / 4 of each, or of column l / 4 when they are transposed.
void Distribute(void* const all[kWarp]) {
  const Rows& first = *static_cast<Rows*>(all[0]);
  uint16_t tiles[4][8][8];
  for (int i = 0; i < first.count * 8; ++i)
    memcpy(tiles[i / 8][i % 8], static_cast<Rows*>(all[i])->row, 16);
  for (int l = 0; l < kWarp; ++l)
    for (int m = 0; m < first.count; ++m) {
      const auto& t = tiles[m];
      const int a = l / 4, b = l % 4 * 2;
      const unsigned low = first.transposed ? t[b][a] : t[a][b];
      const unsigned high = first.transposed ? t[b + 1][a] : t[a][b + 1];
      static_cast<Rows*>(all[l])->words.x[m] = low | high << 16;
    }
}
// D[16, 8] = A[16, depth] B[depth, 8] + C; sums are taken in the order of k.
template <int depth>
void Accumulate(void* const all[kWarp], const float (&a)[16][depth], const float (&b)[depth][8]) {
  float c[16][8];
  const auto element = [&](int lane, int i) -> float& {
    return c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  };
  for (int l = 0; l < kWarp; ++l)
    for (int i = 0; i < 4; ++i) element(l, i) = static_cast<Fragments*>(all[l])->c.x[i];
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < depth; ++k)
      for (int column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
  for (int l = 0; l < kWarp; ++l)
    for (int i = 0; i < 4; ++i) static_cast<Fragments*>(all[l])->c.x[i] = element(l, i);
}
template <class T>
void MultiplyHalves(void* const all[kWarp]) {
  float a[16][16], b[16][8];
  for (int l = 0; l < kWarp; ++l) {
    const Fragments& f = *static_cast<Fragments*>(all[l]);
    T x[8], y[4];
    memcpy(x, &f.a, sizeof x);
    memcpy(y, &f.b, sizeof y);
    const int g = l / 4, t = l % 4 * 2;
    for (int i = 0; i < 8; ++i) a[g + i / 2 % 2 * 8][t + i % 2 + i / 4 * 8] = x[i];
    for (int i = 0; i < 4; ++i) b[t + i % 2 + i / 2 * 8][g] = y[i];
  }
  Accumulate<16>(all, a, b);
}
void MultiplyTf32(void* const all[kWarp]) {
  constexpr unsigned kKept = ~0x1fffu;  // the other bits of a float do not count
  float a[16][8], b[8][8];
  for (int l = 0; l < kWarp; ++l) {
    const Fragments& f = *static_cast<Fragments*>(all[l]);
    const int g = l / 4, t = l % 4;
    for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][t + i / 2 * 4] = Bits<float>(f.a.x[i] & kKept);
    for (int i = 0; i < 2; ++i) b[t + i * 4][g] = Bits<float>(f.b[i] & kKept);
  }
  Accumulate<8>(all, a, b);
}
}  // namespace

PLACED void SyncWarp(int call, unsigned mask) {
  const auto sync = [](void* const all[kWarp]) {
    ++now;
    for (int i = 0; i < kWarp; ++i)
      if (all[i]) static_cast<LaneState*>(all[i])->synced = now;
  };
  Meet(call, mask, sync, current, SITE);
}
PLACED uint64_t Exchange(int call, unsigned mask, uint64_t value, int from) {
  Sent sent{value, 0, from, false};
  if (!(mask >> from & 1)) Fail("a shuffle's mask leaves out the lane it reads", SITE);
  Meet(call, mask, Answer, &sent, SITE);
  if (!sent.answered) Fail("a shuffle reads a lane that has returned", SITE);
  return sent.result;
}
PLACED unsigned Reduce(int call, unsigned mask, unsigned value, Reducer reducer) {
  Given given{value, reducer};
  Meet(call, mask, ReduceAll, &given, SITE);
  return given.value;
}
PLACED Words LoadMatrices(int call, unsigned row, int count, bool transposed) {
  if (Lane() < count * 8) See(window + row, 16, kLoad, SITE);
  Rows rows{window + row, count, transposed, {}};
  Meet(call, ~0u, Distribute, &rows, SITE, true);
  return rows.words;
}
PLACED Floats Multiply(int call, Product product, Words a, unsigned b0, unsigned b1, Floats c) {
  static constexpr Act kActs[] = {MultiplyHalves<half>, MultiplyHalves<nv_bfloat16>, MultiplyTf32};
  Fragments fragments{a, {b0, b1}, c};
  if (Lane() == 0) sites[SITE].mma_flops += 2 * 16 * 8 * (product == kTf32 ? 8 : 16);
  Meet(call, ~0u, kActs[product], &fragments, SITE, true);
  return fragments.c;
}

// A copy lands as late as it may: what is read too early is seen as such.
PLACED void CopyAsync(unsigned to, const void* from, int bytes, int valid, bool past_l1) {
  const void* site = SITE;
  const auto a = reinterpret_cast<uintptr_t>(from);
  Settle();
  if (bytes != 16 && (past_l1 || (bytes != 4 && bytes != 8)))
    Fail("cp.async of " + std::to_string(bytes) + " bytes", site);
  if (valid < 0 || valid > bytes) Fail("cp.async reads more than it writes", site);
  if (to % static_cast<unsigned>(bytes)) Fail("misaligned cp.async to shared memory", site);
  if (a % static_cast<unsigned>(bytes)) Fail("misaligned cp.async from " + Described(a), site);
  LaneState& me = *current;
  TouchCopy(to, bytes, site);
  me.accesses.push_back({site, to, bytes, true, true});
  for (int i = 0; i < bytes; i += 4)
    shadow[to / 4 + static_cast<unsigned>(i) / 4].pending = static_cast<uint16_t>(Number() + 1);
  if (valid) {
    Touch(a, valid, kLoad, site);
    me.accesses.push_back({site, a, valid, false, false});
  }
  me.open.push_back({to, from, bytes, valid});
  sites[site].async_bytes += valid;
  ++progress;
}
void Commit() {
  current->groups.push_back(std::move(current->open));
  current->open.clear();
}
void Wait(int but) {
  auto& groups = current->groups;
  while (static_cast<int>(groups.size()) > but) {
    for (const Copy& c : groups.front()) {
      for (int i = 0; i < c.bytes; i += 4) {
        Word& word = shadow[c.to / 4 + static_cast<unsigned>(i) / 4];
        word.pending = 0;
        word.write.clock = now;
      }
      memset(window + c.to, 0, static_cast<size_t>(c.bytes));
      memcpy(window + c.to, c.from, static_cast<size_t>(c.valid));
    }
    groups.erase(groups.begin());
  }
}
}  // namespace emulator

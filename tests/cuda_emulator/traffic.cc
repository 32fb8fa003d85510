// What memory has to do for the accesses of a warp.
#include <algorithm>
#include <tuple>

#include "state.h"

namespace emulator {
namespace {
constexpr int kSector = 32, kBanks = 32;
using Lanes = std::array<const Access*, kWarp>;  // null: the lane has no part in it

// Lanes whose words lie in different banks, or are the same, are served by one wavefront.
void CountShared(const Lanes& all, const Access& first) {
  const int wide = first.bytes >= 16 ? 8 : 16;
  const int phase = first.bytes >= 8 ? wide : kWarp;
  Counts& count = sites[first.site];
  count.shared_requests += 1;
  for (int begin = 0; begin < kWarp; begin += phase) {
    uintptr_t words[kBanks][kWarp];
    int used[kBanks] = {}, most = 0;
    for (int l = begin; l < begin + phase; ++l)
      for (int i = 0; all[l] && i < all[l]->bytes; i += 4) {
        const uintptr_t word = (all[l]->address + static_cast<uintptr_t>(i)) / 4;
        const uintptr_t bank = word % kBanks;
        uintptr_t* end = words[bank] + used[bank];
        if (std::find(words[bank], end, word) == end) words[bank][used[bank]++] = word;
        most = std::max(most, used[bank]);
      }
    count.shared_ideal += most != 0;
    count.shared_wavefronts += most;
  }
}
void CountGlobal(const Lanes& all, const Access& first) {
  uintptr_t sectors[2 * kWarp];
  int used = 0;
  int64_t bytes = 0;
  for (const Access* a : all) {
    if (!a) continue;
    bytes += a->bytes;
    const uintptr_t last = (a->address + static_cast<uintptr_t>(a->bytes) - 1) / kSector;
    for (uintptr_t s = a->address / kSector; s <= last; ++s)
      if (!used || sectors[used - 1] != s) sectors[used++] = s;
  }
  std::sort(sectors, sectors + used);
  const auto different = std::unique(sectors, sectors + used) - sectors;
  Counts& count = sites[first.site];
  (first.write ? count.store_requests : count.load_requests) += 1;
  (first.write ? count.store_sectors : count.load_sectors) += different;
  (first.write ? count.store_bytes : count.load_bytes) += bytes;
}
void CountWarp(const Lanes& all) {
  const Access& first = **std::find_if(all.begin(), all.end(), [](const Access* a) { return a; });
  (first.shared ? CountShared : CountGlobal)(all, first);
}
bool SamePlace(const Access& a, const Access& b) {
  return a.site == b.site && a.shared == b.shared;
}
}  // namespace

// Lanes that ran the same instruction for the n-th time are taken to have done so together.
void Flush(int warp) {
  LaneState* from = lanes + warp * kWarp;
  const int n = std::min(kWarp, lane_count - warp * kWarp);
  const auto& first = from[0].accesses;
  bool same = true;
  for (int i = 1; i < n && same; ++i) {
    const auto& other = from[i].accesses;
    same = std::equal(first.begin(), first.end(), other.begin(), other.end(), SamePlace);
  }
  if (same) {
    for (size_t j = 0; j < first.size(); ++j) {
      Lanes all{};
      for (size_t i = 0; i < static_cast<size_t>(n); ++i) all[i] = &from[i].accesses[j];
      CountWarp(all);
    }
  } else {
    std::map<std::tuple<const void*, bool, int>, Lanes> groups;
    for (size_t i = 0; i < static_cast<size_t>(n); ++i) {
      std::map<std::pair<const void*, bool>, int> seen;
      for (const Access& a : from[i].accesses)
        groups[{a.site, a.shared, seen[{a.site, a.shared}]++}][i] = &a;
    }
    for (const auto& group : groups) CountWarp(group.second);
  }
  for (int i = 0; i < n; ++i) from[i].accesses.clear();
}
}  // namespace emulator

// Counts of micro-tiles from bits.
#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>

#include "cpu_targets.h"
#include "micro_tiles.h"

namespace pitc {
namespace {

// Inlined into functions with a target each, whose vectors it then uses.
#define PITC_INLINE inline __attribute__((always_inline))

// Works on kBytes of a row's bits at a time, the size of a machine's vectors.
template <int kBytes>
struct Counter {
  typedef uint64_t Words __attribute__((vector_size(kBytes)));
  typedef uint32_t Halves __attribute__((vector_size(kBytes)));
  typedef uint16_t Quarters __attribute__((vector_size(kBytes)));
  typedef uint8_t Bytes __attribute__((vector_size(kBytes)));
  static constexpr int64_t kWords = kBytes / 8;

  static PITC_INLINE void Load(const uint64_t* words, int64_t n, Words* v) {
    if (n >= kWords) {
      memcpy(v, words, sizeof *v);
    } else {
      *v = Words{};
      memcpy(v, words, static_cast<size_t>(n) * sizeof *words);
    }
  }

  // Adds the number of set bits of each byte.
  static PITC_INLINE void AddSetBits(const Words& words, Bytes* counts) {
    Words v = words;
    v -= v >> 1 & 0x5555555555555555;
    v = (v & 0x3333333333333333) + (v >> 2 & 0x3333333333333333);
    *counts += reinterpret_cast<Bytes>((v + (v >> 4)) & 0x0f0f0f0f0f0f0f0f);
  }

  // Adds the byte counters, at most 255 each, to the sums of their words, and clears them.
  static PITC_INLINE void Flush(Bytes* counts, Words* sums) {
    Words v = reinterpret_cast<Words>(*counts);
    v = (v & 0x00ff00ff00ff00ffu) + (v >> 8 & 0x00ff00ff00ff00ffu);
    v = (v & 0x0000ffff0000ffffu) + (v >> 16 & 0x0000ffff0000ffffu);
    *sums += (v & 0xffffffffu) + (v >> 32);
    *counts = Bytes{};
  }

  template <class Vector>
  static int64_t Sum(const Vector& v) {
    int64_t sum = 0;
    for (size_t i = 0; i < sizeof v / sizeof v[0]; ++i) sum += static_cast<int64_t>(v[i]);
    return sum;
  }

  // Per lane of 16, 32 or 64 bits, of how many vectors it is 0.
  struct DeadLanes {
    Quarters of16{};
    Halves of32{};
    Words of64{};
  };

  static PITC_INLINE void AddDead(const Words& v, DeadLanes* dead) {
    dead->of16 -= reinterpret_cast<Quarters>(reinterpret_cast<Quarters>(v) == 0);
    dead->of32 -= reinterpret_cast<Halves>(reinterpret_cast<Halves>(v) == 0);
    dead->of64 -= reinterpret_cast<Words>(v == 0);
  }

  // Adds, over all lanes, those of `vectors` that are not 0, and the steps of `tile` that they
  // take.
  template <class Vector>
  static PITC_INLINE void AddLive(const Vector& dead, int64_t vectors, int64_t tile, int64_t* live,
                                  int64_t* steps) {
    constexpr size_t kLanes = sizeof dead / sizeof dead[0];
    decltype(+dead[0]) lanes[kLanes];
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = dead[i];
    // n * inverse >> 32 == n / tile while n * tile < 2^32.
    const uint64_t inverse = (uint64_t{1} << 32) / static_cast<uint64_t>(tile) + 1;
    for (const auto lane : lanes) {
      const auto count = static_cast<uint64_t>(vectors - static_cast<int64_t>(lane));
      *live += static_cast<int64_t>(count);
      *steps += static_cast<int64_t>((count + static_cast<uint64_t>(tile) - 1) * inverse >> 32);
    }
  }

  // Counts what stands in one vector of each of at most CountRules::list_rows rows, and or-s their
  // live columns into `columns`.
  static PITC_INLINE void CountVectors(const uint64_t* bits, int64_t rows, int64_t stride,
                                       int64_t words, int64_t tile_rows, MicroTileCounts* counts,
                                       Words* columns) {
    Words sums[5] = {};
    Bytes set[5] = {};  // of rows, and of groups of kStripHeights
    DeadLanes dead, dead16, dead32;
    for (int64_t r = 0; r < rows;) {
      Words any32{};
      for (const int64_t end32 = std::min(rows, r + 32); r < end32;) {
        Words any16{};
        for (const int64_t end16 = std::min(rows, r + 16); r < end16;) {
          Words any8{};
          for (const int64_t end8 = std::min(rows, r + 8); r < end8;) {
            Words any4{};
            for (const int64_t end4 = std::min(rows, r + 4); r < end4; ++r) {
              Words v;
              Load(bits + r * stride, words, &v);
              AddSetBits(v, &set[0]);
              AddDead(v, &dead);
              any4 |= v;
            }
            AddSetBits(any4, &set[1]);
            any8 |= any4;
          }
          AddSetBits(any8, &set[2]);
          any16 |= any8;
        }
        AddSetBits(any16, &set[3]);
        Flush(&set[0], &sums[0]);
        dead16.of16 -= reinterpret_cast<Quarters>(reinterpret_cast<Quarters>(any16) == 0);
        any32 |= any16;
      }
      AddSetBits(any32, &set[4]);
      for (int i = 1; i < 5; ++i) Flush(&set[i], &sums[i]);
      dead32.of32 -= reinterpret_cast<Halves>(reinterpret_cast<Halves>(any32) == 0);
      *columns |= any32;
    }
    counts->elements += Sum(sums[0]);
    for (int i = 0; i < 4; ++i) counts->strips[i] += Sum(sums[i + 1]);
    int64_t* const steps = counts->segment_steps;
    AddLive(dead.of16, rows, tile_rows, &counts->segments[0], &steps[0]);
    AddLive(dead.of32, rows, tile_rows, &counts->segments[1], &steps[1]);
    AddLive(dead.of64, rows, tile_rows, &counts->segments[2], &steps[2]);
    int64_t unused = 0;
    AddLive(dead16.of16, (rows + 15) / 16, 1, &counts->squares[0], &unused);
    AddLive(dead32.of32, (rows + 31) / 32, 1, &counts->squares[1], &unused);
  }

  static PITC_INLINE void CountAll(const uint64_t* bits, int64_t rows, int64_t words,
                                   const CountRules& rules, uint64_t* columns,
                                   MicroTileCounts* counts) {
    for (int64_t first = 0; first < rows; first += rules.list_rows) {
      const int64_t n = std::min(rules.list_rows, rows - first);
      const uint64_t* const block = bits + first * words;
      for (int64_t w = 0; w < words; w += kWords) {
        Words live{};
        CountVectors(block + w, n, words, words - w, rules.tile_rows, counts, &live);
        uint64_t live_words[kWords];
        memcpy(live_words, &live, sizeof live);
        for (int64_t i = 0; columns && i < std::min(kWords, words - w); ++i)
          columns[w + i] |= live_words[i];
      }
      for (int64_t r = 0; r < n; ++r) {
        uint64_t any = 0;
        for (int64_t w = 0; w < words; ++w) any |= block[r * words + w];
        counts->rows += any != 0;
      }
    }
  }

  // The bits of `group` rows or-ed, a vector at a time.
  static PITC_INLINE int64_t CountGroups(const uint64_t* bits, int64_t rows, int64_t words,
                                         int64_t group) {
    int64_t total = 0;
    for (int64_t first = 0; first < rows; first += group) {
      const int64_t end = std::min(rows, first + group);
      Words sums{};
      for (int64_t w = 0; w < words; w += kWords) {
        Words any{};
        for (int64_t r = first; r < end; ++r) {
          Words v;
          Load(bits + r * words + w, words - w, &v);
          any |= v;
        }
        Bytes set{};
        AddSetBits(any, &set);
        Flush(&set, &sums);
      }
      total += Sum(sums);
    }
    return total;
  }
};

#if defined(__x86_64__)

PITC_V3 void CountV3(const uint64_t* bits, int64_t rows, int64_t words, const CountRules& rules,
                     uint64_t* columns, MicroTileCounts* counts) {
  Counter<32>::CountAll(bits, rows, words, rules, columns, counts);
}

PITC_V4 void CountV4(const uint64_t* bits, int64_t rows, int64_t words, const CountRules& rules,
                     uint64_t* columns, MicroTileCounts* counts) {
  Counter<64>::CountAll(bits, rows, words, rules, columns, counts);
}

PITC_V3 int64_t GroupsV3(const uint64_t* bits, int64_t rows, int64_t words, int64_t group) {
  return Counter<32>::CountGroups(bits, rows, words, group);
}

PITC_V4 int64_t GroupsV4(const uint64_t* bits, int64_t rows, int64_t words, int64_t group) {
  return Counter<64>::CountGroups(bits, rows, words, group);
}

#endif  // __x86_64__

void Count(CpuLevel level, const uint64_t* bits, int64_t rows, int64_t words,
           const CountRules& rules, uint64_t* columns, MicroTileCounts* counts) {
#if defined(__x86_64__)
  if (level == CpuLevel::kV4) return CountV4(bits, rows, words, rules, columns, counts);
  if (level == CpuLevel::kV3) return CountV3(bits, rows, words, rules, columns, counts);
#endif
  static_cast<void>(level);
  Counter<16>::CountAll(bits, rows, words, rules, columns, counts);
}

int64_t Groups(CpuLevel level, const uint64_t* bits, int64_t rows, int64_t words, int64_t group) {
#if defined(__x86_64__)
  if (level == CpuLevel::kV4) return GroupsV4(bits, rows, words, group);
  if (level == CpuLevel::kV3) return GroupsV3(bits, rows, words, group);
#endif
  static_cast<void>(level);
  return Counter<16>::CountGroups(bits, rows, words, group);
}

}  // namespace

MicroTileCounts& MicroTileCounts::operator+=(const MicroTileCounts& other) {
  const auto add = [](auto& to, const auto& from) {
    std::transform(std::begin(to), std::end(to), std::begin(from), std::begin(to), std::plus<>());
  };
  rows += other.rows;
  elements += other.elements;
  add(strips, other.strips);
  add(segments, other.segments);
  add(squares, other.squares);
  add(segment_steps, other.segment_steps);
  return *this;
}

MicroTileCounts CountMicroTiles(CpuLevel level, const uint64_t* bits, int64_t rows, int64_t k,
                                const CountRules& rules, uint64_t* columns) {
  MicroTileCounts counts;
  Count(level, bits, rows, BitWords(k), rules, columns, &counts);
  return counts;
}

int64_t CountBits(CpuLevel level, const uint64_t* words, int64_t n) {
  return Groups(level, words, 1, n, 1);
}

int64_t CountStrips(CpuLevel level, const uint64_t* bits, int64_t rows, int64_t k, int64_t group) {
  return Groups(level, bits, rows, BitWords(k), group);
}

}  // namespace pitc

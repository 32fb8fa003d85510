// Counts of micro-tiles from bits.
#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <numeric>

#include "detect/cpu_targets.h"
#include "detect/micro_tiles.h"

namespace pitc {
namespace {

// Inlined into functions with a target each, whose vectors it then uses.
#define PITC_INLINE __attribute__((always_inline))

constexpr int64_t kLow = 8, kHigh = 32;  // rows that are counted together, and so many of them
constexpr int kHeights = static_cast<int>(std::size(kStripHeights));
constexpr int kWidths = static_cast<int>(std::size(kSegmentWidths));

constexpr bool AreCounted(const int64_t* heights, int n) {
  return n == 0 ||
         (heights[0] % kLow == 0 && kHigh % heights[0] == 0 && AreCounted(heights + 1, n - 1));
}
static_assert(kWidths == 3 && kSegmentWidths[0] == 16, "lanes of 16, 32 and 64 bits are counted");
static_assert(AreCounted(kStripHeights, kHeights), "CountBlock counts strips of whole eights");

alignas(64) constexpr uint64_t kDeadRow[8] = {};

// Works on kBytes of a row's bits at a time, and on half as many where fewer are left.
template <int kBytes>
struct Counter {
  typedef uint64_t Words __attribute__((vector_size(kBytes)));
  typedef uint32_t Halves __attribute__((vector_size(kBytes)));
  typedef uint16_t Quarters __attribute__((vector_size(kBytes)));
  using Rest = Counter<kBytes / 2>;
  static constexpr int64_t kWords = kBytes / 8;

  // Adds the number of set bits of each byte to that byte.
  static PITC_INLINE void AddSetBits(const Words& words, Words* counts) {
    Words v = words;
    v -= v >> 1 & 0x5555555555555555;
    v = (v & 0x3333333333333333) + (v >> 2 & 0x3333333333333333);
    *counts += (v + (v >> 4)) & 0x0f0f0f0f0f0f0f0f;
  }

  // Adds lanes of kBits bits to the sums of their words.
  template <int kBits>
  static PITC_INLINE void AddLanes(const Words& lanes, Words* sums) {
    Words v = lanes;
    if (kBits <= 8) v = (v & 0x00ff00ff00ff00ff) + (v >> 8 & 0x00ff00ff00ff00ff);
    if (kBits <= 16) v = (v & 0x0000ffff0000ffff) + (v >> 16 & 0x0000ffff0000ffff);
    if (kBits <= 32) v = (v & 0xffffffff) + (v >> 32);
    *sums += v;
  }

  static PITC_INLINE int64_t Sum(const Words& v) {
    int64_t words[kWords];
    memcpy(words, &v, sizeof v);
    return std::accumulate(words, words + kWords, int64_t{0});
  }

  // Adds 1 to each lane that is 0 in v.
  template <class Lanes>
  static PITC_INLINE void AddDead(const Words& v, Lanes* dead) {
    *dead -= reinterpret_cast<Lanes>(reinterpret_cast<Lanes>(v) == 0);
  }

  // One vector of each of some rows.
  struct Block {
    Words digits[3]{};  // in binary, how many elements of each column live, modulo 8
    Quarters dead16{};
    Halves dead32{};
    Words dead64{};
  };

  // Counts rows r..r + kRows, as far as there are so many, and or-s them to `any`. Bits of `carry`
  // stand for kRows live elements of a column each, which are still to be added to the digits.
  template <int kRows>
  static PITC_INLINE void AddRows(const uint64_t* bits, int64_t r, int64_t rows, int64_t stride,
                                  Block* block, Words* any, Words* carry) {
    if constexpr (kRows == 1) {
      memcpy(carry, r < rows ? bits + r * stride : kDeadRow, sizeof *carry);
      AddDead(*carry, &block->dead16);
      AddDead(*carry, &block->dead32);
      AddDead(*carry, &block->dead64);
      *any |= *carry;
    } else {
      constexpr int kHalf = kRows / 2;
      Words a, b, &digit = block->digits[kHalf / 2];
      AddRows<kHalf>(bits, r, rows, stride, block, any, &a);
      AddRows<kHalf>(bits, r + kHalf, rows, stride, block, any, &b);
      *carry = (a & b) | (digit & (a | b));
      digit ^= a ^ b;
    }
  }

  struct Sums {
    Words ones{}, eights{};  // live elements, one by one and by eight
    Words strips[kHeights]{}, dead[kWidths]{};
    int64_t vectors = 0;
  };

  // Counts one vector of each of at most kHigh rows, and or-s the live columns into `columns`.
  static PITC_INLINE void CountBlock(const uint64_t* bits, int64_t rows, int64_t stride, Sums* sums,
                                     Words* columns) {
    Block block;
    Words ones{}, eights{}, all{}, open[kHeights]{}, strips[kHeights]{};
    for (int64_t r = 0; r < rows; r += kLow) {
      Words any{}, carry;
      AddRows<kLow>(bits, r, rows, stride, &block, &any, &carry);
      AddSetBits(carry, &eights);
      all |= any;
      for (int i = 0; i < kHeights && kStripHeights[i] < kHigh; ++i) {
        open[i] |= any;
        if ((r + kLow) % kStripHeights[i] && r + kLow < rows) continue;
        AddSetBits(open[i], &strips[i]);
        open[i] = Words{};
      }
      sums->vectors += kLow;
    }
    for (int i = 2; i >= 0; --i) {
      ones += ones;
      AddSetBits(block.digits[i], &ones);
    }
    AddLanes<8>(ones, &sums->ones);
    AddLanes<8>(eights, &sums->eights);
    for (int i = 0; i < kHeights; ++i) {
      if (kStripHeights[i] == kHigh) AddSetBits(all, &strips[i]);
      AddLanes<8>(strips[i], &sums->strips[i]);
    }
    AddLanes<16>(reinterpret_cast<Words>(block.dead16), &sums->dead[0]);
    AddLanes<32>(reinterpret_cast<Words>(block.dead32), &sums->dead[1]);
    sums->dead[2] += block.dead64;
    *columns |= all;
  }

  // Counts the first `words` words of rows that are `stride` words apart.
  static PITC_INLINE void CountAll(const uint64_t* bits, int64_t rows, int64_t words,
                                   int64_t stride, uint64_t* columns, MicroTileCounts* counts) {
    const int64_t whole = words / kWords * kWords;
    if (whole > 0) {
      Sums sums;
      for (int64_t r = 0; r < rows; r += kHigh) {
        const int64_t n = std::min(kHigh, rows - r);
        for (int64_t w = 0; w < whole; w += kWords) {
          Words live{};
          if (columns) memcpy(&live, columns + w, sizeof live);
          CountBlock(bits + r * stride + w, n, stride, &sums, &live);
          if (columns) memcpy(columns + w, &live, sizeof live);
        }
      }
      counts->elements += Sum(sums.ones) + 8 * Sum(sums.eights);
      for (int i = 0; i < kHeights; ++i) counts->strips[i] += Sum(sums.strips[i]);
      for (int i = 0; i < kWidths; ++i) {
        counts->segments[i] += sums.vectors * kBytes * 8 / kSegmentWidths[i] - Sum(sums.dead[i]);
      }
    }
    if constexpr (kWords > 1) {
      Rest::CountAll(bits + whole, rows, words - whole, stride, columns ? columns + whole : nullptr,
                     counts);
    }
  }

  // Live strips of `group` rows in the first `words` words of rows `stride` words apart.
  static PITC_INLINE int64_t CountStrips(const uint64_t* bits, int64_t rows, int64_t words,
                                         int64_t stride, int64_t group) {
    const int64_t whole = words / kWords * kWords;
    Words sums{};
    for (int64_t first = 0; whole > 0 && first < rows; first += group) {
      const int64_t end = std::min(rows, first + group);
      for (int64_t w = 0; w < whole; w += kWords) {
        Words any{}, set{};
        for (int64_t r = first; r < end; ++r) {
          Words v;
          memcpy(&v, bits + r * stride + w, sizeof v);
          any |= v;
        }
        AddSetBits(any, &set);
        AddLanes<8>(set, &sums);
      }
    }
    int64_t count = Sum(sums);
    if constexpr (kWords > 1)
      count += Rest::CountStrips(bits + whole, rows, words - whole, stride, group);
    return count;
  }

  // How many lanes of kBits bits of the vectors in words[0..n) are not 0.
  template <class Lanes, int kBits>
  static PITC_INLINE int64_t CountLanes(const uint64_t* words, int64_t n) {
    constexpr int64_t kMost = kWords << 15;  // words, until a lane of 16 bits is full
    const int64_t whole = n / kWords * kWords;
    Words sums{};
    for (int64_t first = 0; first < whole; first += kMost) {
      Lanes dead{};
      for (int64_t w = first; w < std::min(whole, first + kMost); w += kWords) {
        Words v;
        memcpy(&v, words + w, sizeof v);
        AddDead(v, &dead);
      }
      AddLanes<kBits>(reinterpret_cast<Words>(dead), &sums);
    }
    return whole * 64 / kBits - Sum(sums);
  }

  static PITC_INLINE int64_t CountSegments(const uint64_t* words, int64_t n, int64_t width) {
    int64_t count = width == 16   ? CountLanes<Quarters, 16>(words, n)
                    : width == 32 ? CountLanes<Halves, 32>(words, n)
                                  : CountLanes<Words, 64>(words, n);
    if constexpr (kWords > 1)
      count += Rest::CountSegments(words + n / kWords * kWords, n % kWords, width);
    return count;
  }
};

#if defined(__x86_64__)

template <class Body>
PITC_V3 auto OnV3(const Body& body) {
  return body(Counter<32>());
}

template <class Body>
PITC_V4 auto OnV4(const Body& body) {
  return body(Counter<64>());
}

// Four sums, for an addition waits for the one before it.
PITC_V3 int64_t CountBitsV3(const uint64_t* words, int64_t n) {
  int64_t counts[4] = {}, w = 0;
  for (; w + 4 <= n; w += 4) {
    for (int64_t i = 0; i < 4; ++i) counts[i] += _mm_popcnt_u64(words[w + i]);
  }
  for (; w < n; ++w) counts[0] += _mm_popcnt_u64(words[w]);
  return std::accumulate(counts, counts + 4, int64_t{0});
}

#endif  // __x86_64__

// What `body` answers with the counter for a level.
template <class Body>
auto On(CpuLevel level, const Body& body) {
#if defined(__x86_64__)
  if (level == CpuLevel::kV4) return OnV4(body);
  if (level == CpuLevel::kV3) return OnV3(body);
#endif
  static_cast<void>(level);
  return body(Counter<16>());
}

}  // namespace

MicroTileCounts& MicroTileCounts::operator+=(const MicroTileCounts& other) {
  const auto add = [](auto& to, const auto& from) {
    std::transform(std::begin(to), std::end(to), std::begin(from), std::begin(to), std::plus<>());
  };
  elements += other.elements;
  add(strips, other.strips);
  add(segments, other.segments);
  return *this;
}

MicroTileCounts CountMicroTiles(CpuLevel level, const uint64_t* bits, int64_t rows, int64_t k,
                                uint64_t* columns) {
  const int64_t words = BitWords(k);
  return On(level, [=](auto counter) PITC_INLINE {
    MicroTileCounts counts;
    counter.CountAll(bits, rows, words, words, columns, &counts);
    return counts;
  });
}

int64_t CountBits(CpuLevel level, const uint64_t* words, int64_t n) {
#if defined(__x86_64__)
  if (level != CpuLevel::kBaseline) return CountBitsV3(words, n);
#endif
  return CountStrips(level, words, 1, n * 64, 1);
}

int64_t CountStrips(CpuLevel level, const uint64_t* bits, int64_t rows, int64_t k, int64_t group) {
  const int64_t words = BitWords(k);
  return On(level, [=](auto counter) PITC_INLINE {
    return counter.CountStrips(bits, rows, words, words, group);
  });
}

int64_t CountSegments(CpuLevel level, const uint64_t* bits, int64_t rows, int64_t k,
                      int64_t width) {
  const int64_t words = rows * BitWords(k);  // a segment is part of one
  return On(level,
            [=](auto counter) PITC_INLINE { return counter.CountSegments(bits, words, width); });
}

}  // namespace pitc

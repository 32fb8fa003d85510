// Counts of micro-tiles from bits.
#include "simd/level.h"

namespace pitc::PITC_LEVEL {
namespace {

constexpr int64_t kLow = 8, kHigh = 32;  // rows that are counted together, and so many of them

constexpr bool AreCounted(const int64_t* heights, int n) {
  return n == 0 ||
         (heights[0] % kLow == 0 && kHigh % heights[0] == 0 && AreCounted(heights + 1, n - 1));
}
static_assert(kSegmentKinds == 3 && kSegmentWidths[0] == 16,
              "lanes of 16, 32 and 64 bits are counted");
static_assert(AreCounted(kStripHeights, kStripKinds), "CountBlock counts strips of whole eights");

alignas(64) constexpr uint64_t kDeadRow[8] = {};

// Works on kSize bytes of a row's bits at a time, and on half as many where fewer are left.
template <int kSize>
struct Counter {
  typedef uint64_t Words __attribute__((vector_size(kSize)));
  typedef uint32_t Halves __attribute__((vector_size(kSize)));
  typedef uint16_t Quarters __attribute__((vector_size(kSize)));
  using Rest = Counter<kSize / 2>;
  static constexpr int64_t kWords = kSize / 8;

  // Adds the number of set bits of each byte to that byte.
  [[gnu::always_inline]] static void AddSetBits(const Words& words, Words* counts) {
    Words v = words;
    v -= v >> 1 & 0x5555555555555555;
    v = (v & 0x3333333333333333) + (v >> 2 & 0x3333333333333333);
    *counts += (v + (v >> 4)) & 0x0f0f0f0f0f0f0f0f;
  }

  // Adds lanes of kBits bits to the sums of their words.
  template <int kBits>
  [[gnu::always_inline]] static void AddLanes(const Words& lanes, Words* sums) {
    Words v = lanes;
    if (kBits <= 8) v = (v & 0x00ff00ff00ff00ff) + (v >> 8 & 0x00ff00ff00ff00ff);
    if (kBits <= 16) v = (v & 0x0000ffff0000ffff) + (v >> 16 & 0x0000ffff0000ffff);
    if (kBits <= 32) v = (v & 0xffffffff) + (v >> 32);
    *sums += v;
  }

  static int64_t Sum(const Words& v) {
    int64_t words[kWords];
    __builtin_memcpy(words, &v, sizeof v);
    int64_t sum = 0;
    for (int64_t word : words) sum += word;
    return sum;
  }

  // Adds 1 to each lane that is 0 in v.
  template <class Lanes>
  [[gnu::always_inline]] static void AddDead(const Words& v, Lanes* dead) {
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
  [[gnu::always_inline]] static void AddRows(const uint64_t* bits, int64_t r, int64_t rows,
                                             int64_t stride, Block* block, Words* any,
                                             Words* carry) {
    if constexpr (kRows == 1) {
      __builtin_memcpy(carry, r < rows ? bits + r * stride : kDeadRow, sizeof *carry);
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
    Words strips[kStripKinds]{}, dead[kSegmentKinds]{};
    int64_t vectors = 0;
  };

  // Counts one vector of each of at most kHigh rows, and or-s the live columns into `columns`.
  [[gnu::always_inline]] static void CountBlock(const uint64_t* bits, int64_t rows, int64_t stride,
                                                Sums* sums, Words* columns) {
    Block block;
    Words ones{}, eights{}, all{}, open[kStripKinds]{}, strips[kStripKinds]{};
    for (int64_t r = 0; r < rows; r += kLow) {
      Words any{}, carry;
      AddRows<kLow>(bits, r, rows, stride, &block, &any, &carry);
      AddSetBits(carry, &eights);
      all |= any;
      for (int i = 0; i < kStripKinds && kStripHeights[i] < kHigh; ++i) {
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
    for (int i = 0; i < kStripKinds; ++i) {
      if (kStripHeights[i] == kHigh) AddSetBits(all, &strips[i]);
      AddLanes<8>(strips[i], &sums->strips[i]);
    }
    AddLanes<16>(reinterpret_cast<Words>(block.dead16), &sums->dead[0]);
    AddLanes<32>(reinterpret_cast<Words>(block.dead32), &sums->dead[1]);
    sums->dead[2] += block.dead64;
    *columns |= all;
  }

  // Counts the first `words` words of rows that are `stride` words apart.
  static void CountAll(const uint64_t* bits, int64_t rows, int64_t words, int64_t stride,
                       uint64_t* columns, MicroTileCounts* counts) {
    const int64_t whole = words / kWords * kWords;
    if (whole > 0) {
      Sums sums;
      for (int64_t r = 0; r < rows; r += kHigh) {
        const int64_t n = Min(kHigh, rows - r);
        for (int64_t w = 0; w < whole; w += kWords) {
          Words live{};
          if (columns) __builtin_memcpy(&live, columns + w, sizeof live);
          CountBlock(bits + r * stride + w, n, stride, &sums, &live);
          if (columns) __builtin_memcpy(columns + w, &live, sizeof live);
        }
      }
      counts->elements += Sum(sums.ones) + 8 * Sum(sums.eights);
      for (int i = 0; i < kStripKinds; ++i) counts->strips[i] += Sum(sums.strips[i]);
      for (int i = 0; i < kSegmentKinds; ++i) {
        counts->segments[i] += sums.vectors * kSize * 8 / kSegmentWidths[i] - Sum(sums.dead[i]);
      }
    }
    if constexpr (kWords > 1) {
      Rest::CountAll(bits + whole, rows, words - whole, stride, columns ? columns + whole : nullptr,
                     counts);
    }
  }
};

}  // namespace

void CountMicroTiles(const uint64_t* bits, int64_t rows, int64_t k, uint64_t* columns,
                     MicroTileCounts* counts) {
  const int64_t words = BitWords(k);
  Counter<kBytes>::CountAll(bits, rows, words, words, columns, counts);
}

// Four sums, for an addition waits for the one before it.
int64_t CountBits(const uint64_t* words, int64_t n) {
  int64_t counts[4] = {}, w = 0;
  for (; w + 4 <= n; w += 4) {
    for (int64_t i = 0; i < 4; ++i) counts[i] += __builtin_popcountll(words[w + i]);
  }
  for (; w < n; ++w) counts[0] += __builtin_popcountll(words[w]);
  return counts[0] + counts[1] + counts[2] + counts[3];
}

}  // namespace pitc::PITC_LEVEL

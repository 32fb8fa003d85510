// How long the detector takes, in microseconds of one thread's CPU time, as JSON: bits, counts and
// each kind of list for a matrix that stands in the cache or in memory, beside a loop that only
// reads it.
//
// usage: micro_tiles_bench [baseline|v3|v4] [ROWS K]
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "detect/micro_tiles.h"

namespace {

using pitc::CpuLevel;
using pitc::Primitives;
using pitc::test::Random;

double Now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

// The least of some runs.
template <class Body>
double Best(const Body& body) {
  double best = 1e30;
  const double stop = Now() + 100e3;
  for (int run = 0; run < 5 || Now() < stop; ++run) {
    const double start = Now();
    body();
    best = std::min(best, Now() - start);
  }
  return best;
}

volatile uint64_t sink;

#if defined(__x86_64__)
typedef uint64_t Vector32 __attribute__((vector_size(32)));
typedef uint64_t Vector64 __attribute__((vector_size(64)));

// Or-s everything, by the widest loads that the level has.
template <class Vector>
__attribute__((always_inline)) inline void ReadAll(const float* data, int64_t n) {
  constexpr int64_t kFloats = sizeof(Vector) / 4;
  Vector all[4] = {};
  for (int64_t i = 0; i + 4 * kFloats <= n; i += 4 * kFloats) {
    for (int j = 0; j < 4; ++j) {
      Vector v;
      memcpy(&v, data + i + kFloats * j, sizeof v);
      all[j] |= v;
    }
  }
  for (const Vector& v : all) sink = v[0] | v[3];
}

__attribute__((target("avx2"))) void ReadV3(const float* data, int64_t n) {
  ReadAll<Vector32>(data, n);
}
__attribute__((target("avx512f"))) void ReadV4(const float* data, int64_t n) {
  ReadAll<Vector64>(data, n);
}
#endif

void Read(CpuLevel level, const float* data, int64_t n) {
#if defined(__x86_64__)
  if (level >= CpuLevel::kV4) return ReadV4(data, n);
  if (level == CpuLevel::kV3) return ReadV3(data, n);
#endif
  for (int64_t i = 0; i < n; i += 16) sink = static_cast<uint64_t>(data[i]);
}

struct Matrix {
  int64_t rows, k;
  std::vector<float> a;
  std::vector<uint64_t> bits;

  // Live micro-tiles of height x width, one in a thousand per mille.
  Matrix(int64_t all_rows, int64_t all_k, int64_t height, int64_t width, int64_t live)
      : rows(all_rows), k(all_k), a(static_cast<size_t>(rows * k)) {
    Random random(7);
    for (int64_t r = 0; r < rows; r += height) {
      for (int64_t c = 0; c < k; c += width) {
        if (random.Below(1000) >= live) continue;
        for (int64_t i = r; i < std::min(rows, r + height); ++i) {
          for (int64_t j = c; j < std::min(k, c + width); ++j)
            a[static_cast<size_t>(i * k + j)] = 1;
        }
      }
    }
    bits.resize(static_cast<size_t>(rows * pitc::BitWords(k)));
  }

  void Detect(const Primitives& simd) {
    const int64_t words = pitc::BitWords(k);
    for (int64_t r = 0; r < rows; ++r) {
      simd.live_bits(pitc::Live::kNotZero, a.data() + r * k, k, bits.data() + r * words);
    }
  }
};

void Bandwidth(const Primitives& simd, const char* name, int64_t rows, int64_t k, int64_t repeat) {
  Matrix m(rows, k, 1, 1, 100);
  const double bytes = static_cast<double>(rows * k * repeat) * 4;
  double read = 1e30, detect = 1e30;
  for (int round = 0; round < 5; ++round) {
    read = std::min(read, Best([&] {
                      for (int64_t i = 0; i < repeat; ++i) Read(simd.level, m.a.data(), rows * k);
                    }));
    detect = std::min(detect, Best([&] {
                        for (int64_t i = 0; i < repeat; ++i) m.Detect(simd);
                      }));
  }
  printf("  \"%s\": {\"read_gbytes_per_s\": %.1f, \"bits_gbytes_per_s\": %.1f, \"share\": %.3f},\n",
         name, bytes / read / 1e3, bytes / detect / 1e3, read / detect);
}

// Everything for blocks of 512 rows, as a node does it.
void Lists(const Primitives& simd, int64_t rows, int64_t k, int64_t height, int64_t width,
           int64_t live, bool last) {
  Matrix m(rows, k, height, width, live);
  const int64_t words = pitc::BitWords(k);
  const double bits = Best([&] { m.Detect(simd); });
  pitc::MicroTileCounts counts;
  std::vector<uint64_t> columns(static_cast<size_t>(words));
  const double count = Best([&] {
    counts = {};
    for (int64_t r = 0; r < rows; r += 32) {
      simd.count_micro_tiles(m.bits.data() + r * words, std::min<int64_t>(32, rows - r), k,
                             columns.data(), &counts);
    }
  });
  constexpr int64_t kBlock = 512;
  const auto blocks = [&](const auto& fill) {
    return Best([&] {
      for (int64_t r = 0; r < rows; r += kBlock) {
        fill(pitc::DetectedRows{{m.a.data() + r * k, nullptr, std::min(kBlock, rows - r), k, k},
                                m.bits.data() + r * words});
      }
    });
  };
  std::vector<int32_t> starts(static_cast<size_t>(kBlock * words + 1)), ks;
  std::vector<float> values;
  const auto room = [&](int64_t entries, int64_t size) {
    if (static_cast<int64_t>(ks.size()) < entries) ks.resize(static_cast<size_t>(entries));
    if (static_cast<int64_t>(values.size()) < entries * size)
      values.resize(static_cast<size_t>(entries * size));
  };
  printf("    \"%dx%d at %.1f %% zeros\": {\"bits\": %.0f, \"counts\": %.0f",
         static_cast<int>(height), static_cast<int>(width), 100 - static_cast<double>(live) / 10,
         bits, count);
  room(counts.elements, 1);
  for (int64_t k_block : {int64_t{512}, words * 64}) {
    printf(", \"rows k%d\": %.0f", static_cast<int>(k_block), blocks([&](const auto& block) {
             pitc::FillRowLists(simd, block, k_block,
                                simd.count_bits(block.bits, block.Count() * words), values.data(),
                                ks.data(), starts.data());
           }));
  }
  const auto counted = [&](const auto& block) {
    pitc::MicroTileCounts found;
    simd.count_micro_tiles(block.bits, block.Count(), k, nullptr, &found);
    return found;
  };
  for (int i = 0; i < pitc::kStripKinds; ++i) {
    const int64_t group = pitc::kStripHeights[i];
    room(counts.strips[i], group);
    printf(", \"tiles %dx1\": %.0f", static_cast<int>(group), blocks([&](const auto& block) {
             pitc::FillTileLists(simd, block, group, counted(block).strips[i], values.data(),
                                 ks.data(), starts.data());
           }));
  }
  for (int i = 0; i < pitc::kSegmentKinds; ++i) {
    const int64_t w = pitc::kSegmentWidths[i];
    room(counts.segments[i], w);
    printf(", \"blocks 1x%d\": %.0f", static_cast<int>(w), blocks([&](const auto& block) {
             counted(block);
             pitc::FillBlockLists(block, w, values.data(), ks.data(), starts.data());
           }));
  }
  printf("}%s\n", last ? "" : ",");
}

}  // namespace

int main(int argc, char** argv) {
  CpuLevel level = pitc::MachineCpuLevel();
  for (CpuLevel other : {CpuLevel::kBaseline, CpuLevel::kV3}) {
    if (argc > 1 && std::string(argv[1]) == pitc::Name(other)) level = other;
  }
  const Primitives& simd = pitc::PrimitivesOf(level);
  const int64_t rows = argc > 3 ? atoll(argv[2]) : 2048, k = argc > 3 ? atoll(argv[3]) : 2048;
  printf("{\n  \"level\": \"%s\", \"rows\": %d, \"k\": %d,\n", pitc::Name(level),
         static_cast<int>(rows), static_cast<int>(k));
  Bandwidth(simd, "L2, 512 KB", 64, 2048, 50);
  Bandwidth(simd, "L3, 8 MB", 1024, 2048, 1);
  Bandwidth(simd, "memory, 256 MB", 32768, 2048, 1);
  printf("  \"us\": {\n");
  constexpr int64_t kPatterns[][2] = {{1, 1}, {32, 1}, {1, 32}, {1, 64}, {32, 32}, {32, 64}};
  constexpr int64_t kLive[] = {500, 200, 100, 50, 10};
  for (const auto& pattern : kPatterns) {
    for (int64_t live : kLive) {
      Lists(simd, rows, k, pattern[0], pattern[1], live,
            pattern[1] == 64 && pattern[0] == 32 && live == 10);
    }
  }
  printf("  }\n}\n");
  return 0;
}

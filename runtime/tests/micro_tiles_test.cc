#include "micro_tiles.h"

#include <cmath>
#include <limits>

#include "check.h"
#include "micro_tiles_check.h"

using pitc::BitWords;
using pitc::CpuLevel;
using pitc::test::DetectorCase;
using pitc::test::Guarded;
using pitc::test::Levels;
using pitc::test::Random;

namespace {

float FromBits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

// Not zero: ones, all kinds of NaN (quiet, signalling, negative), infinities, the least and largest
// denormals.
constexpr uint32_t kLive[] = {0x3f800000, 0xbf800000, 0x7fc00000, 0x7f800001, 0xffc00001,
                              0x7f800000, 0xff800000, 0x00000001, 0x80000001, 0x007fffff,
                              0x00010000, 0x80000100, 0x00800000, 0x7f7fffff};
constexpr uint32_t kDead[] = {0, 0x80000000};

template <size_t kCount>
float Pick(Random& random, const uint32_t (&bits)[kCount]) {
  return FromBits(bits[random.Below(kCount)]);
}

void Check(const DetectorCase& c) {
  for (CpuLevel level : Levels()) {
    const std::string wrong = pitc::test::WrongAnswer(level, c);
    CHECK(wrong.empty());
    if (wrong.empty()) continue;
    printf("%s on %s: %d x %d, k_block %d, group %d, width %d\n", wrong.c_str(), pitc::Name(level),
           static_cast<int>(c.rows), static_cast<int>(c.k), static_cast<int>(c.k_block),
           static_cast<int>(c.group), static_cast<int>(c.width));
  }
}

template <size_t kCount>
int64_t One(Random& random, const int64_t (&of)[kCount]) {
  return of[random.Below(kCount)];
}

// Micro-tiles of some size that live with some probability.
DetectorCase RandomCase(Random& random, int64_t rows, int64_t k, int64_t live_of_100) {
  DetectorCase c;
  c.rows = rows;
  c.k = k;
  c.k_block = One(random, {64, 128, 192, 512, 1 << 20});
  c.group = One(random, {4, 8, 12, 16, 32, 36, 64, 512});
  c.width = One(random, {16, 32, 64});
  c.rules.tile_rows = One(random, {1, 4, 5, 6});
  c.rules.list_rows = One(random, {32, 64, 512, 65504});
  c.at_begin = random.Below(2);
  c.denormals_are_zero = random.Below(2);
  const int64_t height = One(random, {1, 1, 4, 32}), width = One(random, {1, 1, 16, 64});
  c.a.resize(static_cast<size_t>(rows * k));
  for (float& value : c.a) value = Pick(random, kDead);
  for (int64_t r = 0; r < rows; r += height) {
    for (int64_t i = 0; i < k; i += width) {
      if (random.Below(100) >= live_of_100) continue;
      for (int64_t y = r; y < std::min(rows, r + height); ++y) {
        for (int64_t x = i; x < std::min(k, i + width); ++x)
          c.a[static_cast<size_t>(y * k + x)] = Pick(random, kLive);
      }
    }
  }
  return c;
}

constexpr int64_t kDensities[] = {0, 1, 5, 30, 70, 99, 100};

void AllLengths() {
  Random random(4);
  for (int64_t n = 0; n <= 200; ++n) {
    for (int64_t live : kDensities) {
      for (int64_t shift = 0; shift < 4; ++shift) {
        Guarded<float> row(n + shift);  // ends at a page, so that `shift` moves what is behind it
        for (int64_t i = 0; i < n; ++i)
          row[i] = random.Below(100) < live ? Pick(random, kLive) : Pick(random, kDead);
        for (CpuLevel level : Levels()) {
          Guarded<uint64_t> bits(BitWords(n));
          pitc::LiveBits(level, pitc::Live::kNotZero, row.data(), n, bits.data());
          bool good = true;
          for (int64_t i = 0; i < BitWords(n) * 64; ++i)
            good &= (bits[i / 64] >> i % 64 & 1) == (i < n && !(row[i] == 0));
          CHECK(good);
        }
      }
    }
  }
}

void EveryKindOfNumber() {
  for (bool denormals_are_zero : {false, true}) {
    for (uint32_t bits : kLive) {
      DetectorCase c;
      c.rows = 4, c.k = 67;
      c.denormals_are_zero = denormals_are_zero;
      c.a.assign(static_cast<size_t>(c.rows * c.k), FromBits(bits));
      c.a[70] = -0.0f;
      Check(c);
      c.a.assign(c.a.size(), -0.0f);
      c.a[80] = FromBits(bits);
      Check(c);
    }
  }
}

void Shapes() {
  Random random(5);
  for (int64_t rows : {0, 1, 2, 4, 5, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97}) {
    for (int64_t k : {1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 511, 512, 577}) {
      Check(RandomCase(random, rows, k, kDensities[random.Below(7)]));
    }
  }
}

// More than a chunk of words, more than a chunk of entries, several lists of rows.
void LargeMatrices() {
  Random random(6);
  for (int64_t live : {0, 1, 10, 60, 100}) Check(RandomCase(random, 67, 4096 + 200, live));
  for (int64_t live : {2, 50}) Check(RandomCase(random, 1100, 70, live));
}

void OneLiveElement() {
  DetectorCase c;
  c.rows = 5, c.k = 130;
  c.a.resize(static_cast<size_t>(c.rows * c.k));
  for (float& value : c.a) {
    value = 2;
    Check(c);
    value = 0;
  }
}

void RowsFromAList() {
  Random random(7);
  for (int64_t k : {1, 64, 100}) {
    for (int64_t rows : {1, 7, 40}) {
      DetectorCase c = RandomCase(random, 3 * rows, k, 40);
      c.rows = rows;
      for (int64_t r = 0; r < rows; ++r)
        c.list.push_back(static_cast<int32_t>(3 * r + random.Below(3)));
      Check(c);
    }
  }
}

// Counts of parts, and columns collected over parts.
void CountsAddUp() {
  Random random(8);
  const DetectorCase c = RandomCase(random, 150, 200, 20);
  const int64_t words = BitWords(c.k);
  for (CpuLevel level : Levels()) {
    std::vector<uint64_t> bits(static_cast<size_t>(c.rows * words));
    for (int64_t r = 0; r < c.rows; ++r)
      pitc::LiveBits(level, pitc::Live::kNotZero, c.a.data() + r * c.k, c.k,
                     bits.data() + r * words);
    const pitc::CountRules rules{32, 6};
    std::vector<uint64_t> columns(static_cast<size_t>(words)), part_columns(columns);
    const auto whole =
        pitc::CountMicroTiles(level, bits.data(), c.rows, c.k, rules, columns.data());
    pitc::MicroTileCounts sum;
    for (int64_t r = 0; r < c.rows; r += 64) {
      sum +=
          pitc::CountMicroTiles(level, bits.data() + r * words, std::min<int64_t>(64, c.rows - r),
                                c.k, rules, part_columns.data());
    }
    CHECK(!memcmp(&sum, &whole, sizeof sum) && sum.elements > 0);
    CHECK(columns == part_columns);
  }
}

// A row is a page; dead rows may not even be touched.
void DeadRowsAreNotRead() {
  const auto page = sysconf(_SC_PAGESIZE);
  const int64_t rows = 24, k = page / 4, words = BitWords(k);
  for (CpuLevel level : Levels()) {
    Guarded<float> a(rows * k);
    std::fill_n(a.data(), rows * k, 0.0f);
    for (int64_t r : {0, 1, 2, 3, 20, 21, 22, 23}) a[r * k + 7 * r] = 1;
    std::vector<uint64_t> bits(static_cast<size_t>(rows * words));
    for (int64_t r = 0; r < rows; ++r)
      pitc::LiveBits(level, pitc::Live::kNotZero, a.data() + r * k, k, bits.data() + r * words);
    CHECK(!mprotect(a.data() + 4 * k, static_cast<size_t>(16 * page), PROT_NONE));
    const pitc::DetectedRows detected{a.data(), nullptr, bits.data(), rows, k};
    std::vector<int32_t> starts(static_cast<size_t>(rows * words + 1)), index(8);
    std::vector<float> values(8 * 64);
    pitc::FillRowLists(level, detected, 512, 8, values.data(), index.data(), starts.data());
    CHECK(values[7] == 1 && index[7] == 7 * 23);
    pitc::FillTileLists(level, detected, 4, 8, values.data(), index.data(), starts.data());
    CHECK(values[7 * 4 + 3] == 1 && index[7] == 7 * 23 && starts[6] == 8);
    for (int64_t width : pitc::kSegmentWidths) {
      pitc::FillBlockLists(detected, width, values.data(), index.data(), starts.data());
      CHECK(starts[k / width] == 8);
    }
    CHECK(!mprotect(a.data() + 4 * k, static_cast<size_t>(16 * page), PROT_READ | PROT_WRITE));
  }
}

// Places beyond 2^32 bytes and 2^31 elements, where the system lends so many addresses.
void FarRows() {
  const int64_t k = 70001, words = BitWords(k);
  const int32_t list[] = {2, 40000};
  const auto size = static_cast<size_t>(40001 * k * 4);
  void* const memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;
  auto* const a = static_cast<float*>(memory);
  a[2 * k] = 3;
  a[40000 * k + k - 1] = 4;
  for (CpuLevel level : Levels()) {
    std::vector<uint64_t> bits(static_cast<size_t>(2 * words));
    const pitc::DetectedRows rows{a, list, bits.data(), 2, k};
    for (int64_t r = 0; r < 2; ++r)
      pitc::LiveBits(level, pitc::Live::kNotZero, rows.Row(r), k, bits.data() + r * words);
    CHECK(pitc::CountMicroTiles(level, bits.data(), 2, k).elements == 2);
    int32_t ks[2], starts[3];
    float values[2];
    pitc::FillRowLists(level, rows, words * 64, 2, values, ks, starts);
    CHECK(ks[0] == 0 && ks[1] == k - 1 && values[0] == 3 && values[1] == 4 && starts[1] == 1);
  }
  munmap(memory, size);
}

}  // namespace

int main() {
  printf("this CPU: %s\n", pitc::Name(pitc::MachineCpuLevel()));
  return pitc::test::RunTests({{"bits of all lengths, densities and alignments", AllLengths},
                               {"every kind of number, denormals as zero", EveryKindOfNumber},
                               {"shapes", Shapes},
                               {"large matrices", LargeMatrices},
                               {"one live element", OneLiveElement},
                               {"rows from a list", RowsFromAList},
                               {"counts add up", CountsAddUp},
                               {"dead rows are not read", DeadRowsAreNotRead},
                               {"far rows", FarRows}});
}

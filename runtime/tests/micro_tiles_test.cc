#include "detect/micro_tiles.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "check.h"
#include "micro_tiles_check.h"

using pitc::BitWords;
using pitc::Primitives;
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
  const std::string wrong = WrongAnswer(c);
  if (!wrong.empty()) printf("%s\n", wrong.c_str());
  CHECK(wrong.empty());
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
  c.gap = One(random, {0, 0, 1, 16, 70});
  c.first = One(random, {0, 0, 1, 64, 70});
  c.row_cut = random.Below(rows + 1);
  c.k_cut = random.Below(k / 64 + 1) * 64;
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
        for (const Primitives* simd : Levels()) {
          Guarded<uint64_t> bits(BitWords(n));
          simd->live_bits(pitc::Live::kNotZero, row.data(), n, bits.data());
          bool good = true;
          for (int64_t i = 0; i < BitWords(n) * 64; ++i)
            good &= (bits[i / 64] >> i % 64 & 1) == (i < n && !(row[i] == 0));
          CHECK(good);
        }
      }
    }
  }
}

// The nearest bfloat16, by the definition: the nearer one of two, of equal ones the even.
uint16_t Nearest(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (std::isnan(x)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  const uint32_t low = bits & 0xffff, cut = bits >> 16;
  const bool up = low > 0x8000 || (low == 0x8000 && cut % 2 == 1);
  return static_cast<uint16_t>(cut + up);
}

void WordsOfTwoNumbers() {
  Random random(7);
  const uint32_t odd[] = {0x7f7f7fff, 0x7f7f8000, 0x7f800000, 0xff800000, 0x7f800001, 0xffc00000,
                          0x00000001, 0x80000001, 0x3f808000, 0x3f818000, 0x3f808001, 0x80000000};
  for (int64_t n = 0; n <= 150; ++n) {
    for (int64_t live : kDensities) {
      Guarded<float> row(n);
      for (int64_t i = 0; i < n; ++i) {
        const bool lives = random.Below(100) < live;
        row[i] = !lives            ? Pick(random, kDead)
                 : random.Below(4) ? Pick(random, kLive)
                                   : FromBits(odd[random.Below(12)]);
        if (random.Below(2)) row[i] = -row[i];
      }
      for (const Primitives* simd : Levels()) {
        for (pitc::Live kind : {pitc::Live::kNotZero, pitc::Live::kPositive}) {
          Guarded<uint16_t> halves(n + n % 2);
          if (n % 2) halves[n] = 0;
          simd->round(kind, row.data(), n, halves.data());
          bool good = true;
          for (int64_t i = 0; i < n; ++i) {
            const bool none = kind == pitc::Live::kPositive && row[i] <= 0;
            good &= halves[i] == (none ? 0 : Nearest(row[i])) ||
                    (none && std::signbit(row[i]) && row[i] == 0 && halves[i] == 0);
          }
          CHECK(good);
          const int64_t words = (n + 1) / 2;
          Guarded<float> pairs(words);
          std::memcpy(pairs.data(), halves.data(), static_cast<size_t>(words) * 4);
          Guarded<uint64_t> bits(BitWords(words));
          simd->live_bits(pitc::Live::kWords, pairs.data(), words, bits.data());
          for (int64_t i = 0; i < BitWords(words) * 64; ++i) {
            const bool one = i < words && ((halves[2 * i] | halves[2 * i + 1]) & 0x7fff) != 0;
            good &= (bits[i / 64] >> i % 64 & 1) == one;
          }
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

// More than a chunk of words, more than a chunk of entries, many groups of rows.
void LargeMatrices() {
  Random random(6);
  for (int64_t live : {0, 1, 10, 60, 100}) Check(RandomCase(random, 67, 4096 + 200, live));
  for (int64_t live : {2, 50}) Check(RandomCase(random, 1100, 70, live));
}

// Rows that are read whole: the one that ends where nothing may be read comes first.
void FullRows() {
  Random random(8);
  for (int64_t k : {65, 100, 191, 1000}) {
    for (int64_t live : {10, 60, 100}) {
      DetectorCase c = RandomCase(random, 12, k, live);
      c.first = c.gap = c.at_begin = 0;
      for (int32_t r = 0; r < 12; ++r) c.list.push_back(11 - r);
      Check(c);
    }
  }
}

void OneLiveElement() {
  DetectorCase c;
  c.rows = 5, c.k = 130;
  c.a.resize(static_cast<size_t>(c.rows * c.k));
  for (size_t i = 0; i < c.a.size(); ++i) {
    c.a[i] = 2;
    c.gap = i % 3 ? 0 : 5;
    Check(c);
    c.a[i] = 0;
  }
}

void RowsFromAList() {
  Random random(7);
  for (int64_t k : {1, 64, 100}) {
    for (int64_t rows : {1, 7, 40}) {
      DetectorCase c = RandomCase(random, 3 * rows, k, 40);
      c.rows = rows;
      c.row_cut = random.Below(rows + 1);
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
  for (const Primitives* simd : Levels()) {
    std::vector<uint64_t> bits(static_cast<size_t>(c.rows * words));
    for (int64_t r = 0; r < c.rows; ++r)
      simd->live_bits(pitc::Live::kNotZero, c.a.data() + r * c.k, c.k, bits.data() + r * words);
    std::vector<uint64_t> columns(static_cast<size_t>(words)), part_columns(columns);
    pitc::MicroTileCounts whole, sum;
    simd->count_micro_tiles(bits.data(), c.rows, c.k, columns.data(), &whole);
    for (int64_t r = 0; r < c.rows; r += 32) {
      simd->count_micro_tiles(bits.data() + r * words, std::min<int64_t>(32, c.rows - r), c.k,
                              part_columns.data(), &sum);
    }
    CHECK(!memcmp(&sum, &whole, sizeof sum) && sum.elements > 0);
    CHECK(columns == part_columns);
  }
}

// So many dead segments that counters of 16 bits would be full, then as many live ones.
void ManyRows() {
  const int64_t rows = 600000;
  std::vector<uint64_t> bits(static_cast<size_t>(rows));
  const auto right = [&](int64_t elements, int64_t columns, int64_t live_rows) {
    for (const Primitives* simd : Levels()) {
      pitc::MicroTileCounts counts;
      simd->count_micro_tiles(bits.data(), rows, 64, nullptr, &counts);
      CHECK(counts.elements == elements && simd->count_bits(bits.data(), rows) == elements);
      for (size_t i = 0; i < std::size(pitc::kStripHeights); ++i) {
        const int64_t height = pitc::kStripHeights[i];
        const int64_t strips = (live_rows + height - 1) / height * columns;
        CHECK(counts.strips[i] == strips);
      }
      for (size_t i = 0; i < std::size(pitc::kSegmentWidths); ++i) {
        const int64_t width = pitc::kSegmentWidths[i];
        const int64_t segments = (columns + width - 1) / width * live_rows;
        CHECK(counts.segments[i] == segments);
      }
    }
  };
  right(0, 0, 0);
  bits[0] = 1;
  right(1, 1, 1);
  std::fill(bits.begin(), bits.end(), ~0ull);
  right(64 * rows, 64, rows);
}

// A row is a page; dead rows may not even be touched.
void DeadRowsAreNotRead() {
  const auto page = sysconf(_SC_PAGESIZE);
  const int64_t rows = 24, k = page / 4, words = BitWords(k);
  for (const Primitives* simd : Levels()) {
    Guarded<float> a(rows * k);
    std::fill_n(a.data(), rows * k, 0.0f);
    for (int64_t r : {0, 1, 2, 3, 20, 21, 22, 23}) a[r * k + 7 * r] = 1;
    std::vector<uint64_t> bits(static_cast<size_t>(rows * words));
    for (int64_t r = 0; r < rows; ++r)
      simd->live_bits(pitc::Live::kNotZero, a.data() + r * k, k, bits.data() + r * words);
    CHECK(!mprotect(a.data() + 4 * k, static_cast<size_t>(16 * page), PROT_NONE));
    const pitc::DetectedRows detected{{a.data(), nullptr, rows, k, k}, bits.data()};
    std::vector<int32_t> starts(static_cast<size_t>(rows * words + 1)), index(8);
    std::vector<float> values(8 * 64);
    pitc::FillRowLists(*simd, detected, 512, 8, values.data(), index.data(), starts.data());
    CHECK(values[7] == 1 && index[7] == 7 * 23);
    pitc::FillTileLists(*simd, detected, 4, 8, values.data(), index.data(), starts.data());
    CHECK(values[7 * 4 + 3] == 1 && index[7] == 7 * 23 && starts[6] == 8);
    for (int64_t width : pitc::kSegmentWidths) {
      pitc::FillBlockLists(detected, width, values.data(), index.data(), starts.data());
      CHECK(starts[k / width] == 8);
    }
    CHECK(!mprotect(a.data() + 4 * k, static_cast<size_t>(16 * page), PROT_READ | PROT_WRITE));
  }
}

// Lists of a ReLU are those of the numbers that it gives.
void ListsOfAReLU() {
  const int64_t rows = 13, k = 131, words = BitWords(k), group = 8;
  std::vector<float> a(static_cast<size_t>(rows * k)), relu(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    const float kinds[] = {0, 1.5f, -2, -0.0f, std::nanf(""), -std::nanf(""), -HUGE_VALF, -1e-42f};
    a[i] = i % 5 ? -1 : kinds[i / 5 % 8];
    relu[i] = a[i] < 0 ? 0 : a[i];
  }
  for (const Primitives* simd : Levels()) {
    const auto lists = [&](const std::vector<float>& of, pitc::Live live) {
      std::vector<uint64_t> bits(static_cast<size_t>(rows * words));
      const pitc::StoredMatrix matrix{of.data(), nullptr, rows, k, k};
      pitc::MatrixBits(*simd, live, matrix, bits.data(), words);
      const pitc::DetectedRows detected{matrix, bits.data(), live};
      pitc::MicroTileCounts counts;
      simd->count_micro_tiles(bits.data(), rows, k, nullptr, &counts);
      std::vector<float> values(a.size() * 2 * 64);
      std::vector<int32_t> index(a.size()), starts(a.size());
      float* at = values.data();
      pitc::FillRowLists(*simd, detected, words * 64, counts.elements, at, index.data(),
                         starts.data());
      at += counts.elements;
      pitc::FillTileLists(*simd, detected, group, counts.strips[0], at, index.data(),
                          starts.data());
      at += counts.strips[0] * group;
      for (int64_t width : pitc::kSegmentWidths) {
        pitc::FillBlockLists(detected, width, at, index.data(), starts.data());
        at += starts[static_cast<size_t>((k + width - 1) / width)] * width;
      }
      CHECK(at < values.data() + values.size());
      return values;
    };
    const auto found = lists(a, pitc::Live::kPositive), want = lists(relu, pitc::Live::kNotZero);
    CHECK(!memcmp(found.data(), want.data(), found.size() * sizeof(float)));
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
  for (const Primitives* simd : Levels()) {
    std::vector<uint64_t> bits(static_cast<size_t>(2 * words));
    const pitc::DetectedRows rows{{a, list, 2, k, k}, bits.data()};
    pitc::MatrixBits(*simd, pitc::Live::kNotZero, rows.matrix, bits.data(), words);
    CHECK(simd->count_bits(bits.data(), 2 * words) == 2);
    int32_t ks[2], starts[3];
    float values[2];
    pitc::FillRowLists(*simd, rows, words * 64, 2, values, ks, starts);
    CHECK(ks[0] == 0 && ks[1] == k - 1 && values[0] == 3 && values[1] == 4 && starts[1] == 1);
  }
  munmap(memory, size);
}

}  // namespace

int main() {
  printf("this CPU: %s\n", pitc::Name(pitc::MachineCpuLevel()));
  return pitc::test::RunTests({{"bits of all lengths, densities and alignments", AllLengths},
                               {"words of two numbers", WordsOfTwoNumbers},
                               {"every kind of number, denormals as zero", EveryKindOfNumber},
                               {"shapes", Shapes},
                               {"lists of a ReLU", ListsOfAReLU},
                               {"large matrices", LargeMatrices},
                               {"full rows, the last one first", FullRows},
                               {"one live element", OneLiveElement},
                               {"rows from a list", RowsFromAList},
                               {"counts add up", CountsAddUp},
                               {"many rows", ManyRows},
                               {"dead rows are not read", DeadRowsAreNotRead},
                               {"far rows", FarRows}});
}

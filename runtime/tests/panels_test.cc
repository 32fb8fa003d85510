#include "panels.h"

#include <limits>

#include "micro_tiles_check.h"

using pitc::AllFinite;
using pitc::test::DetectorCase;
using pitc::test::Guarded;
using pitc::test::Levels;
using pitc::test::Random;
using pitc::test::WithFactor;

namespace {

DetectorCase Numbered(int64_t rows, int64_t k) {
  DetectorCase c;
  c.rows = rows;
  c.k = k;
  for (int64_t i = 0; i < rows * k; ++i) c.a.push_back(static_cast<float>(i + 1));
  return c;
}

// Every width of the last panel and rests of all squares, stored in every way.
void EveryShape() {
  Random random(3);
  for (int64_t k : {1, 2, 3, 4, 5, 15, 16, 17, 18, 19, 33, 70}) {
    for (int64_t rows = 0; rows <= 130; rows += rows % 16 == 2 ? 10 : 1) {
      DetectorCase c = Numbered(rows, k);
      c.at_begin = random.Below(2);
      for (int64_t first : {0, 3}) {
        c.first = first;
        for (int64_t columns : {int64_t{0}, first + rows + 1, first + rows + random.Below(70)}) {
          if (columns && rows == 0) continue;
          c.columns = columns;
          const DetectorCase product = WithFactor(random, c);
          for (pitc::CpuLevel level : Levels()) {
            const bool good = WrongPanel(level, c).empty() && WrongPanel(level, product).empty();
            if (!good) printf("%s: %s\n", pitc::Name(level), Describe(c).c_str());
            CHECK(good);
          }
        }
      }
    }
  }
}

// One number that is not finite, anywhere in a row of any length and alignment.
void OneIsNotFinite() {
  constexpr float kMost = std::numeric_limits<float>::max(),
                  kLeast = std::numeric_limits<float>::denorm_min(),
                  kInfinity = std::numeric_limits<float>::infinity();
  const float finite[] = {0, -0.0f, 1, kMost, -kMost, kLeast, -kLeast};
  constexpr uint32_t kNans[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xff800001, 0x7fffffff};
  std::vector<float> others{kInfinity, -kInfinity};
  for (uint32_t bits : kNans) memcpy(&others.emplace_back(), &bits, sizeof bits);
  for (int64_t n : {0, 1, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 67}) {
    for (int64_t shift = 0; shift < 4; ++shift) {
      Guarded<float> x(n + shift);  // ends at a page, so that `shift` moves what is behind it
      for (int64_t i = 0; i < n; ++i) x[i] = finite[(i + shift) % 7];
      for (int64_t i = n; i < n + shift; ++i) x[i] = kInfinity;
      CHECK(AllFinite(x.data(), n));
      for (int64_t i = 0; i < n; ++i) {
        const float before = x[i];
        for (float other : others) {
          memcpy(&x[i], &other, sizeof other);
          CHECK(!AllFinite(x.data(), n));
        }
        x[i] = before;
      }
    }
  }
}

}  // namespace

int main() {
  return pitc::test::RunTests({{"every shape", EveryShape}, {"one is not finite", OneIsNotFinite}});
}

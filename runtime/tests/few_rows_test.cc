#include "few_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "micro_tiles_check.h"

using pitc::kFewRows;
using pitc::test::DetectorCase;
using pitc::test::Guarded;
using pitc::test::Levels;
using pitc::test::Random;
using pitc::test::Reference;
using pitc::test::StoredCase;

namespace {

constexpr int64_t kStep = kFewRows + 4;  // more than there are rows

// Whole numbers: sums are exact in any order.
DetectorCase WholeNumbers(Random& random, int64_t count, int64_t k) {
  DetectorCase c;
  c.rows = count;
  c.k = k;
  c.at_begin = random.Below(2);
  c.first = random.Below(2) * 3;
  for (int64_t i = 0; i < count * k; ++i)
    c.a.push_back(static_cast<float>(std::max<int64_t>(random.Below(12) - 3, 0)));
  if (random.Below(2)) {
    for (int64_t i = 0; i < count * k; ++i)
      c.factor.push_back(static_cast<float>(random.Below(4) - 1));
  }
  if (random.Below(2)) c.columns = c.first + count + random.Below(2) * random.Below(40);
  return c;
}

// x @ A^T equals the plain loop's, up to what `same` allows; nothing else is touched.
template <class SameNumber>
void Check(const DetectorCase& c, Random& random, int64_t rows, const SameNumber& same) {
  const Reference reference(c);
  StoredCase stored(c);
  Guarded<float> x(rows * c.k, c.at_begin);
  for (int64_t i = 0; i < rows * c.k; ++i) x[i] = static_cast<float>(random.Below(9) - 4);
  for (pitc::CpuLevel level : Levels()) {
    Guarded<float> sums(c.rows * kStep, c.at_begin), untouched(c.rows * kStep);
    MultiplyFew(level, x.data(), rows, stored.Matrix(), sums.data(), kStep);
    bool good = true;
    for (int64_t i = 0; i < c.rows; ++i) {
      for (int64_t r = 0; r < rows; ++r) {
        double sum = 0;
        for (int64_t k = 0; k < c.k; ++k)
          sum += static_cast<double>(x[r * c.k + k]) * reference.At(i, k);
        good &= same(static_cast<double>(sums[i * kStep + r]), sum);
      }
      const auto rest = static_cast<size_t>(kStep - rows) * sizeof(float);
      good &= !memcmp(&sums[i * kStep + rows], &untouched[i * kStep + rows], rest);
    }
    if (!good) {
      printf("%s: %d rows, A of %s\n", pitc::Name(level), static_cast<int>(rows),
             Describe(c).c_str());
    }
    CHECK(good);
  }
}

// Rests of everything that is done together, and several pieces, both ways.
void EveryShape() {
  Random random(61);
  const auto equal = [](double x, double y) { return x == y; };
  for (int64_t rows = 1; rows <= kFewRows; ++rows) {
    for (int64_t k : {1, 2, 3, 4, 5, 15, 16, 17, 70})
      Check(WholeNumbers(random, 1 + random.Below(70), k), random, rows, equal);
    for (int64_t k : {31, 32, 33, 64, 127, 1023, 1024, 1025, 2060})
      Check(WholeNumbers(random, 1 + random.Below(9), k), random, rows, equal);
    for (int64_t count : {63, 64, 65, 128, 256, 300, 511, 512, 513, 1030})
      Check(WholeNumbers(random, count, 1 + random.Below(9)), random, rows, equal);
    Check(WholeNumbers(random, 260 + random.Below(80), 90), random, rows, equal);
  }
}

// Of an A stored by columns each sum is one chain of multiply-adds in ascending k, each rounded
// once: what the kernels over panels compute for more rows, whatever compiler made this.
void OneChainPerSum() {
  Random random(71);
  const auto number = [&] { return static_cast<float>(random.Below(2000001) - 1000000) / 917513; };
  for (int64_t rows : {1, 2, 3, 5, 40, 48}) {
    for (int64_t k : {1, 31, 33, 300}) {
      DetectorCase c = WholeNumbers(random, 1 + random.Below(600), k);
      c.columns = c.first + c.rows + random.Below(40);
      c.factor.resize(random.Below(2) ? c.a.size() : 0);
      std::generate(c.a.begin(), c.a.end(), number);
      std::generate(c.factor.begin(), c.factor.end(), number);
      const Reference reference(c);
      StoredCase stored(c);
      std::vector<float> x(static_cast<size_t>(rows * k));
      std::generate(x.begin(), x.end(), number);
      for (pitc::CpuLevel level : Levels()) {
        if (level == pitc::CpuLevel::kBaseline) continue;  // has no such instruction
        std::vector<float> sums(static_cast<size_t>(c.rows * kStep));
        MultiplyFew(level, x.data(), rows, stored.Matrix(), sums.data(), kStep);
        int64_t wrong = 0;
        for (int64_t i = 0; i < c.rows; ++i) {
          for (int64_t r = 0; r < rows; ++r) {
            float sum = 0;
            for (int64_t j = 0; j < k; ++j)
              sum = std::fma(reference.At(i, j), x[static_cast<size_t>(r * k + j)], sum);
            wrong += sums[static_cast<size_t>(i * kStep + r)] != sum;
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

// Inf and NaN reach the sums that they belong to, and no other.
void OddNumbers() {
  Random random(67);
  const float odd[] = {std::numeric_limits<float>::quiet_NaN(),
                       std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(), -0.0f};
  const auto equal = [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  for (int round = 0; round < 200; ++round) {
    DetectorCase c = WholeNumbers(random, 1 + random.Below(30), 1 + random.Below(40));
    for (int64_t i = random.Below(3); i >= 0; --i)
      c.a[static_cast<size_t>(random.Below(c.rows * c.k))] = odd[random.Below(4)];
    Check(c, random, round % 2 ? 1 : 1 + random.Below(kFewRows), equal);
  }
}

}  // namespace

int main() {
  return pitc::test::RunTests({{"every shape", EveryShape},
                               {"one chain per sum", OneChainPerSum},
                               {"odd numbers", OddNumbers}});
}

#include "check.h"
#include "micro_tiles_check.h"

using pitc::Primitives;
using pitc::test::Levels;
using pitc::test::Random;

namespace {

// Lists of exactly `count` entries in memory of exactly that size: a sanitizer sees any step
// beyond.
void CheckOne(const Primitives& simd, const uint8_t* live, int64_t n, int64_t first) {
  std::vector<int32_t> expected;
  for (int64_t i = 0; i < n; ++i) {
    if (live[i]) expected.push_back(static_cast<int32_t>(first + i));
  }
  const auto words = static_cast<size_t>(n + 63) / 64;
  std::vector<uint64_t> bits(words + 1, ~uint64_t{0});
  const int64_t count = simd.mask_bits(live, n, bits.data());
  CHECK(bits[words] == ~uint64_t{0});
  if (n % 64) CHECK(bits[words - 1] >> n % 64 == 0);
  CHECK(count == static_cast<int64_t>(expected.size()));
  constexpr int32_t kGuard = -77;
  for (pitc::Positions* positions : {simd.few_positions, simd.many_positions}) {
    auto* exact = new int32_t[expected.size()];
    CHECK(positions(bits.data(), static_cast<int64_t>(words), first, exact, count) == count);
    delete[] exact;
    std::vector<int32_t> found(expected.size() + 1, kGuard);
    positions(bits.data(), static_cast<int64_t>(words), first, found.data(), count);
    expected.push_back(kGuard);
    CHECK(found == expected);
    expected.pop_back();
  }
}

void AllSizes() {
  Random random(2);
  for (int64_t n = 0; n <= 200; ++n) {
    for (int live_of_16 : {0, 1, 8, 15, 16}) {
      for (int64_t shift : {0, 1, 13}) {
        std::vector<uint8_t> memory(static_cast<size_t>(shift + n));
        for (uint8_t& byte : memory)
          byte = random.Below(16) < live_of_16 ? static_cast<uint8_t>(1 + random.Below(255)) : 0;
        for (const Primitives* simd : Levels()) CheckOne(*simd, memory.data() + shift, n, 1000000);
      }
    }
  }
}

void OneLivePosition() {
  std::vector<uint8_t> memory(160);
  for (uint8_t& byte : memory) {
    byte = 1;
    for (const Primitives* simd : Levels()) CheckOne(*simd, memory.data(), 160, 0);
    byte = 0;
  }
}

void LargeMask() {
  Random random(3);
  std::vector<uint8_t> memory(1 << 18);
  for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random.Next() & 1);
  for (const Primitives* simd : Levels()) CheckOne(*simd, memory.data(), 1 << 18, 5);
}

}  // namespace

int main() {
  printf("this CPU: %s\n", pitc::Name(pitc::MachineCpuLevel()));
  return pitc::test::RunTests({{"all sizes, densities and alignments", AllSizes},
                               {"one live position", OneLivePosition},
                               {"large mask", LargeMask}});
}

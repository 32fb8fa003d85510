#include "detect/mask.h"

#include <vector>

#include "check.h"

using pitc::CpuLevel;
using pitc::test::Random;

namespace {

std::vector<CpuLevel> Levels() {
  std::vector<CpuLevel> levels;
  for (CpuLevel level : {CpuLevel::kBaseline, CpuLevel::kV3, CpuLevel::kV4}) {
    if (level <= pitc::MachineCpuLevel()) levels.push_back(level);
  }
  return levels;
}

// Lists of exactly `count` entries in memory of exactly that size: a sanitizer sees any step
// beyond.
void CheckOne(CpuLevel level, const uint8_t* live, int64_t n, int32_t first_row) {
  std::vector<int32_t> expected;
  for (int64_t i = 0; i < n; ++i) {
    if (live[i]) expected.push_back(static_cast<int32_t>(i));
  }
  const auto words = static_cast<size_t>(n + 63) / 64;
  std::vector<uint64_t> bits(words + 1, ~uint64_t{0});
  const int64_t count = pitc::ReadMask(level, live, n, bits.data());
  CHECK(bits[words] == ~uint64_t{0});
  if (n % 64) CHECK(bits[words - 1] >> n % 64 == 0);
  CHECK(count == static_cast<int64_t>(expected.size()));
  constexpr int32_t kGuard = -77;
  std::vector<int32_t> rows(expected.size() + 1, kGuard), positions(expected.size() + 1, kGuard);
  auto* exact = new int32_t[expected.size()];
  pitc::FillLive(level, bits.data(), n, first_row, count, exact, positions.data());
  delete[] exact;
  pitc::FillLive(level, bits.data(), n, first_row, count, rows.data(), positions.data());
  CHECK(rows.back() == kGuard && positions.back() == kGuard);
  for (size_t i = 0; i < expected.size(); ++i) {
    CHECK(positions[i] == expected[i] && rows[i] == expected[i] + first_row);
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
        for (CpuLevel level : Levels()) CheckOne(level, memory.data() + shift, n, 1000000);
      }
    }
  }
}

void OneLivePosition() {
  std::vector<uint8_t> memory(160);
  for (uint8_t& byte : memory) {
    byte = 1;
    for (CpuLevel level : Levels()) CheckOne(level, memory.data(), 160, 0);
    byte = 0;
  }
}

void LargeMask() {
  Random random(3);
  std::vector<uint8_t> memory(1 << 18);
  for (uint8_t& byte : memory) byte = static_cast<uint8_t>(random.Next() & 1);
  for (CpuLevel level : Levels()) CheckOne(level, memory.data(), 1 << 18, 5);
}

}  // namespace

int main() {
  printf("this CPU: %s\n", pitc::Name(pitc::MachineCpuLevel()));
  return pitc::test::RunTests({{"all sizes, densities and alignments", AllSizes},
                               {"one live position", OneLivePosition},
                               {"large mask", LargeMask}});
}

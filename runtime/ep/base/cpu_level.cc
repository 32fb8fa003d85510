#include "base/cpu_level.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <initializer_list>
#endif

namespace pitc {

#if defined(__x86_64__)
namespace {

struct Registers {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};

Registers Cpuid(uint32_t leaf, uint32_t part = 0) {
  Registers r;
  __get_cpuid_count(leaf, part, &r.a, &r.b, &r.c, &r.d);  // the zeros stay if there is no such leaf
  return r;
}

// The register files that the operating system saves on a context switch.
uint32_t SavedState() {
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

constexpr uint32_t Bits(std::initializer_list<int> numbers) {
  uint32_t mask = 0;
  for (int n : numbers) mask |= 1u << n;
  return mask;
}

bool Has(uint32_t value, uint32_t mask) { return (value & mask) == mask; }

}  // namespace

CpuLevel MachineCpuLevel() {
  // SSE3, SSSE3, FMA, CX16, SSE4.1, SSE4.2, MOVBE, POPCNT, OSXSAVE, AVX, F16C
  constexpr uint32_t kLeaf1c = Bits({0, 9, 12, 13, 19, 20, 22, 23, 27, 28, 29});
  // BMI1, AVX2, BMI2; AVX-512 F, DQ, CD, BW, VL
  constexpr uint32_t kLeaf7bV3 = Bits({3, 5, 8}), kLeaf7bV4 = Bits({16, 17, 28, 30, 31});
  constexpr uint32_t kLzcnt = Bits({5});
  constexpr uint32_t kYmmSaved = Bits({1, 2}), kZmmSaved = Bits({1, 2, 5, 6, 7});
  if (!Has(Cpuid(1).c, kLeaf1c)) return CpuLevel::kBaseline;
  uint32_t saved = SavedState(), leaf7 = Cpuid(7).b;
  if (!Has(saved, kYmmSaved) || !Has(leaf7, kLeaf7bV3) || !Has(Cpuid(0x80000001).c, kLzcnt)) {
    return CpuLevel::kBaseline;
  }
  if (!Has(saved, kZmmSaved) || !Has(leaf7, kLeaf7bV4)) return CpuLevel::kV3;
  constexpr uint32_t kBf16 = Bits({5});
  if (!Has(Cpuid(7, 1).a, kBf16)) return CpuLevel::kV4;
  constexpr uint32_t kAmx = Bits({22, 24});  // bfloat16, tiles
  return Has(Cpuid(7).d, kAmx) ? CpuLevel::kV4Amx : CpuLevel::kV4Bf16;
}

bool AllowsTiles() {
  constexpr long kRequest = 0x1023, kTileData = 18;
  static const bool allowed = syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  return allowed;
}

bool HasFastPairs() {
  constexpr uint32_t kGenu = 0x756e6547;  // of "GenuineIntel"
  return Cpuid(0).b != kGenu;
}
#elif defined(__aarch64__)
CpuLevel MachineCpuLevel() { return CpuLevel::kNeon; }
bool AllowsTiles() { return false; }
bool HasFastPairs() { return false; }
#else
CpuLevel MachineCpuLevel() { return CpuLevel::kBaseline; }
bool AllowsTiles() { return false; }
bool HasFastPairs() { return false; }
#endif

bool Runs(CpuLevel built, CpuLevel machine, bool unit) {
  if (built < CpuLevel::kV4Bf16) return built <= machine;
  return built == machine && unit;
}

Lack LackOf(CpuLevel built, CpuLevel machine, bool unit, bool forced) {
  if (forced || built < CpuLevel::kV4Bf16) return Lack::kNothing;
  if (machine < CpuLevel::kV4Bf16) return Lack::kUnits;
  if (built != machine || unit) return Lack::kNothing;
  return built == CpuLevel::kV4Amx ? Lack::kTiles : Lack::kSpeed;
}

const char* Name(CpuLevel level) {
  switch (level) {
    case CpuLevel::kV4Amx:
      return "v4_amx";
    case CpuLevel::kV4Bf16:
      return "v4_bf16";
    case CpuLevel::kV4:
      return "v4";
    case CpuLevel::kV3:
      return "v3";
    case CpuLevel::kNeon:
      return "neon";
    default:
      return "baseline";
  }
}

}  // namespace pitc

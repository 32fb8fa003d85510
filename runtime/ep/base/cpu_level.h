// Which build of a kernel this machine can run.
#pragma once

namespace pitc {

enum class CpuLevel { kBaseline, kNeon, kV3, kV4 };

// Those that kernels are built for on this architecture, best first.
#if defined(__aarch64__)
constexpr CpuLevel kKernelLevels[] = {CpuLevel::kNeon};
constexpr const char* kKernelLevelNames = "neon";
#else
constexpr CpuLevel kKernelLevels[] = {CpuLevel::kV4, CpuLevel::kV3};
constexpr const char* kKernelLevelNames = "v3 or v4";
#endif

// What processor and operating system offer: v4 is x86-64-v4 (AVX-512 F, BW, CD, DQ, VL), v3 is
// x86-64-v3 (AVX2, FMA, BMI); neon is any 64-bit Arm.
CpuLevel MachineCpuLevel();

// `baseline`, `neon`, `v3` or `v4`.
const char* Name(CpuLevel level);

}  // namespace pitc

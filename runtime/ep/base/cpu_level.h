// Which build of a kernel this machine can run.
#pragma once

namespace pitc {

enum class CpuLevel { kBaseline, kNeon, kV3, kV4, kV4Bf16, kV4Amx };

// Those that kernels are built for on this architecture, best first.
#if defined(__aarch64__)
constexpr CpuLevel kKernelLevels[] = {CpuLevel::kNeon};
constexpr const char* kKernelLevelNames = "neon";
#else
constexpr CpuLevel kKernelLevels[] = {CpuLevel::kV4Amx, CpuLevel::kV4Bf16, CpuLevel::kV4,
                                      CpuLevel::kV3};
constexpr const char* kKernelLevelNames = "v3, v4, v4_bf16 or v4_amx";
#endif

// What processor and operating system offer: v4 is x86-64-v4 (AVX-512 F, BW, CD, DQ, VL), v4_bf16
// has AVX512-BF16 as well, and v4_amx AMX for bfloat16 (whose registers are asked for apart:
// AllowsTiles); v3 is x86-64-v3 (AVX2, FMA, BMI); neon is any 64-bit Arm.
CpuLevel MachineCpuLevel();

// Whether the operating system lets this process use the tile registers of AMX: it is asked once.
bool AllowsTiles();

// Whether AVX512-BF16 is faster than float32, as on AMD's cores: Intel's take longer.
bool HasFastPairs();

// Whether kernels of level `built` run on a CPU of level `machine`. Those of AVX512-BF16 alone do
// not where there is AMX. `unit`: whether the unit for bfloat16 of that level may be used; of no
// meaning for kernels of float32.
bool Runs(CpuLevel built, CpuLevel machine, bool unit);

// Why a kernel for products of bfloat16 does not run here: the CPU has no unit for them, or the
// operating system refuses the registers of one that it has, or float32 is faster.
enum class Lack { kNothing, kUnits, kTiles, kSpeed };

// What the user is told of a kernel that was built for level `built`: nothing where a level was
// asked for. `unit`: as for Runs.
Lack LackOf(CpuLevel built, CpuLevel machine, bool unit, bool forced);

// `baseline`, `neon`, `v3`, `v4`, `v4_bf16` or `v4_amx`.
const char* Name(CpuLevel level);

}  // namespace pitc

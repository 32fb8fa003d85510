// Which build of a kernel this machine can run.
#pragma once

namespace pitc {

enum class CpuLevel { kBaseline, kV3, kV4 };

// What processor and operating system offer: v4 is x86-64-v4 (AVX-512 F, BW, CD, DQ, VL), v3 is
// x86-64-v3 (AVX2, FMA, BMI).
CpuLevel MachineCpuLevel();

// `baseline`, `v3` or `v4`.
const char* Name(CpuLevel level);

}  // namespace pitc

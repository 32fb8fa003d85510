// Every file is compiled for baseline x86-64. Vector versions of a function carry a target of their
// own, and CpuLevel says which of them may run.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>

#define PITC_V3 __attribute__((target("avx2,bmi,bmi2,lzcnt,popcnt,fma")))
#define PITC_V4 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,bmi,bmi2,popcnt")))
#endif

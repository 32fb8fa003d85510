// What the text of a CUDA kernel sees when it is compiled as C++; text.py adapts it.
#pragma once
#include <cmath>
#include <cstring>
#include <type_traits>

#include "cuda_emulator.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
// A function whose own reads and writes are no accesses of the kernel; its caller is the place.
#define APART __attribute__((noinline, no_sanitize("thread")))
#define CALLER __builtin_return_address(0)

// ---- types ----
// Assigned as a whole: else a constructed value would be stored piece by piece.
#define ASSIGNED(T)                       \
  EMULATED T& operator=(const T& other) { \
    memcpy(this, &other, sizeof other);   \
    return *this;                         \
  }                                       \
  T(const T&) = default;
#define WHOLE(T) \
  ASSIGNED(T)    \
  T() = default;
#define VECTORS(T, name, n)                                          \
  struct alignas(2 * n) name##2 {                                    \
    T x, y;                                                          \
    WHOLE(name##2)                                                   \
    EMULATED name##2(T x, T y) : x(x), y(y) {}                       \
  };                                                                 \
  struct alignas(4 * n > 16 ? 16 : 4 * n) name##4 {                  \
    T x, y, z, w;                                                    \
    WHOLE(name##4)                                                   \
    EMULATED name##4(T x, T y, T z, T w) : x(x), y(y), z(z), w(w) {} \
  };                                                                 \
  EMULATED name##2 make_##name##2(T x, T y) { return {x, y}; }       \
  EMULATED name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTORS(signed char, char, 1)
VECTORS(unsigned char, uchar, 1)
VECTORS(short, short, 2)
VECTORS(unsigned short, ushort, 2)
VECTORS(int, int, 4)
VECTORS(unsigned, uint, 4)
VECTORS(float, float, 4)
VECTORS(long long, longlong, 8)
VECTORS(unsigned long long, ulonglong, 8)
VECTORS(double, double, 8)
#undef VECTORS

namespace emulator {
template <class To, class From>
EMULATED To Bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
}  // namespace emulator

using half = _Float16;
struct nv_bfloat16 {
  uint16_t bits;
  nv_bfloat16() = default;
  EMULATED nv_bfloat16(float x) {  // to nearest, ties to even
    const uint32_t u = emulator::Bits<uint32_t>(x);
    bits = static_cast<uint16_t>(x != x ? 0x7fff : (u + 0x7fff + (u >> 16 & 1)) >> 16);
  }
  EMULATED operator float() const { return emulator::Bits<float>(uint32_t{bits} << 16); }
};
// Each operation rounds, as on the device.
#define OPERATOR(op)                                               \
  EMULATED nv_bfloat16 operator op(nv_bfloat16 a, nv_bfloat16 b) { \
    return static_cast<float>(a) op static_cast<float>(b);         \
  }
OPERATOR(+)
OPERATOR(-)
OPERATOR(*)
OPERATOR(/)
#undef OPERATOR

#define NARROW(T, T2, name)                                                                       \
  struct alignas(4) T2 {                                                                          \
    T x, y;                                                                                       \
    WHOLE(T2)                                                                                     \
    EMULATED T2(T x, T y) : x(x), y(y) {}                                                         \
  };                                                                                              \
  using __##T = T;                                                                                \
  using __##T2 = T2;                                                                              \
  EMULATED bool __hgt(T a, T b) { return a > b; }                                                 \
  EMULATED bool __hlt(T a, T b) { return a < b; }                                                 \
  EMULATED T2 make_##name##2(T x, T y) { return {x, y}; }                                         \
  EMULATED T __float2##name(float x) { return static_cast<T>(x); }                                \
  EMULATED T __float2##name##_rn(float x) { return static_cast<T>(x); }                           \
  EMULATED float __##name##2float(T x) { return x; }                                              \
  EMULATED T2 __floats2##name##2_rn(float x, float y) {                                           \
    return {static_cast<T>(x), static_cast<T>(y)};                                                \
  }                                                                                               \
  EMULATED T2 __float22##name##2_rn(float2 v) { return __floats2##name##2_rn(v.x, v.y); }         \
  EMULATED float2 __##name##22float2(T2 v) { return {v.x, v.y}; }                                 \
  EMULATED unsigned short __##name##_as_ushort(T x) { return emulator::Bits<unsigned short>(x); } \
  EMULATED T __ushort_as_##name(unsigned short x) { return emulator::Bits<T>(x); }
NARROW(half, half2, half)
NARROW(nv_bfloat16, nv_bfloat162, bfloat16)
#undef NARROW
#undef WHOLE

// ---- places, barriers, warps ----
#define threadIdx emulator::Unpacked(emulator::Thread())
#define blockIdx emulator::Unpacked(emulator::Block())
#define blockDim emulator::Unpacked(emulator::Threads())
#define gridDim emulator::Unpacked(emulator::Blocks())
#define __syncthreads() emulator::Barrier(__COUNTER__)
#define __threadfence() emulator::Fence()
#define __nanosleep(time) static_cast<void>(time)
#define CUDART_INF_F __builtin_inff()

namespace emulator {
EMULATED void Sync(int call, unsigned mask = ~0u) { SyncWarp(call, mask); }
template <class T>
EMULATED T Shuffle(int call, unsigned mask, T value, int from, int width = 32) {
  using Narrow = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  using Word = std::conditional_t<sizeof(T) == 8, uint64_t, Narrow>;
  const int lane = (Lane() & ~(width - 1)) + (from & (width - 1));
  return Bits<T>(static_cast<Word>(Exchange(call, mask, Bits<Word>(value), lane)));
}
template <class T>
EMULATED T ShuffleXor(int call, unsigned mask, T value, int bits, int width = 32) {
  const int me = Lane() & (width - 1), from = me ^ bits;
  return Shuffle(call, mask, value, from < width ? from : me, width);
}
template <class T>
EMULATED T ShuffleDown(int call, unsigned mask, T value, int by, int width = 32) {
  const int me = Lane() & (width - 1);
  return Shuffle(call, mask, value, me + by < width ? me + by : me, width);
}
template <class T>
EMULATED T ShuffleUp(int call, unsigned mask, T value, int by, int width = 32) {
  const int me = Lane() & (width - 1);
  return Shuffle(call, mask, value, me >= by ? me - by : me, width);
}
EMULATED unsigned Ballot(int call, unsigned mask, int c) {
  return Reduce(call, mask, (c ? 1u : 0u) << Lane(), kOr);
}
template <Reducer reducer, Reducer of_unsigned, class T>
EMULATED T ReduceAs(int call, unsigned mask, T value) {
  const Reducer used = std::is_signed_v<T> ? reducer : of_unsigned;
  return static_cast<T>(Reduce(call, mask, static_cast<unsigned>(value), used));
}
}  // namespace emulator
#define __syncwarp(...) emulator::Sync(__COUNTER__ __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_sync(...) emulator::Shuffle(__COUNTER__, __VA_ARGS__)
#define __shfl_xor_sync(...) emulator::ShuffleXor(__COUNTER__, __VA_ARGS__)
#define __shfl_down_sync(...) emulator::ShuffleDown(__COUNTER__, __VA_ARGS__)
#define __shfl_up_sync(...) emulator::ShuffleUp(__COUNTER__, __VA_ARGS__)
#define __ballot_sync(mask, c) emulator::Ballot(__COUNTER__, mask, c)
#define __any_sync(mask, c) (emulator::Ballot(__COUNTER__, mask, c) != 0)
#define __all_sync(mask, c) (emulator::Ballot(__COUNTER__, mask, !(c)) == 0)
#define REDUCE(reducer, of_unsigned, mask, value) \
  emulator::ReduceAs<emulator::reducer, emulator::of_unsigned>(__COUNTER__, mask, value)
#define __reduce_add_sync(mask, value) REDUCE(kAdd, kAdd, mask, value)
#define __reduce_min_sync(mask, value) REDUCE(kMin, kUnsignedMin, mask, value)
#define __reduce_max_sync(mask, value) REDUCE(kMax, kUnsignedMax, mask, value)
#define __reduce_and_sync(mask, value) REDUCE(kAnd, kAnd, mask, value)
#define __reduce_or_sync(mask, value) REDUCE(kOr, kOr, mask, value)
#define __reduce_xor_sync(mask, value) REDUCE(kXor, kXor, mask, value)

// ---- memory that threads share ----
namespace emulator {
template <class T>
APART T StrongLoad(const void* p, bool acquire) {
  See(p, sizeof(T), kStrongLoad, CALLER);
  if (acquire) Fence();
  return *static_cast<const T*>(p);
}
template <class T>
APART void StrongStore(const void* p, T value, bool release) {
  if (release) Fence();
  See(p, sizeof(T), kStrongStore, CALLER);
  *static_cast<T*>(const_cast<void*>(p)) = value;
}
template <class T, class F>
APART T Atomically(T* p, F next, bool acquire = false, bool release = false) {
  if (release) Fence();
  See(p, sizeof(T), kAtomic, CALLER);
  if (acquire) Fence();
  const T old = *p;
  *p = next(old);
  if (memcmp(&old, p, sizeof old) != 0) Changed();
  return old;
}
}  // namespace emulator

template <class T>
EMULATED T __ldg(const T* p) {
  return *p;
}
#define ATOMIC(name, expression)                                            \
  template <class T, class U>                                               \
  EMULATED T atomic##name(T* p, U value) {                                  \
    const T v = static_cast<T>(value);                                      \
    return emulator::Atomically(p, [v](T old) -> T { return expression; }); \
  }
ATOMIC(Add, old + v)
ATOMIC(Max, old > v ? old : v)
ATOMIC(Min, old < v ? old : v)
ATOMIC(Or, old | v)
ATOMIC(And, (old & v))
ATOMIC(Exch, (static_cast<void>(old), v))
#undef ATOMIC
template <class T, class U, class V>
EMULATED T atomicCAS(T* p, U expected, V value) {
  const T e = static_cast<T>(expected), v = static_cast<T>(value);
  return emulator::Atomically(p, [e, v](T old) -> T { return old == e ? v : old; });
}

// ---- numbers ----
EMULATED int __popc(unsigned x) { return __builtin_popcount(x); }
EMULATED int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
EMULATED int __ffs(int x) { return __builtin_ffs(x); }
EMULATED int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
#define fmaf(a, b, c) (emulated_fmas.Add(), __builtin_fmaf(a, b, c))
#define __fmaf_rn fmaf
constexpr emulator::LoneFmas emulated_fmas;
EMULATED float rsqrtf(float x) { return 1 / std::sqrt(x); }
EMULATED float __expf(float x) { return std::exp(x); }
EMULATED float __logf(float x) { return std::log(x); }
EMULATED float __fdividef(float a, float b) { return a / b; }
EMULATED float __frcp_rn(float x) { return 1 / x; }
EMULATED float __int_as_float(int x) { return emulator::Bits<float>(x); }
EMULATED float __uint_as_float(unsigned x) { return emulator::Bits<float>(x); }
EMULATED int __float_as_int(float x) { return emulator::Bits<int>(x); }
EMULATED unsigned __float_as_uint(float x) { return emulator::Bits<unsigned>(x); }
#define EXTREMES(T)                                  \
  EMULATED T max(T a, T b) { return a > b ? a : b; } \
  EMULATED T min(T a, T b) { return a < b ? a : b; }
EXTREMES(int)
EXTREMES(unsigned)
EXTREMES(long)
EXTREMES(unsigned long)
EXTREMES(long long)
EXTREMES(unsigned long long)
#undef EXTREMES
EMULATED float max(float a, float b) { return std::fmax(a, b); }  // beside a NaN: the other one
EMULATED float min(float a, float b) { return std::fmin(a, b); }

// ---- PTX: `asm("a.b.c ..")` has become ptx_a_b_c(outputs.., inputs..) ----
#define U unsigned
#define F float
namespace emulator {
EMULATED U Offset(U address, int bytes) { return address + static_cast<U>(bytes); }
EMULATED const void* Offset(const void* p, int bytes) {
  return static_cast<const char*>(p) + bytes;
}
EMULATED F Flushed(F x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.f, x) : x; }
}  // namespace emulator
EMULATED U __cvta_generic_to_shared(const void* p) { return emulator::Place(p); }

// TVM has a function for each instruction, so one number stands for all its calls.
#define PTX_CALL(form) (-8 * __LINE__ - (form))
#define LDMATRIX(name, transposed)                                                        \
  EMULATED void ptx_ldmatrix_sync_aligned_m8n8_x1_##name(U& a, U row) {                   \
    a = emulator::LoadMatrices(PTX_CALL(1), row, 1, transposed).x[0];                     \
  }                                                                                       \
  EMULATED void ptx_ldmatrix_sync_aligned_m8n8_x2_##name(U& a, U& b, U row) {             \
    const emulator::Words w = emulator::LoadMatrices(PTX_CALL(2), row, 2, transposed);    \
    a = w.x[0], b = w.x[1];                                                               \
  }                                                                                       \
  EMULATED void ptx_ldmatrix_sync_aligned_m8n8_x4_##name(U& a, U& b, U& c, U& d, U row) { \
    const emulator::Words w = emulator::LoadMatrices(PTX_CALL(4), row, 4, transposed);    \
    a = w.x[0], b = w.x[1], c = w.x[2], d = w.x[3];                                       \
  }
LDMATRIX(shared_b16, false)
LDMATRIX(trans_shared_b16, true)
#undef LDMATRIX

#define MMA(name, product)                                                                         \
  EMULATED void ptx_mma_sync_aligned_##name(F& d0, F& d1, F& d2, F& d3, U a0, U a1, U a2, U a3,    \
                                            U b0, U b1, F c0, F c1, F c2, F c3) {                  \
    const emulator::Floats d = emulator::Multiply(PTX_CALL(0), emulator::product,                  \
                                                  {{a0, a1, a2, a3}}, b0, b1, {{c0, c1, c2, c3}}); \
    d0 = d.x[0], d1 = d.x[1], d2 = d.x[2], d3 = d.x[3];                                            \
  }
MMA(m16n8k16_row_col_f32_f16_f16_f32, kHalf)
MMA(m16n8k16_row_col_f32_bf16_bf16_f32, kBfloat)
MMA(m16n8k8_row_col_f32_tf32_tf32_f32, kTf32)
#undef MMA

#define COPY(name, past_l1)                                                         \
  EMULATED void ptx_cp_async_##name(U to, const void* from, int bytes, int valid) { \
    emulator::CopyAsync(to, from, bytes, valid, past_l1);                           \
  }                                                                                 \
  EMULATED void ptx_cp_async_##name(U to, const void* from, int bytes) {            \
    emulator::CopyAsync(to, from, bytes, bytes, past_l1);                           \
  }
COPY(ca_shared_global, false)
COPY(cg_shared_global, true)
#undef COPY
EMULATED void ptx_cp_async_commit_group() { emulator::Commit(); }
EMULATED void ptx_cp_async_wait_group(int but) { emulator::Wait(but); }
EMULATED void ptx_cp_async_wait_all() { emulator::Commit(), emulator::Wait(0); }

EMULATED void ptx_fence_acq_rel_gpu() { emulator::Fence(); }
#define LOAD(order, acquire)                                    \
  template <class T, class D>                                   \
  EMULATED void ptx_ld_##order##_global(D& d, const void* p) {  \
    d = emulator::Bits<D>(emulator::StrongLoad<T>(p, acquire)); \
  }
LOAD(volatile, false)
LOAD(relaxed_gpu, false)
LOAD(acquire_gpu, true)
#undef LOAD
#define STORE(order, release)                                     \
  template <class T, class D>                                     \
  EMULATED void ptx_st_##order##_global(const void* p, D value) { \
    emulator::StrongStore(p, emulator::Bits<T>(value), release);  \
  }
STORE(volatile, false)
STORE(relaxed_gpu, false)
STORE(release_gpu, true)
#undef STORE
#define ATOMIC(order, name, acquire, release, expression)                    \
  template <class T, class D>                                                \
  EMULATED void ptx_atom_##order##global_##name(D& d, const void* p, D x) {  \
    const T v = emulator::Bits<T>(x);                                        \
    const auto next = [v](T old) -> T { return expression; };                \
    T* to = static_cast<T*>(const_cast<void*>(p));                           \
    d = emulator::Bits<D>(emulator::Atomically(to, next, acquire, release)); \
  }                                                                          \
  template <class T, class D>                                                \
  EMULATED void ptx_red_##order##global_##name(const void* p, D x) {         \
    D old;                                                                   \
    ptx_atom_##order##global_##name<T>(old, p, x);                           \
  }
#define ATOMICS(order, acquire, release)                        \
  ATOMIC(order, add, acquire, release, static_cast<T>(old + v)) \
  ATOMIC(order, max, acquire, release, old > v ? old : v)       \
  ATOMIC(order, min, acquire, release, old < v ? old : v)
ATOMICS(, false, false)
ATOMICS(relaxed_gpu_, false, false)
ATOMICS(acquire_gpu_, true, false)
ATOMICS(release_gpu_, false, true)
ATOMICS(acq_rel_gpu_, true, true)
#undef ATOMICS
#undef ATOMIC

EMULATED void ptx_fma_rn_f32(F& d, F a, F b, F c) { d = fmaf(a, b, c); }
EMULATED void ptx_tanh_approx_f32(F& d, F x) { d = std::tanh(x); }
EMULATED void ptx_ex2_approx_f32(F& d, F x) { d = std::exp2(x); }
EMULATED void ptx_ex2_approx_ftz_f32(F& d, F x) {
  d = emulator::Flushed(std::exp2(emulator::Flushed(x)));
}
EMULATED void ptx_rcp_approx_ftz_f32(F& d, F x) { d = emulator::Flushed(1 / emulator::Flushed(x)); }
EMULATED void ptx_cvt_rna_tf32_f32(U& d, F x) {  // to nearest, ties away from zero
  const U u = emulator::Bits<U>(x);
  d = x != x ? 0x7fffffff : std::isinf(x) ? u : (u + 0x1000) & ~0x1fffu;
}
EMULATED void ptx_cvt_rn_bf16_f32(uint16_t& d, F x) { d = nv_bfloat16(x).bits; }
EMULATED void ptx_cvt_rn_f16x2_f32(U& d, F high, F low) {
  d = emulator::Bits<U>(__floats2half2_rn(low, high));
}
EMULATED void ptx_cvt_rn_bf16x2_f32(U& d, F high, F low) {
  d = emulator::Bits<U>(__floats2bfloat162_rn(low, high));
}
#undef U
#undef F

// Device kernels as a shared object that stands for machine code: each does the
// work of a whole grid, thread by thread. PITC_ARCH is what it is built for.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#define API extern "C" __attribute__((visibility("default")))

#ifdef PITC_ARCH
API const int plain_arch = PITC_ARCH;
#endif

namespace {

template <class T>
T Read(const void* parameter) {
  T value;
  memcpy(&value, parameter, sizeof value);
  return value;
}

int64_t Threads(const unsigned* shape) {
  int64_t threads = 1;
  for (int i = 0; i < 6; ++i) threads *= shape[i];
  return threads;
}

// Rows are counted in words of 4 bytes all the same.
struct alignas(16) Quad {
  int32_t x[4];
};

// A thread moves every n-th word of the rows that the list names.
template <class Word>
void MoveRows(void** p, const unsigned* shape, bool out) {
  const auto* from = Read<const Word*>(p[0]);
  const auto* index = Read<const int32_t*>(p[1]);
  auto* to = Read<Word*>(p[2]);
  const int64_t n = Read<int32_t>(p[3]), words = Read<int32_t>(p[4]) / (sizeof(Word) == 16 ? 4 : 1);
  if (reinterpret_cast<uintptr_t>(from) % alignof(Word) ||
      reinterpret_cast<uintptr_t>(to) % alignof(Word))
    abort();
  const int64_t threads = Threads(shape);
  for (int64_t thread = 0; thread < threads; ++thread)
    for (int64_t i = thread; i < n * words; i += threads) {
      const int64_t slot = index[i / words] * words + i % words;
      to[out ? slot : i] = from[out ? i : slot];
    }
}

}  // namespace

#define MOVE(name, word, out)             \
  API const int plain_##name##_count = 5; \
  API void plain_##name(void** p, const unsigned* shape) { MoveRows<word>(p, shape, out); }
MOVE(pack_b16_kernel, Quad, false)
MOVE(unpack_b16_kernel, Quad, true)
MOVE(pack_b4_kernel, int32_t, false)
MOVE(pack_b1_kernel, int8_t, false)
MOVE(unpack_b4_kernel, int32_t, true)
MOVE(unpack_b1_kernel, int8_t, true)

// x[i] *= factor; factor is 32 bits wide.
API const int plain_scale_kernel_count = 3;
API void plain_scale_kernel(void** p, const unsigned*) {
  auto* x = Read<float*>(p[0]);
  for (int64_t i = 0; i < Read<int64_t>(p[2]); ++i) x[i] *= Read<float>(p[1]);
}

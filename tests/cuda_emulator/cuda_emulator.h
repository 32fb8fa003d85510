// The run time of emulated CUDA kernels: its entry points for whoever drives it, Python or a driver
// library, and what kernels call (through device_code.h). A driver library links with
// libcuda_emulator.so, and modules take it from there; build.py makes both.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {
// Device memory. It is closed to the host (an access is a segmentation fault) but for launches and
// copies. Freed memory is not used again before all of it is free. The name is for messages.
void* emulator_alloc(size_t bytes, const char* name);  // null: out of memory
int emulator_free(void* start);                        // 0: no allocation starts there
int emulator_inside(const void* p, size_t bytes);      // whether they lie in one allocation
void emulator_name(const void* start, const char* name);

// Copies between host and device, either way, or within the device. What is copied or filled counts
// as written; to read what was not is a kernel's error. The caller checks with emulator_inside.
void emulator_copy(void* to, const void* from, size_t bytes);
void emulator_fill(void* to, int byte, size_t bytes);
void emulator_open(int open);  // opens device memory to the host, or closes it

// Runs a grid. Returns null, or what a thread did wrong; the text lives until the next launch, and
// " at +0x1f" in it is a place in the module's file, which addr2line -i turns into a line.
//
// kernel: `emulated_NAME` of a module; it takes the addresses of arguments, as cuLaunchKernel does.
// shape: blocks along x, y, z, then threads. shared: bytes of dynamic shared memory. order: in
// which blocks, warps and lanes take turns: 0 ascending, 1 descending, else shuffled by this seed.
// counts: room for as many numbers as emulator_counts() has words, which name them; or null.
const char* emulator_launch(void (*kernel)(void**), void** arguments, const unsigned* shape,
                            size_t shared, int order, int64_t* counts);
const char* emulator_counts();
// The n-th place of the last launch where something was counted, and the counts; 0: there is none.
int emulator_site(int n, size_t* offset, int64_t* counts);
}

#define EMULATED inline __attribute__((always_inline))

namespace emulator {
struct Dim {
  unsigned x, y, z;
};
struct Words {
  unsigned x[4];
};
struct Floats {
  float x[4];
};
enum Kind { kLoad, kStore, kStrongLoad, kStrongStore, kAtomic };  // strong: volatile, relaxed, ..
enum Reducer { kAdd, kMin, kMax, kAnd, kOr, kXor, kUnsignedMin, kUnsignedMax };
enum Product { kHalf, kBfloat, kTf32 };

// Of the lane that runs: the same as long as its kernel does, so they need not be asked for twice.
// Coordinates are packed, for compilers keep numbers in mind better than structures.
__attribute__((const)) uint64_t Thread();
__attribute__((const)) uint64_t Block();
__attribute__((const)) uint64_t Threads();
__attribute__((const)) uint64_t Blocks();
__attribute__((const)) int Lane();
EMULATED uint64_t Packed(Dim d) { return d.x | uint64_t{d.y} << 31 | uint64_t{d.z} << 47; }
EMULATED Dim Unpacked(uint64_t n) {
  return {static_cast<unsigned>(n & 0x7fffffff), static_cast<unsigned>(n >> 31 & 0xffff),
          static_cast<unsigned>(n >> 47)};
}

void See(const void* address, int bytes, Kind kind, const void* site);  // before each access
void Changed();  // a word's value, by an atomic operation: somebody may wait for it
void Fence();
void* Shared(int array, size_t bytes);  // array -1: the dynamic one
unsigned Place(const void* shared);     // the 32-bit address that PTX has for it
// Lanes meet where the source has the same call, which a number names: a compiler may copy it.
void Barrier(int call);
void SyncWarp(int call, unsigned mask);
uint64_t Exchange(int call, unsigned mask, uint64_t value, int from);
unsigned Reduce(int call, unsigned mask, unsigned value, Reducer reducer);
Words LoadMatrices(int call, unsigned row, int count, bool transposed);
Floats Multiply(int call, Product product, Words a, unsigned b0, unsigned b1, Floats c);
void CopyAsync(unsigned to, const void* from, int bytes, int valid, bool past_l1);
void Commit();
void Wait(int but);
void CountFmas(int64_t count);

// Counts the fmaf of one kernel (text.py puts one into each); all others are counted one by one.
struct Fmas {
  int64_t count = 0;
  EMULATED void Add() { ++count; }
  EMULATED ~Fmas() { CountFmas(count); }
};
struct LoneFmas {
  EMULATED void Add() const { CountFmas(1); }
};
}  // namespace emulator

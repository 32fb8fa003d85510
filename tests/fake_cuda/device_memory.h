// Memory of a device that is not there, closed to the host but for copies and
// kernels: host code that follows a device's pointer dies at once. It is this
// program's own, or that of a CUDA emulator, which then runs kernels as well.
#pragma once

#include <cstddef>

namespace fake_cuda {

// Loads the emulator, which modules need.
void Begin();

void* Allocate(size_t bytes);                         // null: the arena is full
bool Free(void* memory);                              // what is read there later is no number
bool IsInside(const void* memory, size_t bytes);      // of one piece
void Copy(void* to, const void* from, size_t bytes);  // either of them, or both
void Fill(void* to, int byte, size_t bytes);
void Wrote(void* memory, size_t bytes);  // somebody has, while it was open
void Open(bool open);                    // nests

// Runs the kernel of an emulator's module; what it did wrong, or null.
// `shape`: grid and block.
const char* Emulate(void (*kernel)(void**), void** arguments, const unsigned* shape,
                    size_t shared_bytes);

}  // namespace fake_cuda

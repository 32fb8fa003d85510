#include "device_memory.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

namespace fake_cuda {
namespace {

constexpr size_t kArena = size_t{4} << 30, kPage = 4096;

// What a CUDA emulator has instead, found in the library that is named.
struct Emulator {
  void* (*alloc)(size_t, const char*) = nullptr;
  int (*free)(void*) = nullptr;
  int (*inside)(const void*, size_t) = nullptr;
  void (*copy)(void*, const void*, size_t) = nullptr;
  void (*fill)(void*, int, size_t) = nullptr;
  void (*open)(int) = nullptr;
  const char* (*launch)(void (*)(void**), void**, const unsigned*, size_t, int, int64_t*) = nullptr;
};

const Emulator* TheEmulator() {
  static const Emulator* const found = []() -> const Emulator* {
    const char* path = getenv("FAKE_CUDA_EMULATOR");
    if (!path) return nullptr;
    void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);  // for its modules
    if (!library) {
      fprintf(stderr, "%s\n", dlerror());
      abort();
    }
    auto* e = new Emulator;
    const auto find = [library](const char* name, auto* function) {
      *function =
          reinterpret_cast<std::remove_reference_t<decltype(*function)>>(dlsym(library, name));
      if (!*function) abort();
    };
    find("emulator_alloc", &e->alloc);
    find("emulator_free", &e->free);
    find("emulator_inside", &e->inside);
    find("emulator_copy", &e->copy);
    find("emulator_fill", &e->fill);
    find("emulator_open", &e->open);
    find("emulator_launch", &e->launch);
    return e;
  }();
  return found;
}

struct Arena {
  char* base = static_cast<char*>(
      mmap(nullptr, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  size_t used = 0;
  std::map<char*, size_t> pieces;  // with a closed page behind each
};

Arena& TheArena() {
  static auto* arena = new Arena;
  return *arena;
}

int opened = 0;

void Protect(char* at, size_t bytes, bool open) {
  const size_t whole = (bytes + kPage - 1) / kPage * kPage;
  mprotect(at, whole, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

// NaN, and no index.
void Spoil(char* at, size_t bytes) {
  Protect(at, bytes, true);
  memset(at, 0xff, bytes);
  Protect(at, bytes, opened > 0);
}

}  // namespace

void Begin() { TheEmulator(); }

void* Allocate(size_t bytes) {
  if (const Emulator* e = TheEmulator()) return e->alloc(bytes, "device memory");
  Arena& arena = TheArena();
  const size_t whole = (bytes + kPage - 1) / kPage * kPage;
  if (arena.used + whole + kPage > kArena) return nullptr;
  char* at = arena.base + arena.used;
  arena.used += whole + kPage;
  arena.pieces[at] = bytes;
  Spoil(at, bytes);
  return at;
}

bool Free(void* memory) {
  if (const Emulator* e = TheEmulator()) return e->free(memory) != 0;
  Arena& arena = TheArena();
  const auto at = arena.pieces.find(static_cast<char*>(memory));
  if (at == arena.pieces.end()) return false;
  Spoil(at->first, at->second);
  arena.pieces.erase(at);
  return true;
}

bool IsInside(const void* memory, size_t bytes) {
  if (const Emulator* e = TheEmulator()) return e->inside(memory, bytes) != 0;
  const auto* at = static_cast<const char*>(memory);
  for (const auto& [begin, size] : TheArena().pieces)
    if (at >= begin && at + bytes <= begin + size) return true;
  return false;
}

void Copy(void* to, const void* from, size_t bytes) {
  if (const Emulator* e = TheEmulator()) return e->copy(to, from, bytes);
  Open(true);
  memcpy(to, from, bytes);
  Open(false);
}

void Fill(void* to, int byte, size_t bytes) {
  if (const Emulator* e = TheEmulator()) return e->fill(to, byte, bytes);
  Open(true);
  memset(to, byte, bytes);
  Open(false);
}

void Wrote(void* memory, size_t bytes) {
  if (const Emulator* e = TheEmulator()) e->copy(memory, memory, bytes);
}

void Open(bool open) {
  const int before = opened;
  opened += open ? 1 : -1;
  if ((before > 0) == (opened > 0)) return;
  if (const Emulator* e = TheEmulator()) return e->open(opened > 0);
  for (const auto& [begin, size] : TheArena().pieces) Protect(begin, size, opened > 0);
}

const char* Emulate(void (*kernel)(void**), void** arguments, const unsigned* shape,
                    size_t shared_bytes) {
  const Emulator* e = TheEmulator();
  return e ? e->launch(kernel, arguments, shape, shared_bytes, 0, nullptr) : "there is no emulator";
}

}  // namespace fake_cuda

/* Calls kernels for another process, on a machine that an emulator stands for.
 *
 * usage: serve_kernels KERNELS.so
 *
 * A request on stdin: length of a symbol (u32), the symbol, number of arguments (u32), and each of
 * them: 'i' and an i64; 'f' and a double; 't', DLPack's code and bits (u8, u8), rank (u32), the
 * shape (i64 each), bytes (u64) and those; or '=' and the number of the tensor (u32) that it is
 * again. The answer on stdout: the kernel's result (i32); if 0 the bytes of each tensor, else the
 * length of its text (u32) and that.
 *
 * Each tensor ends at a page that nobody may touch.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { kMost = 64, kInt = 1, kFloat = 3, kTensor = 7 };

typedef struct {
  void* data;
  int32_t device_type, device;
  int32_t rank;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t offset;
} Tensor;

typedef struct {
  int32_t type;
  uint32_t padding;
  union {
    int64_t integer;
    double number;
    void* pointer;
  } value;
} Any;

typedef struct {
  char* base;
  uint64_t mapped, bytes;
  int64_t shape[8];
  Tensor tensor;
} Memory;

static void Take(void* to, size_t bytes) {
  if (bytes && fread(to, bytes, 1, stdin) != 1) exit(0);
}

static void Give(const void* from, size_t bytes) {
  if (bytes && fwrite(from, bytes, 1, stdout) != 1) exit(1);
}

static uint32_t TakeNumber(void) {
  uint32_t number;
  Take(&number, sizeof number);
  return number;
}

static void* Alloc(int type, int device, uint64_t bytes, int code, int bits) {
  (void)type, (void)device, (void)code, (void)bits;
  return aligned_alloc(64, (bytes + 64) / 64 * 64);
}

static int Free(int type, int device, void* memory) {
  (void)type, (void)device;
  free(memory);
  return 0;
}

static void TakeTensor(Memory* m) {
  Tensor* t = &m->tensor;
  *t = (Tensor){.device_type = 1, .lanes = 1, .shape = m->shape};
  Take(&t->code, 1);
  Take(&t->bits, 1);
  t->rank = (int32_t)TakeNumber();
  if (t->rank > 8) exit(1);
  Take(m->shape, sizeof(int64_t) * (size_t)t->rank);
  Take(&m->bytes, sizeof m->bytes);
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
  m->mapped = (m->bytes + page - 1) / page * page + page;
  m->base = mmap(NULL, m->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (m->base == MAP_FAILED) exit(1);
  mprotect(m->base + m->mapped - page, page, PROT_NONE);
  t->data = m->base + m->mapped - page - m->bytes;
  Take(t->data, m->bytes);
}

int main(int argc, char** argv) {
  static Memory memory[kMost];
  void* library = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (!library) {
    fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: serve_kernels KERNELS.so");
    return 2;
  }
  void** slot = dlsym(library, "__TVMBackendAllocWorkspace");
  if (slot) *slot = (void*)Alloc;
  slot = dlsym(library, "__TVMBackendFreeWorkspace");
  if (slot) *slot = (void*)Free;
  const char* (*last_error)(void) = (const char* (*)(void))dlsym(library, "pitc_kernel_last_error");
  for (;;) {
    char symbol[512] = {0};
    Any arguments[kMost], result = {0};
    const uint32_t length = TakeNumber();
    if (length >= sizeof symbol) return 1;
    Take(symbol, length);
    const uint32_t count = TakeNumber();
    uint32_t tensors = 0;
    if (count > kMost) return 1;
    for (uint32_t i = 0; i < count; ++i) {
      char kind;
      Take(&kind, 1);
      arguments[i] = (Any){kind == 'i' ? kInt : kind == 'f' ? kFloat : kTensor, 0, {0}};
      if (kind == 't') {
        TakeTensor(&memory[tensors]);
        arguments[i].value.pointer = &memory[tensors++].tensor;
      } else if (kind == '=') {
        arguments[i].value.pointer = &memory[TakeNumber()].tensor;
      } else {
        Take(&arguments[i].value, 8);
      }
    }
    int (*kernel)(void*, Any*, int32_t, Any*) =
        (int (*)(void*, Any*, int32_t, Any*))dlsym(library, symbol);
    if (!kernel) return 3;
    const int32_t refused = kernel(NULL, arguments, (int32_t)count, &result);
    Give(&refused, sizeof refused);
    if (refused) {
      const uint32_t said = (uint32_t)strlen(last_error());
      Give(&said, sizeof said);
      Give(last_error(), said);
    }
    for (uint32_t i = 0; i < tensors; ++i) {
      if (!refused) Give(memory[i].tensor.data, memory[i].bytes);
      munmap(memory[i].base, memory[i].mapped);
    }
    fflush(stdout);
  }
}

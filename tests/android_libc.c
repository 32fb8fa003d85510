// What the JNI library of ONNX Runtime's package for Android asks of Android's C library, from glibc's: a handful of
// functions by the version LIBC, which glibc does not have. tests/release/test_host.py runs Java with it; ORT_VERSION is the
// version that libonnxruntime.so gives its functions, as "VERS_1.29.0".
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

int __cxa_atexit(void (*)(void*), void*, void*);
void __cxa_finalize(void*);
int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void*);
void __stack_chk_fail(void) __attribute__((noreturn));

// "@", not "@@": what is called below is then glibc's function and not this one.
#define VERSIONED(name, version) __asm__(".symver android_" #name "," #name "@" version)
#define FORWARD(type, name, parameters, ...) \
  VERSIONED(name, "LIBC");                   \
  type android_##name parameters { return name(__VA_ARGS__); }

FORWARD(size_t, strlen, (const char* text), text)
FORWARD(void*, malloc, (size_t size), size)
FORWARD(void*, realloc, (void* data, size_t size), data, size)
FORWARD(void*, memcpy, (void* to, const void* from, size_t size), to, from, size)
FORWARD(int, dlclose, (void* library), library)
FORWARD(int, __cxa_atexit, (void (*call)(void*), void* data, void* object), call, data, object)
FORWARD(int, __register_atfork, (void (*a)(void), void (*b)(void), void (*c)(void), void* object), a, b, c, object)

VERSIONED(free, "LIBC");
void android_free(void* data) { free(data); }
VERSIONED(__cxa_finalize, "LIBC");
void android___cxa_finalize(void* object) { __cxa_finalize(object); }
VERSIONED(__stack_chk_fail, "LIBC");
void android___stack_chk_fail(void) { __stack_chk_fail(); }

// Only ONNX Runtime for Android has it. The JNI library names it, and nobody calls it.
VERSIONED(OrtSessionOptionsAppendExecutionProvider_Nnapi, ORT_VERSION);
void* android_OrtSessionOptionsAppendExecutionProvider_Nnapi(void* options, unsigned flags) {
  (void)options;
  (void)flags;
  abort();
}

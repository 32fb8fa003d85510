/* Linked into every kernel library, so that it needs no TVM library.
 *
 * `pitc_kernel_identity` says which build of which kernels the library is; the plans made with it
 * say the same.
 *
 * Kernels report a wrong argument (type, rank, shape, strides) through one function of the TVM
 * FFI. This one keeps the text for the calling thread; whoever called the kernel asks for it when
 * the kernel returns something other than 0.
 */
#include <stdint.h>
#include <string.h>

#ifndef PITC_KERNEL_IDENTITY
#define PITC_KERNEL_IDENTITY "" /* of a library that no plan names */
#endif

__attribute__((visibility("default"))) const char pitc_kernel_identity[] = PITC_KERNEL_IDENTITY;

static _Thread_local char last_error[1024];

static void append(const char* text) {
  size_t used = strlen(last_error), room = sizeof last_error - 1 - used;
  size_t length = strlen(text);
  if (length > room) length = room;
  memcpy(last_error + used, text, length);
  last_error[used + length] = '\0';
}

__attribute__((visibility("hidden"))) void TVMFFIErrorSetRaisedFromCStrParts(const char* kind,
                                                                             const char** parts,
                                                                             int32_t count) {
  last_error[0] = '\0';
  append(kind ? kind : "Error");
  append(": ");
  for (int32_t i = 0; i < count; ++i)
    if (parts[i]) append(parts[i]);
}

__attribute__((visibility("default"))) const char* pitc_kernel_last_error(void) {
  return last_error;
}

/* Linked into a kernel library that holds kernels for NVIDIA GPUs: what its host code launches, and
 * the images that a driver loads. Both lists are made when the library is built:
 *
 *   KERNEL(name, module, launch)             a kernel of a module; what the numbers behind its
 *                                            arguments are, in their order, separated by ','
 *   IMAGE(number, module, arch, is_ptx, size)
 *                                            the image of a module for an architecture; its bytes
 *                                            are the file `number.image`
 */
#include <stdint.h>

struct pitc_cuda_kernel {
  const char* name;
  const char* module;
  const char* launch;
};

struct pitc_cuda_image {
  const char* module;
  int32_t arch; /* 80, 90, .. */
  int32_t is_ptx;
  const void* data; /* at a multiple of 8 */
  uint64_t size;
};

/* clang-format off */
#define LABEL(number) "pitc_cuda_image_" #number
#define IMAGE(number, module, arch, is_ptx, size)                                           \
  __asm__(".pushsection .rodata.pitc_cuda_images, \"a\"\n"                                  \
          ".balign 16\n"                                                                    \
          ".globl " LABEL(number) "\n"                                                      \
          ".hidden " LABEL(number) "\n"                                                     \
          LABEL(number) ":\n"                                                               \
          ".incbin \"" #number ".image\"\n"                                                 \
          ".byte 0\n" /* the driver takes PTX as a text with an end */                      \
          ".popsection\n");                                                                 \
  extern const char pitc_cuda_image_##number[] __attribute__((visibility("hidden")));
/* clang-format on */
#include "cuda_images.inc"
#undef IMAGE

#define EXPORTED __attribute__((visibility("default")))

#define KERNEL(name, module, launch) {name, module, launch},
EXPORTED const struct pitc_cuda_kernel pitc_cuda_kernels[] = {
#include "cuda_kernels.inc"
};
EXPORTED const int32_t pitc_cuda_kernel_count =
    sizeof pitc_cuda_kernels / sizeof pitc_cuda_kernels[0];

#define IMAGE(number, module, arch, is_ptx, size) \
  {module, arch, is_ptx, pitc_cuda_image_##number, size},
EXPORTED const struct pitc_cuda_image pitc_cuda_images[] = {
#include "cuda_images.inc"
};
EXPORTED const int32_t pitc_cuda_image_count = sizeof pitc_cuda_images / sizeof pitc_cuda_images[0];

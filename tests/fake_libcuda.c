/* A driver that answers what the environment says: for `pitc doctor`, which asks and computes
 * nothing. */
#include <stdlib.h>
#include <string.h>

static int number(const char* name) {
  const char* text = getenv(name);
  return text ? atoi(text) : 0;
}

int cuDriverGetVersion(int* version) {
  *version = number("FAKE_CUDA_VERSION");
  return 0;
}

int cuInit(unsigned flags) { return flags ? 1 : number("FAKE_CUDA_INIT"); }

int cuGetErrorName(int error, const char** name) {
  *name = error == 999 ? "CUDA_ERROR_UNKNOWN" : "CUDA_ERROR_OTHER";
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = number("FAKE_CUDA_DEVICES");
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = 7 + ordinal;
  return 0;
}

int cuDeviceGetName(char* name, int size, int device) {
  strncpy(name, device == 7 ? "NVIDIA H100 80GB HBM3" : "NVIDIA A100", size);
  return 0;
}

int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  *bytes = device == 7 ? 85000000000u : 40000000000u;
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (attribute != 75 && attribute != 76) return 1;
  *value = attribute == 76 ? 0 : device == 7 ? 9 : 8;
  return 0;
}

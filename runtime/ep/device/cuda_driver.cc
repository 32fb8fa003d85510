#include "device/cuda_driver.h"

#include <dlfcn.h>

namespace pitc::cuda {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";

struct Found {
  Driver driver;
  std::string trouble;
};

// After one of these the device's context is lost: every later call fails, in this process.
bool IsLasting(Result result) {
  switch (result) {
    case kUncorrectable:
    case kLinkUncorrectable:
    case kContained:
    case kIllegalAddress:
    case kLaunchTimeout:
    case kContextDestroyed:
    case kAssert:
    case kHardwareStack:
    case kIllegalInstruction:
    case kMisalignedAddress:
    case kInvalidAddressSpace:
    case kInvalidPc:
    case kLaunchFailed:
    case kTensorMemoryLeak:
      return true;
    default:
      return false;
  }
}

Found Load() {
  Found found;
  Driver& driver = found.driver;
  const auto trouble = [&found](auto... parts) {
    found.trouble = Text(parts...);
    return found;
  };
  void* const library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (!library) return trouble("no NVIDIA driver: ", dlerror());
  const char* missing = nullptr;
  const auto find = [&](const char* symbol, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, symbol));
    if (!*function && !missing) missing = symbol;
  };
#define PITC_CUDA_FIND(name, symbol, ...) find(symbol, &driver.name);
  PITC_CUDA_FUNCTIONS(PITC_CUDA_FIND)
#undef PITC_CUDA_FIND
  const std::string needed = "a driver for CUDA " + VersionText(kOldestDriver) + " or newer";
  // The version first: where it is too old, functions may be missing.
  if (driver.DriverGetVersion && driver.DriverGetVersion(&driver.version) == kSuccess &&
      driver.version < kOldestDriver) {
    return trouble("expected ", needed, ", got one for CUDA ", VersionText(driver.version));
  }
  if (missing) return trouble("expected ", needed, ", got a ", kLibrary, " without ", missing);
  Result result = driver.Init(0);
  if (result == kSuccess) result = driver.DeviceGetCount(&driver.devices);
  if (result != kSuccess && result != kNoDevice)
    return trouble("the NVIDIA driver does not start: ", Told(driver, result, "cuInit"));
  if (driver.devices < 1) return trouble("the NVIDIA driver has no device");
  return found;
}

const Found& Once() {
  static const auto* const found =
      new Found(Load());  // never destroyed: sessions may end after main()
  return *found;
}

}  // namespace

const Driver& TheDriver() {
  const Found& found = Once();
  if (!found.trouble.empty()) Fail(found.trouble);
  return found.driver;
}

const std::string& DriverTrouble() { return Once().trouble; }

std::string VersionText(int version) { return Text(version / 1000, ".", version % 1000 / 10); }

std::string Told(const Driver& driver, Result result, const char* what) {
  const char *name = nullptr, *words = nullptr;
  driver.GetErrorName(result, &name);
  driver.GetErrorString(result, &words);
  std::string text = Text(what, ": ", name ? name : Text("error ", result));
  if (words) text += Text(" (", words, ")");
  if (IsLasting(result)) text += "; the device works again only in a new process";
  return text;
}

void Check(const Driver& driver, Result result, const char* what) {
  if (result == kSuccess) return;
  if (result == kOutOfMemory)
    throw OutOfDeviceMemory("out of device memory: " + Told(driver, result, what));
  throw Failure(Told(driver, result, what));
}

}  // namespace pitc::cuda

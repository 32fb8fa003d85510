// A libcuda.so.1 without a GPU. As on a device, work waits in streams until
// somebody waits for it: what is read too early is what was there before. A
// call without a current context fails, an error of a kernel is told by a later
// call, and by all after it.
//
// An image of machine code is a shared object: `emulated_KERNEL` is run by a
// CUDA emulator; `plain_KERNEL(parameters, shape)` does the work of a whole
// grid, `plain_KERNEL_count` is how many parameters it has, `plain_arch` what
// it is built for. PTX is the text "//ptx FILE", FILE being such an object.
//
// Knobs, from FAKE_CUDA_NAME in the environment or fake_cuda_set("name", ..):
//   devices, version, arch, pools, memory (bytes), l2 (bytes), failing_launch
//   (its number), refusal (what loading a module answers)
//
// Faults, from FAKE_CUDA_FAULTS, "KIND:NAME:FILE;..": launches of kernels whose
// name contains NAME (`copy`: copies within the device) do nothing (`wrong`),
// lose the device (`lost`), never end (`endless`) or end the process (`crash`).
// With a FILE only one does, in all processes: the one that makes the file.
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "fake_state.h"

namespace {

using namespace fake_cuda;

// A shared object says itself how long it is: its table of sections is last.
size_t Length(const void* image) {
  Elf64_Ehdr head;
  memcpy(&head, image, sizeof head);
  return head.e_shoff + size_t{head.e_shentsize} * head.e_shnum;
}

void* Load(const void* image) {
  const char* text = static_cast<const char*>(image);
  if (strncmp(text, "//ptx ", 6) == 0) {
    ++counts["compiled"];
    return dlopen(std::string(text + 6, strcspn(text + 6, "\n")).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (memcmp(image, ELFMAG, SELFMAG) != 0) return nullptr;
  const size_t size = Length(image);
  char path[] =
      "/tmp/fake-cuda-XXXXXX";  // of a name that no other module has: they are known by it
  const int file = mkstemp(path);
  if (write(file, image, size) != static_cast<ssize_t>(size)) return nullptr;
  close(file);
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) fprintf(stderr, "%s\n", dlerror());
  unlink(path);
  return library;
}

// The kind of fault that strikes work of this name now; empty: none.
std::string Fault(const std::string& name) {
  const char* given = getenv("FAKE_CUDA_FAULTS");
  std::string all = given ? given : "";
  while (!all.empty()) {
    const std::string one = all.substr(0, all.find(';'));
    all.erase(0, one.size() + 1);
    const size_t first = one.find(':'), second = one.find(':', first + 1);
    if (second == std::string::npos) abort();  // not as above
    const std::string file = one.substr(second + 1);
    if (name.find(one.substr(first + 1, second - first - 1)) == std::string::npos) continue;
    const int made = file.empty() ? -1 : open(file.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600);
    if (made >= 0) close(made);
    if (file.empty() || made >= 0) return one.substr(0, first);
  }
  return "";
}

// Work of this name, or what a fault makes of it.
template <class Run>
void LaterIfRight(const std::string& name, Stream stream, const Run& run) {
  const std::string fault = Fault(name);
  if (fault == "lost") {
    Later(stream, [context = current] { context->lost = kIllegalAddress; });
  } else if (fault == "endless") {
    Later(stream, [] {
      for (;;) sleep(1);
    });
  } else if (fault == "crash") {
    abort();
  } else if (fault.empty()) {
    run();
  }
}

// Runs a kernel: an emulated one at once, another in its turn.
void Run(Function function, void** parameters, const std::vector<unsigned>& shape, unsigned shared,
         Stream stream) {
  if (function->emulated) {  // it does not say how many parameters it has
    Of(nullptr);
    Drain(Of(stream), kForever);
    if (const char* error = Emulate(function->emulated, parameters, shape.data(), shared)) {
      fprintf(stderr, "%s\n", error);
      current->lost = kIllegalAddress;
    }
    return;
  }
  std::vector<uint64_t> values;
  for (int i = 0; i < function->parameters; ++i)
    memcpy(&values.emplace_back(), parameters[i], sizeof(uint64_t));
  Later(stream, [function, shape, values]() mutable {
    std::vector<void*> places;
    for (uint64_t& value : values) places.push_back(&value);
    const Opened opened;
    function->plain(places.data(), shape.data());
  });
}

const std::map<Result, std::pair<const char*, const char*>> kErrors = {
    {kInvalidValue, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
    {kOutOfMemory, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
    {kNoDevice, {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}},
    {kInvalidImage, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
    {kInvalidContext, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
    {kNoBinary, {"CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available"}},
    {kNotFound, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
    {kNewerPtx, {"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the PTX is of a newer toolkit"}},
    {kIllegalAddress, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}},
};

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

// ---- for tests

API void fake_cuda_set(const char* knob, int64_t value) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  Knob(knob) = value;
}

// launches, copies_up, copies_down, copies_across, fills, waits, allocations,
// bytes, contexts, streams, modules, compiled; attributes and carveouts that were set of functions;
// launches with 48 KiB of shared memory or more: large, and cramped without all of it
API int64_t fake_cuda_count(const char* name) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  return counts[name];
}

// Does all that waits.
API void fake_cuda_settle() {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  const Context before = current;
  for (auto& [device, context] : contexts) {
    current = &context;
    DrainAll();
  }
  current = before;
}

// The name of the last kernel.
API const char* fake_cuda_launched() {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  return launched.c_str();
}

// Work of another kind than kernels that the driver knows, in its order.
API void fake_cuda_enqueue(Stream stream, void (*run)(void*), void* data) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  Later(stream, [run, data] {
    const Opened opened;
    run(data);
  });
}

// What such work has written.
API void fake_cuda_wrote(void* memory, size_t bytes) { Wrote(memory, bytes); }

// ---- the driver

API Result cuInit(unsigned) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  if (Knob("devices") < 1) return kNoDevice;
  initialized = true;
  fake_cuda::Begin();
  return kSuccess;
}

API Result cuDriverGetVersion(int* version) {
  *version = static_cast<int>(Knob("version"));
  return kSuccess;
}

API Result cuGetErrorName(Result error, const char** text) {
  const auto at = kErrors.find(error);
  *text = at == kErrors.end() ? nullptr : at->second.first;
  return at == kErrors.end() ? kInvalidValue : kSuccess;
}

API Result cuGetErrorString(Result error, const char** text) {
  const auto at = kErrors.find(error);
  *text = at == kErrors.end() ? nullptr : at->second.second;
  return at == kErrors.end() ? kInvalidValue : kSuccess;
}

API Result cuDeviceGetCount(int* count) {
  *count = static_cast<int>(Knob("devices"));
  return initialized ? kSuccess : kNotInitialized;
}

API Result cuDeviceGet(DeviceNumber* device, int ordinal) {
  *device = ordinal;
  return initialized ? kSuccess : kNotInitialized;
}

API Result cuDeviceGetName(char* name, int size, DeviceNumber device) {
  snprintf(name, static_cast<size_t>(size), "Fake GPU %d", device);
  return kSuccess;
}

API Result cuDeviceGetAttribute(int* value, int attribute, DeviceNumber) {
  const int arch = static_cast<int>(Knob("arch"));
  *value = attribute == kMajor             ? arch / 10
           : attribute == kMinor           ? arch % 10
           : attribute == kMostSharedBytes ? kMostShared
           : attribute == kMultiprocessors ? 2
           : attribute == kCacheBytes      ? static_cast<int>(Knob("l2"))
           : attribute == kHasPools        ? static_cast<int>(Knob("pools"))
                                           : 0;
  return kSuccess;
}

API Result cuDevicePrimaryCtxRetain(Context* context, DeviceNumber device) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  ContextObject& made =
      contexts.try_emplace(device, ContextObject{device, false, kSuccess}).first->second;
  counts["contexts"] += !made.retained;
  made.retained = true;
  *context = &made;
  return kSuccess;
}

API Result cuCtxGetCurrent(Context* context) {
  *context = current;
  return kSuccess;
}

API Result cuCtxSetCurrent(Context context) {
  current = context;
  return kSuccess;
}

API Result cuCtxSynchronize() {
  return In([] {
    ++counts["waits"];
    DrainAll();
    return kSuccess;
  });
}

API Result cuMemAlloc_v2(Address* memory, size_t bytes) {
  return In([&] { return Allocate(memory, bytes); });
}

API Result cuMemFree_v2(Address memory) {
  return In([&] {
    if (!pieces.count(Pointer(memory))) return kInvalidValue;
    DrainAll();
    Release(Pointer(memory));
    return kSuccess;
  });
}

API Result cuMemPoolCreate(Pool* pool, const PoolProperties* properties) {
  return In([&] {
    if (properties->allocation_type != kPinnedAllocation ||
        properties->location_type != kOnDevice || properties->location != current->device)
      return kInvalidValue;
    static PoolObject all;
    *pool = &all;
    return kSuccess;
  });
}

API Result cuMemPoolSetAttribute(Pool, int attribute, void*) {
  return In([&] { return attribute == kReleaseThreshold ? kSuccess : kInvalidValue; });
}

API Result cuMemPoolTrimTo(Pool, size_t) {
  return In([] { return kSuccess; });
}

API Result cuMemAllocFromPoolAsync(Address* memory, size_t bytes, Pool pool, Stream) {
  return In([&] { return pool ? Allocate(memory, bytes) : kInvalidValue; });
}

API Result cuMemFreeAsync(Address memory, Stream stream) {
  return In([&] {
    if (!pieces.count(Pointer(memory))) return kInvalidValue;
    Later(stream, [memory] { Release(Pointer(memory)); });
    return kSuccess;
  });
}

API Result cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  return In([&] {
    *memory = malloc(bytes);
    pinned[*memory] = bytes;
    return kSuccess;
  });
}

API Result cuMemFreeHost(void* memory) {
  return In([&] {
    DrainAll();
    if (!pinned.erase(memory)) return kInvalidValue;
    free(memory);
    return kSuccess;
  });
}

API Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, Stream stream) {
  return In([&] {
    if (!IsDevice(to, bytes)) return kInvalidValue;
    ++counts["copies_up"];
    if (IsPinned(from)) {  // read when its turn comes
      Later(stream, [=] { Copy(Pointer(to), from, bytes); });
    } else {
      const auto* begin = static_cast<const char*>(from);
      Later(stream, [to, kept = std::vector<char>(begin, begin + bytes)] {
        Copy(Pointer(to), kept.data(), kept.size());
      });
    }
    return kSuccess;
  });
}

API Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, Stream stream) {
  return In([&] {
    if (!IsDevice(from, bytes)) return kInvalidValue;
    ++counts["copies_down"];
    Later(stream, [=] { Copy(to, Pointer(from), bytes); });
    return kSuccess;
  });
}

API Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, Stream stream) {
  return In([&] {
    if (!IsDevice(from, bytes) || !IsDevice(to, bytes)) return kInvalidValue;
    ++counts["copies_across"];
    LaterIfRight("copy", stream,
                 [=] { Later(stream, [=] { Copy(Pointer(to), Pointer(from), bytes); }); });
    return kSuccess;
  });
}

API Result cuMemsetD8Async(Address to, unsigned char value, size_t bytes, Stream stream) {
  return In([&] {
    if (!IsDevice(to, bytes)) return kInvalidValue;
    ++counts["fills"];
    Later(stream, [=] { Fill(Pointer(to), value, bytes); });
    return kSuccess;
  });
}

API Result cuStreamCreate(Stream* stream, unsigned flags) {
  return In([&] {
    *stream = new StreamObject{current, flags == 0, {}};
    streams.insert(*stream);
    ++counts["streams"];
    return kSuccess;
  });
}

API Result cuStreamDestroy_v2(Stream stream) {
  return In([&] {
    if (!streams.count(stream)) return kInvalidHandle;
    Of(nullptr);
    Drain(stream, kForever);
    streams.erase(stream);
    --counts["streams"];
    delete stream;
    return kSuccess;
  });
}

API Result cuStreamSynchronize(Stream stream) {
  return In([&] {
    ++counts["waits"];
    Of(nullptr);
    Drain(Of(stream), kForever);
    return kSuccess;
  });
}

API Result cuStreamWaitEvent(Stream stream, Event event, unsigned) {
  return In([&] {
    Later(stream, [stream = event->stream, ticket = event->ticket] {
      if (stream) Drain(stream, ticket);
    });
    return kSuccess;
  });
}

API Result cuEventCreate(Event* event, unsigned) {
  return In([&] {
    *event = new EventObject{nullptr, 0};
    return kSuccess;
  });
}

API Result cuEventDestroy_v2(Event event) {
  return In([&] {
    delete event;
    return kSuccess;
  });
}

API Result cuEventRecord(Event event, Stream stream) {
  return In([&] {
    *event = {Of(stream), next_ticket};
    return kSuccess;
  });
}

API Result cuEventSynchronize(Event event) {
  return In([&] {
    ++counts["waits"];
    if (event->stream) Drain(event->stream, event->ticket);
    return kSuccess;
  });
}

// Milliseconds, if each call had taken one.
API Result cuEventElapsedTime(float* ms, Event earlier, Event later) {
  return In([&] {
    *ms = static_cast<float>(later->ticket - earlier->ticket);
    return kSuccess;
  });
}

// What is captured is done at once, and launching the graph does it no more: it was done before.
API Result cuStreamBeginCapture_v2(Stream stream, int) {
  return In([&] { return stream ? kSuccess : kInvalidValue; });
}

API Result cuStreamEndCapture(Stream stream, Graph* graph) {
  return In([&] {
    *graph = stream ? new GraphObject{} : nullptr;
    return stream ? kSuccess : kInvalidValue;
  });
}

API Result cuGraphInstantiateWithFlags(Graph* ready, Graph graph, uint64_t) {
  return In([&] {
    *ready = new GraphObject(*graph);
    return kSuccess;
  });
}

API Result cuGraphLaunch(Graph ready, Stream stream) {
  return In([&] {
    if (!ready) return kInvalidValue;
    ++counts["graphs"];
    Later(stream, [] {});
    return kSuccess;
  });
}

API Result cuGraphDestroy(Graph graph) {
  return In([&] {
    delete graph;
    return kSuccess;
  });
}

API Result cuModuleLoadData(Module* module, const void* image) {
  return In([&] {
    if (const int64_t refusal = Knob("refusal")) return static_cast<Result>(refusal);
    void* library = Load(image);
    if (!library) return kInvalidImage;
    const auto* arch = static_cast<const int*>(dlsym(library, "plain_arch"));
    const int64_t own = Knob("arch");
    if (arch && (*arch / 10 != own / 10 || *arch > own) && memcmp(image, ELFMAG, SELFMAG) == 0)
      return kNoBinary;
    *module = new ModuleObject{current, library};
    ++counts["modules"];
    return kSuccess;
  });
}

API Result cuModuleUnload(Module module) {
  return In([&] {
    DrainAll();
    for (auto at = functions.begin(); at != functions.end();)
      at = at->first.first == module ? functions.erase(at) : std::next(at);
    dlclose(module->library);
    delete module;
    --counts["modules"];
    return kSuccess;
  });
}

API Result cuModuleGetFunction(Function* function, Module module, const char* name) {
  return In([&] {
    const auto find = [&](const std::string& symbol) {
      return dlsym(module->library, symbol.c_str());
    };
    const std::string plain = std::string("plain_") + name;
    const auto* count = static_cast<const int*>(find(plain + "_count"));
    FunctionObject made{module,
                        reinterpret_cast<void (*)(void**, const unsigned*)>(find(plain)),
                        count ? *count : 0,
                        reinterpret_cast<void (*)(void**)>(find(std::string("emulated_") + name)),
                        kUsualShared,
                        -1,
                        name};
    if (!made.plain && !made.emulated) return kNotFound;
    *function = &functions.try_emplace({module, name}, made).first->second;
    return kSuccess;
  });
}

API Result cuFuncSetAttribute(Function function, int attribute, int value) {
  return In([&] {
    const bool of_carveout = attribute == kSharedCarveout;
    if (of_carveout ? value < -1 || value > 100
                    : attribute != kMostDynamicSharedBytes || value > kMostShared)
      return kInvalidValue;
    ++counts[of_carveout ? "carveouts" : "attributes"];
    (of_carveout ? function->carveout : function->shared) = value;
    return kSuccess;
  });
}

API Result cuLaunchKernel(Function function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned shared, Stream stream,
                          void** parameters, void**) {
  return In([&] {
    if (!gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024 ||
        shared > static_cast<unsigned>(function->shared) || function->module->context != current)
      return kInvalidValue;
    ++counts["launches"];
    if (shared >= static_cast<unsigned>(kUsualShared)) {
      ++counts["large"];
      counts["cramped"] += function->carveout != 100;
    }
    launched = function->name;
    Context context = current;
    if (int64_t& left = Knob("failing_launch"); left > 0 && --left == 0) {
      Later(stream, [context] { context->lost = kIllegalAddress; });
      return kSuccess;
    }
    const std::vector<unsigned> shape = {gx, gy, gz, bx, by, bz};
    LaterIfRight(launched, stream, [&] { Run(function, parameters, shape, shared, stream); });
    return kSuccess;
  });
}

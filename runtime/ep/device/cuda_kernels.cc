#include "device/cuda_kernels.h"

#include <algorithm>
#include <cstring>
#include <exception>

namespace pitc::cuda {
namespace {

constexpr int kMostArguments = 64;           // of a device kernel
constexpr int kUsualSharedBytes = 48 << 10;  // more has to be asked for
// Of the memory that a multiprocessor divides between its first-level cache and shared memory,
// percent. Blocks of a ring of copies stand beside each other only where shared memory has nearly
// all of it, and what they copy goes past that cache.
constexpr int kLargestCarveout = 100;
constexpr int kRingBytes = 24 << 10;  // more is such a ring

constexpr const char* kTags[kLaunchNumbers] = {"blockIdx.x",
                                               "blockIdx.y",
                                               "blockIdx.z",
                                               "threadIdx.x",
                                               "threadIdx.y",
                                               "threadIdx.z",
                                               "tirx.use_dyn_shared_memory"};

// What host functions ask for beside kernels: that is done already.
constexpr const char* kSetDevice = "__tvm_set_device";
const KernelEntry kNothing = {kSetDevice, "", ""};

// For whom this thread calls a host function, and what went wrong in it: of that the function only
// hears that something did.
struct Calling {
  Kernels* kernels = nullptr;
  Device* device = nullptr;
  Stream stream = nullptr;
  std::exception_ptr failure;
};
thread_local Calling calling;

template <class Body>
int Caught(const Body& body) {
  try {
    body();
    return 0;
  } catch (...) {
    calling.failure = std::current_exception();
    return -1;
  }
}

std::string ArchText(const ImageEntry& image) {
  return Text(image.is_ptx ? "PTX for sm_" : "sm_", image.arch);
}

}  // namespace

std::vector<LaunchNumber> ParseLaunch(const std::string& tags) {
  std::vector<LaunchNumber> numbers;
  for (size_t at = 0; at < tags.size();) {
    const size_t comma = std::min(tags.find(',', at), tags.size());
    const std::string tag = tags.substr(at, comma - at);
    const auto* const known = std::find(std::begin(kTags), std::end(kTags), tag);
    if (known == std::end(kTags)) Fail("a kernel is launched by an unknown number: ", Quoted(tag));
    numbers.push_back(static_cast<LaunchNumber>(known - kTags));
    at = comma + 1;
  }
  return numbers;
}

const ImageEntry& ChooseImage(const ImageEntry* images, int count, const std::string& module,
                              int arch, const std::string& device) {
  const ImageEntry* best = nullptr;
  std::string all;
  for (const ImageEntry* image = images; image < images + count; ++image) {
    if (module != image->module) continue;
    all += (all.empty() ? "" : ", ") + ArchText(*image);
    const bool runs = image->arch <= arch && (image->is_ptx || image->arch / 10 == arch / 10);
    if (!runs) continue;
    const auto rank = [](const ImageEntry& i) { return std::pair(!i.is_ptx, i.arch); };
    if (!best || rank(*best) < rank(*image)) best = image;
  }
  if (best) return *best;
  Fail("expected code of kernel '", module, "' for ", device, ", got ", all.empty() ? "none" : all,
       "; compile the model again for cuda:sm_", arch);
}

std::shared_ptr<Kernels> Kernels::Of(std::shared_ptr<const KernelLibrary> library) {
  static std::mutex mutex;
  static auto* const known = new std::map<const KernelLibrary*, std::weak_ptr<Kernels>>;
  std::lock_guard<std::mutex> lock(mutex);
  for (auto at = known->begin(); at != known->end();)
    at = at->second.expired() ? known->erase(at) : std::next(at);
  std::weak_ptr<Kernels>& entry = (*known)[library.get()];
  std::shared_ptr<Kernels> kernels = entry.lock();
  if (!kernels) {
    kernels.reset(new Kernels(std::move(library)));
    entry = kernels;
  }
  return kernels;
}

Kernels::Kernels(std::shared_ptr<const KernelLibrary> library) : library_(std::move(library)) {
  const auto table = [this](const char* name, const auto** first, const char* count_name) {
    *first = static_cast<std::remove_pointer_t<decltype(first)>>(library_->Symbol(name));
    const auto* const count = static_cast<const int32_t*>(library_->Symbol(count_name));
    if (!*first || !count) Fail("expected a kernel library for CUDA, got one without ", name);
    return int{*count};
  };
  entry_count_ = table("pitc_cuda_kernels", &entries_, "pitc_cuda_kernel_count");
  image_count_ = table("pitc_cuda_images", &images_, "pitc_cuda_image_count");
  const auto devices = static_cast<size_t>(TheDriver().devices);
  for (const KernelEntry* entry = entries_; entry < entries_ + entry_count_; ++entry)
    records_.push_back({ParseLaunch(entry->launch), std::make_unique<OnDevice[]>(devices)});
  const auto fill = [this](const char* symbol, auto function) {
    auto* const at = static_cast<decltype(function)*>(library_->Symbol(symbol));
    if (!at) Fail("expected a kernel library for CUDA, got one without ", symbol);
    __atomic_store_n(at, function, __ATOMIC_RELEASE);  // others may use it already: the same
  };
  fill("__TVMFFIEnvModLookupFromImports", &Kernels::Find);
  fill("__TVMFFIHandleInitOnce", &Kernels::InitOnce);
  fill("__TVMFFIFunctionCall", &Kernels::Call);
}

Kernels::~Kernels() {
  for (const auto& [key, module] : modules_) {
    try {
      Device& device = Device::At(key.second);
      device.Wait();
      const Device::Current here(device);
      PITC_CUDA(ModuleUnload, module);
    } catch (const Failure&) {  // the device is lost, and the module with it
    }
  }
}

Module Kernels::LoadModule(const std::string& module, Device& device) {
  const std::pair key(module, device.number());
  if (const auto known = modules_.find(key); known != modules_.end()) return known->second;
  const ImageEntry& image =
      ChooseImage(images_, image_count_, module, device.arch(), device.Describe());
  Module loaded = nullptr;
  const Result result = TheDriver().ModuleLoadData(&loaded, image.data);
  if (result == kSuccess) return modules_[key] = loaded;
  const bool newer = result == kInvalidImage || result == kNoBinary || result == kInvalidPtx ||
                     result == kUnsupportedPtx || result == kNoJit;
  Fail("cannot load kernel '", module, "' (", ArchText(image), ") on ", device.Describe(), ": ",
       Told(TheDriver(), result, "cuModuleLoadData"),
       newer ? Text("; the driver is for CUDA ", VersionText(TheDriver().version),
                    ", code of a newer toolkit needs a newer one")
             : "");
}

void Kernels::Load(const std::string& symbol, Device& device) {
  const Device::Current here(device);
  std::lock_guard<std::mutex> lock(mutex_);
  const Module module = LoadModule(symbol, device);
  for (int i = 0; i < entry_count_; ++i) {
    if (symbol != entries_[i].module) continue;
    auto& place = records_[static_cast<size_t>(i)].on[device.number()].function;
    if (place) continue;
    Function function = nullptr;
    PITC_CUDA(ModuleGetFunction, &function, module, entries_[i].name);
    place = function;
  }
}

void Kernels::Run(const Kernel& kernel, KernelCall& call, Device& device, Stream stream) {
  const Device::Current here(device);
  const Calling before = std::exchange(calling, Calling{this, &device, stream, nullptr});
  struct Restore {
    const Calling& before;
    ~Restore() { calling = before; }
  } restore{before};
  try {
    call.Run(kernel);
  } catch (const Failure&) {
    if (calling.failure) std::rethrow_exception(calling.failure);
    throw;
  }
}

// A handle is the entry of the library's own table, so that one that a call site has kept outlives
// whoever has the library open, and is the same for all devices.
int Kernels::Find(void*, const char* name, void** found) {
  return Caught([&] {
    const KernelEntry* const first = calling.kernels->entries_;
    const KernelEntry* const end = first + calling.kernels->entry_count_;
    const KernelEntry* entry = std::find_if(
        first, end, [name](const KernelEntry& e) { return strcmp(e.name, name) == 0; });
    if (strcmp(name, kSetDevice) == 0) entry = &kNothing;
    if (entry == end) Fail("the library has no device kernel ", Quoted(name));
    *found = const_cast<KernelEntry*>(entry);
  });
}

int Kernels::InitOnce(void** place, int (*find)(void**)) {
  if (__atomic_load_n(place, __ATOMIC_ACQUIRE)) return 0;
  void* found = nullptr;
  if (const int code = find(&found)) return code;
  __atomic_store_n(place, found, __ATOMIC_RELEASE);  // many may: the same
  return 0;
}

int Kernels::Call(void* found, const tvm::Any* args, int32_t count, tvm::Any*) {
  if (found == &kNothing) return 0;
  return Caught([&] {
    calling.kernels->Launch(*static_cast<const KernelEntry*>(found), args, count, *calling.device,
                            calling.stream);
  });
}

void Kernels::AllowShared(OnDevice& on, const KernelEntry& entry, int bytes, Device& device) {
  const int most = device.most_shared_bytes();
  if (bytes > most) {
    Fail("kernel '", entry.name, "' needs ", bytes, " bytes of shared memory, ", device.Describe(),
         " has ", most);
  }
  if (bytes > kUsualSharedBytes)
    PITC_CUDA(FuncSetAttribute, on.function, kMostDynamicSharedBytes, bytes);
  PITC_CUDA(FuncSetAttribute, on.function, kSharedCarveout, kLargestCarveout);
  on.shared_bytes = bytes;
}

void Kernels::Launch(const KernelEntry& entry, const tvm::Any* args, int count, Device& device,
                     Stream stream) {
  Record& record = records_[static_cast<size_t>(&entry - entries_)];
  OnDevice& on = record.on[device.number()];
  if (!on.function) Load(entry.module, device);
  const int numbers = static_cast<int>(record.launch.size()), arguments = count - numbers;
  if (arguments < 0 || arguments > kMostArguments)
    Fail("expected at most ", kMostArguments, " arguments of kernel '", entry.name, "', got ",
         arguments);
  // A pointer and an integer are their own bytes, lowest first; a number with a point is a float32.
  union Value {
    tvm::Any any;
    float f32;
  } values[kMostArguments];
  void* places[kMostArguments];
  for (int i = 0; i < arguments; ++i) {
    values[i].any = args[i];
    places[i] = &values[i].any.v_int;
    if (args[i].type_index == tvm::kFloat) {
      values[i].f32 = static_cast<float>(args[i].v_float);
      places[i] = &values[i].f32;
    }
  }
  std::array<unsigned, kLaunchNumbers> launch = {1, 1, 1, 1, 1, 1, 0};
  for (int i = 0; i < numbers; ++i) {
    const int64_t number = args[arguments + i].v_int;
    if (number < 0 || number > INT32_MAX)
      Fail("kernel '", entry.name, "' is launched with ", number, " as ", kTags[record.launch[i]]);
    launch[record.launch[static_cast<size_t>(i)]] = static_cast<unsigned>(number);
  }
  if (launch[kGridX] == 0 || launch[kGridY] == 0 || launch[kGridZ] == 0) return;  // no block
  const int shared = static_cast<int>(launch[kSharedBytes]);
  if (shared > kRingBytes && shared > on.shared_bytes) AllowShared(on, entry, shared, device);
  const Result result = TheDriver().LaunchKernel(
      on.function, launch[kGridX], launch[kGridY], launch[kGridZ], launch[kBlockX], launch[kBlockY],
      launch[kBlockZ], launch[kSharedBytes], stream, places, nullptr);
  if (result != kSuccess)
    Fail("kernel '", entry.name, "': ", Told(TheDriver(), result, "cuLaunchKernel"));
}

}  // namespace pitc::cuda

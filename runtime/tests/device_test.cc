// The device room on a driver without a GPU (tests/fake_cuda). As on a GPU, work is done when
// somebody waits for it, and memory of a device is closed to the host.
#include <dlfcn.h>

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "check.h"
#include "device/cuda_kernels.h"
#include "device/lists.h"

namespace pitc::test {
namespace {

using namespace pitc::cuda;

// The fake driver's own functions.
template <class F>
F Fake(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<F>(dlsym(driver, name));
}
void Set(const char* knob, int64_t value) {
  Fake<void (*)(const char*, int64_t)>("fake_cuda_set")(knob, value);
}
int64_t Count(const char* name) { return Fake<int64_t (*)(const char*)>("fake_cuda_count")(name); }

// A vector's copy in memory of a device, in the order of a stream.
template <class T>
class OnDevice {
 public:
  OnDevice(const OwnStream& stream, const std::vector<T>& host)
      : stream_(stream), count_(host.size()) {
    memory_ = stream.device().Take(Bytes(), stream.handle());
    const Device::Current here(stream.device());
    PITC_CUDA(MemcpyHtoDAsync, memory_, host.data(), Bytes(), stream.handle());
  }
  ~OnDevice() { stream_.device().GiveBack(memory_, stream_.handle()); }
  const void* data() const { return reinterpret_cast<const void*>(memory_); }
  std::vector<T> Read() const {
    std::vector<T> host(count_);
    const Device::Current here(stream_.device());
    PITC_CUDA(MemcpyDtoHAsync, host.data(), memory_, Bytes(), stream_.handle());
    stream_.Wait();
    return host;
  }

 private:
  size_t Bytes() const { return count_ * sizeof(T); }
  const OwnStream& stream_;
  size_t count_;
  Address memory_ = 0;
};

DeviceKernel Open(const std::string& symbol) {
  auto library = KernelLibrary::Open(PITC_CUDA_KERNELS_FOLDER, PITC_CUDA_KERNELS);
  Kernel kernel{library, library->Find(symbol), symbol};
  CHECK(kernel.function);
  return {Kernels::Of(library), kernel};
}

KernelCall CallOn(const Device& device) { return KernelCall({tvm::kCuda, device.number()}); }

void Scale(const DeviceKernel& kernel, const OnDevice<float>& x, int64_t n, const OwnStream& stream,
           double factor, int64_t shared = 0, int64_t blocks = 1) {
  KernelCall call = CallOn(stream.device());
  call.Floats(x.data(), {n}).Float(factor).Int(shared).Int(blocks);
  kernel.kernels->Run(kernel.kernel, call, stream.device(), stream.handle());
}

void Devices() {
  CHECK(DriverTrouble().empty() && TheDriver().devices == 3 && TheDriver().version == 13000);
  const Device& device = Device::At(0);
  CHECK(&device == &Device::At(0) && &device != &Device::At(1));
  CHECK(device.Describe() == "CUDA device 0 (Fake GPU 0, sm_90)");
  for (int wrong : {-1, 3})
    CHECK(Contains(Thrown([&] { Device::At(wrong); }), "expected a CUDA device below 3, got "));
  CHECK(Count("contexts") == 0);  // looking at a device does not wake it
  CHECK(VersionText(12040) == "12.4" && VersionText(13000) == "13.0");
}

void ContextsAreRestored() {
  Context before = nullptr, now = nullptr;
  PITC_CUDA(CtxGetCurrent, &before);
  CHECK(!before);
  {
    const Device::Current first(Device::At(0));
    PITC_CUDA(CtxGetCurrent, &before);
    {
      const Device::Current same(Device::At(0)), second(Device::At(1));
      PITC_CUDA(CtxGetCurrent, &now);
      CHECK(now && now != before);
    }
    PITC_CUDA(CtxGetCurrent, &now);
    CHECK(now == before);
  }
  PITC_CUDA(CtxGetCurrent, &now);
  CHECK(!now);
}

void Memory() {
  for (int number : {0, 2}) {  // with a pool and without
    Set("pools", number == 0);
    const OwnStream stream(Device::At(number));
    Device& device = stream.device();
    const int64_t before = Count("bytes");
    CHECK(device.Take(0, stream.handle()) == 0);
    const Address piece = device.Take(1000, stream.handle());
    CHECK(piece && Count("bytes") == before + 1000);
    device.GiveBack(piece, stream.handle());
    CHECK(Count("bytes") == before + (number == 0 ? 1000 : 0));  // a pool gives back in order
    // What a stream gave back may be enough.
    Set("memory", before + 1500);
    const Address next = device.Take(1200, stream.handle());
    CHECK(next && Count("bytes") == before + 1200);
    const std::string text = Thrown([&] { device.Take(400, stream.handle()); });
    CHECK(text == Text("out of device memory: 400 bytes on ", device.Describe()));
    Set("memory", INT64_MAX);
    device.GiveBack(next, stream.handle());
    stream.Wait();
    CHECK(Count("bytes") == before);
    void* const pinned = device.TakePinned(64);
    memset(pinned, 1, 64);
    device.GiveBackPinned(pinned);
  }
  Set("pools", 1);
}

void Images() {
  const char* const code = "code";
  const ImageEntry images[] = {{"m", 80, 0, code, 4}, {"m", 86, 0, code, 4}, {"m", 90, 0, code, 4},
                               {"m", 75, 1, code, 4}, {"m", 90, 1, code, 4}, {"n", 75, 1, code, 4}};
  const struct {
    int arch;
    const char* module;
    int wanted;  // -1: none
  } cases[] = {{80, "m", 0}, {86, "m", 1}, {89, "m", 1},  {90, "m", 2}, {100, "m", 4},
               {75, "m", 3}, {87, "n", 5}, {70, "m", -1}, {90, "o", -1}};
  for (const auto& c : cases) {
    Set("arch", c.arch);
    // Devices are known for good: what chooses is told of a new one by hand.
    const ImageEntry* found = nullptr;
    const std::string text =
        Thrown([&] { found = &ChooseImage(images, 6, c.module, c.arch, "the GPU"); });
    CHECK((c.wanted < 0) == (found == nullptr));
    if (found) CHECK(found == images + c.wanted);
    if (c.arch == 70) {
      CHECK(text ==
            "expected code of kernel 'm' for the GPU, got sm_80, sm_86, sm_90, PTX for sm_75, PTX "
            "for sm_90; compile the model again for cuda:sm_70");
    }
    if (c.module[0] == 'o') CHECK(Contains(text, "got none"));
  }
  Set("arch", 90);
  CHECK((ParseLaunch("threadIdx.y,blockIdx.x,tirx.use_dyn_shared_memory") ==
         std::vector<LaunchNumber>{kBlockY, kGridX, kSharedBytes}));
  CHECK(ParseLaunch("").empty());
  CHECK(Contains(Thrown([] { ParseLaunch("blockIdx.x,clusterIdx.x"); }),
                 "launched by an unknown number: 'clusterIdx.x'"));
}

void KernelsRunOnSeveralDevices() {
  CHECK(Count("modules") == 0);
  {
    const DeviceKernel pack = Open("pack_b4_cuda");
    CHECK(Open("scale_cuda").kernels == pack.kernels);
    for (int round = 0; round < 2; ++round) {
      for (int number : {0, 1}) {
        const OwnStream stream(Device::At(number));
        const OnDevice<int32_t> x(stream, {10, 11, 20, 21, 30, 31}), index(stream, {2, 0}),
            out(stream, {0, 0, 0, 0});
        KernelCall call = CallOn(stream.device());
        call.Words(x.data(), 4, {3, 2})
            .Int32s(index.data(), {2})
            .Words(out.data(), 4, {2, 2})
            .Int(1);
        pack.kernels->Run(pack.kernel, call, stream.device(), stream.handle());
        CHECK((out.Read() == std::vector<int32_t>{30, 31, 10, 11}));
        CHECK(Count("modules") == (round ? 2 : number + 1));
      }
    }
  }
  CHECK(Count("modules") == 0);  // they go with the last who uses them
}

void Launches() {
  const DeviceKernel scale = Open("scale_cuda");
  const OwnStream stream(Device::At(0));
  const OnDevice<float> x(stream, {1, 2, 3});
  scale.kernels->Load("scale_cuda", stream.device());
  const int64_t before = Count("launches"), allowed = Count("attributes"),
                carved = Count("carveouts"), cramped = Count("cramped");
  Scale(scale, x, 3, stream, 0.5);
  CHECK((x.Read() == std::vector<float>{0.5, 1, 1.5}));
  Scale(scale, x, 3, stream, 2, 48 << 10);
  CHECK(Count("attributes") == allowed && Count("carveouts") == carved + 1);
  for (int i = 0; i < 3; ++i) Scale(scale, x, 3, stream, 2, 100 << 10);  // more has to be asked for
  Scale(scale, x, 3, stream, 2, 50 << 10);
  CHECK(Count("attributes") == allowed + 1 && Count("carveouts") == carved + 2);
  CHECK(Count("cramped") == cramped);
  CHECK((x.Read() == std::vector<float>{16, 32, 48}));
  CHECK(Count("launches") == before + 6);
  Scale(scale, x, 3, stream, 2, 0, 0);  // no block, nothing to do
  CHECK(Count("launches") == before + 6);
  CHECK(Thrown([&] { Scale(scale, x, 3, stream, 2, 300 << 10); }) ==
        "kernel 'scale_kernel' needs 307200 bytes of shared memory, CUDA device 0 (Fake GPU 0, "
        "sm_90) has 232448");
  CHECK(Contains(Thrown([&] { Scale(scale, x, 3, stream, 2, -1); }),
                 "kernel 'scale_kernel' is launched with -1 as tirx.use_dyn_shared_memory"));
  // What the host function refuses is told in its own words, what it asks for in ours.
  KernelCall wrong = CallOn(stream.device());
  wrong.Int(1);
  CHECK(Contains(
      Thrown([&] { scale.kernels->Run(scale.kernel, wrong, stream.device(), stream.handle()); }),
      "kernel 'scale_cuda' refused its arguments: 'ValueError: expected x on a CUDA device'"));
  const DeviceKernel absent = Open("absent_cuda");
  for (int i = 0; i < 2; ++i) {
    KernelCall call = CallOn(stream.device());
    CHECK(Contains(
        Thrown([&] { absent.kernels->Run(absent.kernel, call, stream.device(), stream.handle()); }),
        "the library has no device kernel 'absent_kernel'"));
  }
  CHECK(Contains(Thrown([&] { scale.kernels->Load("absent_cuda", stream.device()); }),
                 "expected code of kernel 'absent_cuda' for CUDA device 0 (Fake GPU 0, sm_90), got "
                 "none"));
}

void NullStreamsWait() {
  const DeviceKernel scale = Open("scale_cuda");
  const OwnStream stream(Device::At(0));
  const OnDevice<float> x(stream, {1});
  Scale(scale, x, 1, stream, 3);
  float seen = 0;
  const Device::Current here(stream.device());
  // Whoever has no stream comes behind all of ours, and before what they are told later.
  PITC_CUDA(MemcpyDtoHAsync, &seen, reinterpret_cast<Address>(x.data()), sizeof seen, nullptr);
  PITC_CUDA(StreamSynchronize, nullptr);
  CHECK(seen == 3);
}

void Lists() {
  const OwnStream stream(Device::At(0)), other(Device::At(0));
  DeviceLists lists(stream.device());
  std::vector<int32_t> numbers = {3, 1, 2};
  bool fresh = false;
  const auto get = [&](const OwnStream& s) {
    return lists.Get(s.handle(), numbers.data(), static_cast<int64_t>(numbers.size()), &fresh);
  };
  const auto first = get(stream);
  CHECK(fresh);
  CHECK(get(stream) == first && !fresh);
  const auto elsewhere = get(other);
  CHECK(elsewhere != first && fresh);
  numbers[1] = 7;  // the same memory, another list
  const auto second = get(stream);
  CHECK(second != first && fresh);
  int32_t seen[3] = {};
  const Device::Current here(stream.device());
  for (const auto& [list, wanted] : {std::pair(first, 1), std::pair(second, 7)}) {
    PITC_CUDA(MemcpyDtoHAsync, seen, reinterpret_cast<Address>(list->data()), sizeof seen,
              stream.handle());
    stream.Wait();
    CHECK(seen[0] == 3 && seen[1] == wanted && seen[2] == 2);
  }
  // Those that were not used for long are forgotten; who still has one keeps its memory.
  for (int32_t i = 0; i < 8; ++i) {
    numbers[0] = 100 + i;
    get(stream);
  }
  numbers = {3, 1, 2};
  CHECK(get(stream) != first && fresh);
  CHECK(get(other) == elsewhere && !fresh);
  CHECK(first.use_count() == 1);
  numbers.clear();
  CHECK(get(stream)->data() == nullptr);
}

void ManyThreads() {
  const DeviceKernel scale = Open("scale_cuda");
  const auto work = [&scale] {
    for (int i = 0; i < 20; ++i) {
      const OwnStream stream(Device::At(i % 2));
      const OnDevice<float> x(stream, {2, 4});
      Scale(scale, x, 2, stream, 0.5);
      CHECK((x.Read() == std::vector<float>{1, 2}));
    }
  };
  std::thread one(work), two(work);
  one.join();
  two.join();
}

// The last: the device is lost.
void LostDevices() {
  const DeviceKernel scale = Open("scale_cuda");
  const OwnStream stream(Device::At(1));
  const Address piece = stream.device().Take(12, stream.handle());
  Set("failing_launch", 1);
  KernelCall call = CallOn(stream.device());
  call.Floats(reinterpret_cast<const void*>(piece), {3}).Float(1).Int(0).Int(1);
  scale.kernels->Run(scale.kernel, call, stream.device(), stream.handle());  // told later
  const std::string words =
      "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered); the device works "
      "again only in a new process";
  CHECK(Thrown([&] { stream.Wait(); }) == "cuStreamSynchronize: " + words);
  CHECK(Contains(Thrown([&] { stream.device().Take(12, stream.handle()); }), words));
  CHECK(Contains(
      Thrown([&] { scale.kernels->Run(scale.kernel, call, stream.device(), stream.handle()); }),
      "kernel 'scale_kernel': cuLaunchKernel: " + words));
  const OwnStream fine(Device::At(0));  // others are not
  fine.Wait();
}

}  // namespace
}  // namespace pitc::test

int main() {
  using namespace pitc::test;
  return RunTests({{"devices", Devices},
                   {"contexts are restored", ContextsAreRestored},
                   {"memory", Memory},
                   {"images", Images},
                   {"kernels run on several devices", KernelsRunOnSeveralDevices},
                   {"launches", Launches},
                   {"null streams wait", NullStreamsWait},
                   {"lists", Lists},
                   {"many threads", ManyThreads},
                   {"lost devices", LostDevices}});
}

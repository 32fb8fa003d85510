// A second provider on the same fake GPU: it stands for ONNX Runtime's own CUDA
// provider, beside which PIT nodes run. It claims Relu, Add and MatMul of
// float32, all else is left to the CPU. Its kernels only go to the stream that
// ONNX Runtime names, and refuse memory of the host.
#include <dlfcn.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "device/device_run.h"
#include "device/ort_memory.h"
#include "ort/tensor.h"

namespace {

using namespace pitc;

constexpr const char* kName = "FakeCudaExecutionProvider";

template <class F>
F Fake(const char* name) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<F>(dlsym(driver, name));
}

void Enqueue(cuda::Stream stream, std::function<void()> work) {
  using Run = void (*)(void*);
  static const auto enqueue = Fake<void (*)(cuda::Stream, Run, void*)>("fake_cuda_enqueue");
  const Run run = [](void* data) {
    const std::unique_ptr<std::function<void()>> mine(static_cast<std::function<void()>*>(data));
    (*mine)();
  };
  enqueue(stream, run, new std::function<void()>(std::move(work)));
}

// A stream that no other one waits for, as the CUDA provider's. Who has no stream has to wait for
// the device.
class Notification : public OrtSyncNotificationImpl {
 public:
  Notification(const Host& host, cuda::Stream stream)
      : OrtSyncNotificationImpl{}, host_(host), stream_(stream) {
    ort_version_supported = kOrtApiVersion;
    const cuda::Device::Current here(cuda::Device::At(0));
    PITC_CUDA(EventCreate, &event_, cuda::kNoTiming);
    Release = [](OrtSyncNotificationImpl* self) {
      const std::unique_ptr<Notification> mine(static_cast<Notification*>(self));
      const cuda::Device::Current now(cuda::Device::At(0));
      PITC_CUDA(EventDestroy, mine->event_);
    };
    Activate = [](OrtSyncNotificationImpl* self) {
      auto& n = *static_cast<Notification*>(self);
      return Guard(n.host_, ORT_FAIL, [&] {
        const cuda::Device::Current now(cuda::Device::At(0));
        PITC_CUDA(EventRecord, n.event_, n.stream_);
      });
    };
    WaitOnDevice = [](OrtSyncNotificationImpl* self, OrtSyncStream* waits) {
      auto& n = *static_cast<Notification*>(self);
      return Guard(n.host_, ORT_FAIL, [&] {
        if (!waits) return;
        const cuda::Device::Current now(cuda::Device::At(0));
        const auto handle = static_cast<cuda::Stream>(n.host_.api->SyncStream_GetHandle(waits));
        PITC_CUDA(StreamWaitEvent, handle, n.event_, 0);
      });
    };
    WaitOnHost = [](OrtSyncNotificationImpl* self) {
      auto& n = *static_cast<Notification*>(self);
      return Guard(n.host_, ORT_FAIL, [&] {
        const cuda::Device::Current now(cuda::Device::At(0));
        PITC_CUDA(EventSynchronize, n.event_);
      });
    };
  }

 private:
  const Host host_;
  const cuda::Stream stream_;
  cuda::Event event_ = nullptr;
};

class ApartStream : public OrtSyncStreamImpl {
 public:
  explicit ApartStream(const Host& host) : OrtSyncStreamImpl{}, host_(host) {
    constexpr unsigned kApart = 1;  // CU_STREAM_NON_BLOCKING
    ort_version_supported = kOrtApiVersion;
    const cuda::Device::Current here(cuda::Device::At(0));
    PITC_CUDA(StreamCreate, &stream_, kApart);
    Release = [](OrtSyncStreamImpl* self) {
      const std::unique_ptr<ApartStream> mine(static_cast<ApartStream*>(self));
      const cuda::Device::Current now(cuda::Device::At(0));
      PITC_CUDA(StreamDestroy, mine->stream_);
    };
    GetHandle = [](OrtSyncStreamImpl* self) -> void* {
      return static_cast<ApartStream*>(self)->stream_;
    };
    CreateNotification = [](OrtSyncStreamImpl* self, OrtSyncNotificationImpl** made) {
      const auto& s = *static_cast<ApartStream*>(self);
      return Guard(s.host_, ORT_FAIL, [&] { *made = new Notification(s.host_, s.stream_); });
    };
    Flush = [](OrtSyncStreamImpl* self) {
      const auto& s = *static_cast<ApartStream*>(self);
      return Guard(s.host_, ORT_FAIL, [&] {
        const cuda::Device::Current now(cuda::Device::At(0));
        PITC_CUDA(StreamSynchronize, s.stream_);
      });
    };
    OnSessionRunEnd = [](OrtSyncStreamImpl*) -> OrtStatus* { return nullptr; };
  }

 private:
  const Host host_;
  cuda::Stream stream_ = nullptr;
};

// Memory that a stream used is given out to it again at once.
class Allocator : public OrtAllocator {
 public:
  Allocator(const Host& host, const OrtMemoryInfo* info)
      : OrtAllocator{}, host_(host), info_(info) {
    OrtAllocator::version = kOrtApiVersion;
    Alloc = Reserve = [](OrtAllocator* self, size_t bytes) {
      return static_cast<Allocator*>(self)->Take({nullptr, bytes});
    };
    Free = [](OrtAllocator* self, void* memory) {
      static_cast<Allocator*>(self)->GiveBack(memory);
    };
    Info = [](const OrtAllocator* self) { return static_cast<const Allocator*>(self)->info_; };
    AllocOnStream = [](OrtAllocator* self, size_t bytes, OrtSyncStream* stream) {
      auto& all = *static_cast<Allocator*>(self);
      return all.Take({stream ? all.host_.api->SyncStream_GetHandle(stream) : nullptr, bytes});
    };
  }

 private:
  using Kind = std::pair<void*, size_t>;  // the stream, and bytes

  void* Take(const Kind& kind) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto at = spare_.find(kind); at != spare_.end()) {
      void* const memory = at->second;
      spare_.erase(at);
      return memory;
    }
    const cuda::Device::Current here(cuda::Device::At(0));
    cuda::Address memory = 0;
    if (kind.second) PITC_CUDA(MemAlloc, &memory, kind.second);
    kinds_[reinterpret_cast<void*>(memory)] = kind;
    return reinterpret_cast<void*>(memory);
  }

  void GiveBack(void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!memory) return;
    const Kind kind = kinds_.at(memory);
    if (kind.first) {
      spare_.emplace(kind, memory);
      return;
    }
    const cuda::Device::Current here(cuda::Device::At(0));
    PITC_CUDA(MemFree, reinterpret_cast<cuda::Address>(memory));
  }

  const Host host_;
  const OrtMemoryInfo* const info_;
  std::mutex mutex_;
  std::map<void*, Kind> kinds_;
  std::multimap<Kind, void*> spare_;
};

class Node : public OrtNodeComputeInfo {
 public:
  // `single`: it reads one value, be it twice.
  Node(const Host& host, std::string op, bool single)
      : OrtNodeComputeInfo{}, host_(host), op_(std::move(op)), single_(single) {
    ort_version_supported = kOrtApiVersion;
    CreateState = [](OrtNodeComputeInfo* self, OrtNodeComputeContext*, void** state) -> OrtStatus* {
      *state = self;
      return nullptr;
    };
    ReleaseState = [](OrtNodeComputeInfo*, void*) {};
    Compute = [](OrtNodeComputeInfo* self, void*, OrtKernelContext* context) {
      const auto& node = *static_cast<Node*>(self);
      return Guard(node.host_, ORT_FAIL, [&] { node.Run(context); });
    };
  }

 private:
  Tensor Input(OrtKernelContext* context, size_t index) const {
    const OrtValue* value = nullptr;
    Check(host_, host_.api->KernelContext_GetInput(context, index, &value));
    const auto* memory = host_.ep_api->Value_GetMemoryDevice(value);
    if (host_.ep_api->MemoryDevice_GetDeviceType(memory) != OrtMemoryInfoDeviceType_GPU)
      Fail("neighbour: ", op_, " got memory of the host");
    return ReadTensor(host_, value, "x");
  }

  void Run(OrtKernelContext* context) const {
    const cuda::Device::Current here(cuda::Device::At(0));
    void* stream = nullptr;
    Check(host_, host_.api->KernelContext_GetGPUComputeStream(context, &stream));
    const Tensor a = Input(context, 0);
    const Tensor b = single_ ? a : Input(context, 1);
    Shape shape = a.shape;
    const int64_t k = a.shape.dims[a.shape.rank - 1];
    const int64_t n = b.shape.dims[b.shape.rank - 1];
    if (op_ == "MatMul")
      shape.dims[shape.rank - 1] = n;
    else if (!(a.shape == b.shape))
      Fail("neighbour: Add of two shapes");
    OrtValue* value = nullptr;
    void* out = nullptr;
    Check(host_, host_.api->KernelContext_GetOutput(context, 0, shape.dims,
                                                    static_cast<size_t>(shape.rank), &value));
    Check(host_, host_.api->GetTensorMutableData(value, &out));
    auto* y = static_cast<float*>(out);
    const float *x = a.Floats(), *z = b.Floats();
    Enqueue(static_cast<cuda::Stream>(stream), [=, op = op_, count = shape.Elements()] {
      for (int64_t i = 0; i < count; ++i) {
        if (op == "MatMul") {
          y[i] = 0;
          for (int64_t j = 0; j < k; ++j) y[i] += x[i / n * k + j] * z[j * n + i % n];
        } else {
          y[i] = op == "Add" ? x[i] + z[i] : std::max(x[i], 0.0f);
        }
      }
      Fake<void (*)(void*, size_t)>("fake_cuda_wrote")(y, static_cast<size_t>(count) * sizeof *y);
    });
  }

  const Host host_;
  const std::string op_;
  const bool single_;
};

class Ep : public OrtEp {
 public:
  explicit Ep(const Host& host) : OrtEp{}, host_(host) {
    ort_version_supported = kOrtApiVersion;
    OrtEp::GetName = [](const OrtEp*) { return kName; };
    OrtEp::GetCapability = [](OrtEp* self, const OrtGraph* graph, OrtEpGraphSupportInfo* info) {
      const Host& h = static_cast<Ep*>(self)->host_;
      return Guard(h, ORT_FAIL, [&] {
        const OrtNodeFusionOptions options{kOrtApiVersion, false};
        for (const OrtNode* node : Nodes(h, graph)) {
          const std::string op = OperatorType(h, node);
          if (op == "::Relu" || op == "::Add" || op == "::MatMul")
            Check(h, h.ep_api->EpGraphSupportInfo_AddNodesToFuse(info, &node, 1, &options));
        }
      });
    };
    OrtEp::Compile = [](OrtEp* self, const OrtGraph** graphs, const OrtNode**, size_t count,
                        OrtNodeComputeInfo** infos, OrtNode**) {
      const Host& h = static_cast<Ep*>(self)->host_;
      return Guard(h, ORT_FAIL, [&] {
        for (size_t i = 0; i < count; ++i) {
          const OrtNode* const node = Nodes(h, graphs[i]).at(0);
          const std::vector<std::string> inputs = InputNames(h, node);
          infos[i] = new Node(h, OperatorType(h, node).substr(2), inputs.front() == inputs.back());
        }
      });
    };
    OrtEp::ReleaseNodeComputeInfos = [](OrtEp*, OrtNodeComputeInfo** infos, size_t count) {
      for (size_t i = 0; i < count; ++i) delete static_cast<Node*>(infos[i]);
    };
  }

 private:
  const Host host_;
};

class Factory : public OrtEpFactory {
 public:
  explicit Factory(const Host& host) : OrtEpFactory{}, host_(host) {
    ort_version_supported = kOrtApiVersion;
    OrtEpFactory::GetName = [](const OrtEpFactory*) { return kName; };
    OrtEpFactory::GetVendor = [](const OrtEpFactory*) { return "tests"; };
    OrtEpFactory::GetVendorId = [](const OrtEpFactory*) -> uint32_t { return 0; };
    OrtEpFactory::GetVersion = [](const OrtEpFactory*) { return "1.0.0"; };
    OrtEpFactory::GetSupportedDevices = Offer;
    OrtEpFactory::CreateEp = [](OrtEpFactory* self, const OrtHardwareDevice* const*,
                                const OrtKeyValuePairs* const*, size_t, const OrtSessionOptions*,
                                const OrtLogger*, OrtEp** ep) -> OrtStatus* {
      *ep = new Ep(static_cast<Factory*>(self)->host_);
      return nullptr;
    };
    OrtEpFactory::ReleaseEp = [](OrtEpFactory*, OrtEp* ep) { delete static_cast<Ep*>(ep); };
    OrtEpFactory::CreateAllocator = [](OrtEpFactory* self, const OrtMemoryInfo* info,
                                       const OrtKeyValuePairs*, OrtAllocator** made) -> OrtStatus* {
      *made = new Allocator(static_cast<Factory*>(self)->host_, info);
      return nullptr;
    };
    OrtEpFactory::ReleaseAllocator = [](OrtEpFactory*, OrtAllocator* made) {
      delete static_cast<Allocator*>(made);
    };
    OrtEpFactory::CreateDataTransfer = [](OrtEpFactory* self,
                                          OrtDataTransferImpl** made) -> OrtStatus* {
      *made = cuda::NewDataTransfer(static_cast<Factory*>(self)->host_, kOrtApiVersion);
      return nullptr;
    };
    OrtEpFactory::IsStreamAware = [](const OrtEpFactory*) { return true; };
    OrtEpFactory::CreateSyncStreamForDevice = [](OrtEpFactory* self, const OrtMemoryDevice*,
                                                 const OrtKeyValuePairs*,
                                                 OrtSyncStreamImpl** made) {
      const Host& h = static_cast<Factory*>(self)->host_;
      return Guard(h, ORT_FAIL, [&] { *made = new ApartStream(h); });
    };
  }
  ~Factory() { host_.api->ReleaseMemoryInfo(info_); }

 private:
  static OrtStatus* Offer(OrtEpFactory* self, const OrtHardwareDevice* const* devices, size_t count,
                          OrtEpDevice** offered, size_t, size_t* made) {
    auto& factory = *static_cast<Factory*>(self);
    const Host& h = factory.host_;
    return Guard(h, ORT_FAIL, [&] {
      *made = 0;
      for (size_t i = 0; i < count && !*made; ++i) {
        if (h.api->HardwareDevice_Type(devices[i]) != OrtHardwareDeviceType_CPU) continue;
        Check(h, h.ep_api->CreateEpDevice(self, devices[i], nullptr, nullptr, offered));
        Check(h, h.api->CreateMemoryInfo_V2(kName, OrtMemoryInfoDeviceType_GPU, cuda::kVendor, 0,
                                            OrtDeviceMemoryType_DEFAULT, 0, OrtDeviceAllocator,
                                            &factory.info_));
        Check(h, h.ep_api->EpDevice_AddAllocatorInfo(*offered, factory.info_));
        *made = 1;
      }
    });
  }

  const Host host_;
  OrtMemoryInfo* info_ = nullptr;
};

}  // namespace

#define API extern "C" __attribute__((visibility("default")))

API OrtStatus* CreateEpFactories(const char*, const OrtApiBase* base, const OrtLogger*,
                                 OrtEpFactory** factories, size_t, size_t* count) {
  const OrtApi* api = base->GetApi(kOrtApiVersion);
  const bool old = std::string(base->GetVersionString()).rfind("1.23.", 0) == 0;
  factories[0] = new Factory({api, api->GetEpApi(), old ? 23 : 24});
  *count = 1;
  return nullptr;
}

API OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) {
  delete static_cast<Factory*>(factory);
  return nullptr;
}

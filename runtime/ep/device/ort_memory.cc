#include "device/ort_memory.h"

#include <cstring>

#include "device/device_run.h"

namespace pitc::cuda {
namespace {

// Runs `body` with the device current; failures name it.
template <class Body>
void Told(Device& device, const Body& body) {
  try {
    const Device::Current here(device);
    body();
  } catch (const OutOfDeviceMemory& failure) {
    throw OutOfDeviceMemory(Text("pitc: ", failure.what()));
  } catch (const Failure& failure) {
    Fail("pitc: ", device.Describe(), ": ", failure.what());
  }
}

// An address for one who asks for memory of a lost device: who then copies to it, or runs a kernel,
// is told what happened to the device. Of null, ONNX Runtime only says that there is no memory.
void* const kUnusable = reinterpret_cast<void*>(uintptr_t{256});

// ---- streams

class SyncStream : public OrtSyncStreamImpl {
 public:
  SyncStream(const Host& host, int device, uint32_t version);

  ~SyncStream();

 private:
  const Host host_;
  const std::shared_ptr<OwnStream> stream_;
};

// A point in a stream that others wait for.
class Notification : public OrtSyncNotificationImpl {
 public:
  Notification(const Host& host, std::shared_ptr<OwnStream> stream, uint32_t version)
      : OrtSyncNotificationImpl{}, host_(host), stream_(std::move(stream)) {
    const Device::Current here(stream_->device());
    PITC_CUDA(EventCreate, &event_, kNoTiming);
    ort_version_supported = version;
    Release = [](OrtSyncNotificationImpl* self) { delete static_cast<Notification*>(self); };
    Activate = [](OrtSyncNotificationImpl* self) {
      return Do(self, [](const Notification& n) {
        PITC_CUDA(EventRecord, n.event_, n.stream_->handle());
      });
    };
    WaitOnDevice = [](OrtSyncNotificationImpl* self, OrtSyncStream* waits) {
      return Do(self, [waits](const Notification& n) {
        // A node of the CPU has no stream: the host waits for it.
        if (!waits) return PITC_CUDA(EventSynchronize, n.event_);
        const auto handle = static_cast<Stream>(n.host_.api->SyncStream_GetHandle(waits));
        PITC_CUDA(StreamWaitEvent, handle, n.event_, 0);
      });
    };
    WaitOnHost = [](OrtSyncNotificationImpl* self) {
      return Do(self, [](const Notification& n) { PITC_CUDA(EventSynchronize, n.event_); });
    };
  }
  ~Notification() {
    try {
      const Device::Current here(stream_->device());
      PITC_CUDA(EventDestroy, event_);
    } catch (const Failure&) {  // the device is lost
    }
  }

 private:
  template <class Body>
  static OrtStatus* Do(OrtSyncNotificationImpl* self, const Body& body) {
    const auto& notification = *static_cast<const Notification*>(self);
    return Guard(notification.host_, ORT_FAIL,
                 [&] { Told(notification.stream_->device(), [&] { body(notification); }); });
  }

  const Host host_;
  const std::shared_ptr<OwnStream> stream_;
  Event event_ = nullptr;
};

// Those of ours that are alive, by their handles. ONNX Runtime's SyncStream_GetImpl is no way to
// ask: it takes a stream of another provider for one of a plug-in.
struct OwnStreams {
  std::mutex mutex;
  std::map<Stream, std::weak_ptr<OwnStream>> alive;
};

OwnStreams& TheStreams() {
  static auto* const streams = new OwnStreams;  // never destroyed: sessions may end after main()
  return *streams;
}

// Null: it is of another provider.
std::shared_ptr<OwnStream> OwnStreamOf(const Host& host, OrtSyncStream* stream) {
  const auto handle = static_cast<Stream>(host.api->SyncStream_GetHandle(stream));
  OwnStreams& streams = TheStreams();
  std::lock_guard<std::mutex> lock(streams.mutex);
  const auto at = streams.alive.find(handle);
  return at == streams.alive.end() ? nullptr : at->second.lock();
}

SyncStream::SyncStream(const Host& host, int device, uint32_t version)
    : OrtSyncStreamImpl{}, host_(host), stream_(std::make_shared<OwnStream>(Device::At(device))) {
  ort_version_supported = version;
  Release = [](OrtSyncStreamImpl* self) { delete static_cast<SyncStream*>(self); };
  GetHandle = [](OrtSyncStreamImpl* self) -> void* {
    return static_cast<SyncStream*>(self)->stream_->handle();
  };
  CreateNotification = [](OrtSyncStreamImpl* self, OrtSyncNotificationImpl** made) {
    const auto& s = *static_cast<SyncStream*>(self);
    return Guard(s.host_, ORT_FAIL,
                 [&] { *made = new Notification(s.host_, s.stream_, s.ort_version_supported); });
  };
  Flush = [](OrtSyncStreamImpl* self) {
    const auto& s = *static_cast<SyncStream*>(self);
    return Guard(s.host_, ORT_FAIL, [&] { Told(s.stream_->device(), [&] { s.stream_->Wait(); }); });
  };
  OnSessionRunEnd = [](OrtSyncStreamImpl*) -> OrtStatus* { return nullptr; };
  OwnStreams& streams = TheStreams();
  std::lock_guard<std::mutex> lock(streams.mutex);
  streams.alive[stream_->handle()] = stream_;
}

SyncStream::~SyncStream() {
  OwnStreams& streams = TheStreams();
  std::lock_guard<std::mutex> lock(streams.mutex);
  streams.alive.erase(stream_->handle());
}

// ---- copies

enum class Side { kHost, kPinned, kDevice, kOther };

struct End {
  Side side;
  int device;
};

End EndOf(const Host& host, const OrtMemoryDevice* memory) {
  const OrtMemoryInfoDeviceType type = host.ep_api->MemoryDevice_GetDeviceType(memory);
  if (type == OrtMemoryInfoDeviceType_CPU) return {Side::kHost, 0};
  if (type != OrtMemoryInfoDeviceType_GPU ||
      host.ep_api->MemoryDevice_GetVendorId(memory) != kVendor) {
    return {Side::kOther, 0};
  }
  const auto device = static_cast<int>(host.ep_api->MemoryDevice_GetDeviceId(memory));
  const bool pinned =
      host.ep_api->MemoryDevice_GetMemoryType(memory) == OrtDeviceMemoryType_HOST_ACCESSIBLE;
  return {pinned ? Side::kPinned : Side::kDevice, device};
}

class DataTransfer : public OrtDataTransferImpl {
 public:
  DataTransfer(const Host& host, uint32_t version) : OrtDataTransferImpl{}, host_(host) {
    ort_version_supported = version;
    Release = [](OrtDataTransferImpl* self) { delete static_cast<DataTransfer*>(self); };
    CanCopy = [](const OrtDataTransferImpl* self, const OrtMemoryDevice* from,
                 const OrtMemoryDevice* to) {
      const Host& h = static_cast<const DataTransfer*>(self)->host_;
      const End a = EndOf(h, from), b = EndOf(h, to);
      if (a.side == Side::kOther || b.side == Side::kOther) return false;
      if (a.side == Side::kDevice && b.side == Side::kDevice) return a.device == b.device;
      return a.side != Side::kHost || b.side != Side::kHost;
    };
    CopyTensors = [](OrtDataTransferImpl* self, const OrtValue** from, OrtValue** to,
                     OrtSyncStream** streams, size_t count) {
      const auto& transfer = *static_cast<const DataTransfer*>(self);
      return Guard(transfer.host_, ORT_FAIL, [&] {
        for (size_t i = 0; i < count; ++i)
          transfer.Copy(from[i], to[i], streams ? streams[i] : nullptr);
      });
    };
  }

 private:
  void Copy(const OrtValue* from, OrtValue* to, OrtSyncStream* sync_stream) const {
    size_t bytes = 0;
    const void* source = nullptr;
    void* target = nullptr;
    Check(host_, host_.api->GetTensorSizeInBytes(from, &bytes));
    Check(host_, host_.api->GetTensorData(from, &source));
    Check(host_, host_.api->GetTensorMutableData(to, &target));
    if (bytes == 0) return;
    const End a = EndOf(host_, host_.ep_api->Value_GetMemoryDevice(from)),
              b = EndOf(host_, host_.ep_api->Value_GetMemoryDevice(to));
    if (a.side != Side::kDevice && b.side != Side::kDevice) {
      if (!target) throw std::bad_alloc();
      memcpy(target, source, bytes);
      return;
    }
    Device& device = Device::At(a.side == Side::kDevice ? a.device : b.device);
    Told(device, [&] {
      if (!target) device.FailForMemory(bytes);
      if (!sync_stream) device.Wait();  // nobody says what the copy follows
      const auto stream =
          sync_stream ? static_cast<Stream>(host_.api->SyncStream_GetHandle(sync_stream)) : nullptr;
      if (b.side != Side::kDevice) {
        PITC_CUDA(MemcpyDtoHAsync, target, reinterpret_cast<Address>(source), bytes, stream);
      } else if (a.side != Side::kDevice) {
        PITC_CUDA(MemcpyHtoDAsync, reinterpret_cast<Address>(target), source, bytes, stream);
      } else {
        PITC_CUDA(MemcpyDtoDAsync, reinterpret_cast<Address>(target),
                  reinterpret_cast<Address>(source), bytes, stream);
      }
      // Without a stream nobody waits; and what comes to the host is read, by a node of the CPU,
      // without asking whether it is there.
      if (!sync_stream || b.side != Side::kDevice) PITC_CUDA(StreamSynchronize, stream);
    });
  }

  const Host host_;
};

}  // namespace

OrtDataTransferImpl* NewDataTransfer(const Host& host, uint32_t version) {
  return new DataTransfer(host, version);
}

OrtSyncStreamImpl* NewSyncStream(const Host& host, int device, uint32_t version) {
  return new SyncStream(host, device, version);
}

Allocator::Allocator(const Host& host, const OrtMemoryInfo* info, int device, bool pinned,
                     uint32_t version)
    : OrtAllocator{}, host_(host), info_(info), device_(device), pinned_(pinned) {
  OrtAllocator::version = version;
  Alloc = [](OrtAllocator* self, size_t bytes) {
    return static_cast<Allocator*>(self)->Take(bytes, nullptr);
  };
  Reserve = Alloc;  // memory of a pool costs nothing that should be kept apart
  Free = [](OrtAllocator* self, void* memory) { static_cast<Allocator*>(self)->GiveBack(memory); };
  Info = [](const OrtAllocator* self) { return static_cast<const Allocator*>(self)->info_; };
  if (pinned) return;
  AllocOnStream = [](OrtAllocator* self, size_t bytes, OrtSyncStream* stream) {
    auto* const allocator = static_cast<Allocator*>(self);
    return allocator->Take(bytes, stream ? OwnStreamOf(allocator->host_, stream) : nullptr);
  };
}

void* Allocator::Take(size_t bytes, std::shared_ptr<OwnStream> stream) noexcept {
  if (bytes == 0) return nullptr;
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    if (pinned_) return device().TakePinned(bytes);
    const bool any_stream = !stream;  // may use it, and at once
    if (any_stream && !own_) own_ = std::make_shared<OwnStream>(device());
    if (any_stream) stream = own_;
    void* const memory = reinterpret_cast<void*>(device().Take(bytes, stream->handle()));
    if (any_stream) {
      own_->Wait();
      stream.reset();
    }
    taken_[memory] = stream;
    return memory;
  } catch (const OutOfDeviceMemory& failure) {
    LogError(host_, failure.what());
    return nullptr;
  } catch (const Failure&) {
    return kUnusable;
  } catch (...) {
    return nullptr;
  }
}

void Allocator::GiveBack(void* memory) noexcept {
  if (!memory) return;
  try {
    std::lock_guard<std::mutex> lock(mutex_);
    if (pinned_) return device().GiveBackPinned(memory);
    const auto at = taken_.find(memory);
    if (at == taken_.end()) return;
    const std::shared_ptr<OwnStream> stream = at->second.lock();
    taken_.erase(at);
    if (!stream) device().Wait();  // for whoever used it
    device().GiveBack(reinterpret_cast<Address>(memory), stream ? stream->handle() : nullptr);
  } catch (...) {  // the device is lost, and its memory with it
  }
}

}  // namespace pitc::cuda

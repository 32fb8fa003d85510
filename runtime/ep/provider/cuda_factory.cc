// The factory of the provider for NVIDIA GPUs. It offers one device for each GPU of the driver,
// none without a driver, and touches no GPU before a session or a tensor asks for it.
#include <cstring>
#include <memory>
#include <vector>

#include "device/device_run.h"
#include "device/ort_memory.h"
#include "plan/plan.h"
#include "provider/cuda_ep.h"
#include "provider/factory.h"

namespace pitc {
namespace {

class CudaFactory : public Factory {
 public:
  explicit CudaFactory(const Host& host) : Factory(host) {
    OrtEpFactory::GetName = [](const OrtEpFactory*) { return kCudaEpName; };
    OrtEpFactory::GetVendor = [](const OrtEpFactory*) { return "pitc"; };
    OrtEpFactory::GetVendorId = [](const OrtEpFactory*) -> uint32_t { return 0; };
    OrtEpFactory::GetVersion = [](const OrtEpFactory*) { return kEpVersion; };
    OrtEpFactory::GetSupportedDevices = OfferDevices;
    OrtEpFactory::CreateEp = MakeEp;
    OrtEpFactory::ReleaseEp = [](OrtEpFactory*, OrtEp* ep) { delete static_cast<CudaEp*>(ep); };
    OrtEpFactory::ValidateCompiledModelCompatibilityInfo = Validate;
    OrtEpFactory::CreateAllocator = MakeAllocator;
    OrtEpFactory::ReleaseAllocator = [](OrtEpFactory*, OrtAllocator* allocator) {
      delete static_cast<cuda::Allocator*>(allocator);
    };
    OrtEpFactory::CreateDataTransfer = [](OrtEpFactory* self, OrtDataTransferImpl** transfer) {
      const Host& h = static_cast<CudaFactory*>(self)->host();
      return Guard(h, ORT_FAIL,
                   [&] { *transfer = cuda::NewDataTransfer(h, self->ort_version_supported); });
    };
    OrtEpFactory::IsStreamAware = [](const OrtEpFactory*) { return true; };
    OrtEpFactory::CreateSyncStreamForDevice = [](OrtEpFactory* self, const OrtMemoryDevice* memory,
                                                 const OrtKeyValuePairs*,
                                                 OrtSyncStreamImpl** stream) {
      const Host& h = static_cast<CudaFactory*>(self)->host();
      return Guard(h, ORT_FAIL, [&] {
        const auto device = static_cast<int>(h.ep_api->MemoryDevice_GetDeviceId(memory));
        *stream = cuda::NewSyncStream(h, device, self->ort_version_supported);
      });
    };
  }

  ~CudaFactory() override {
    for (OrtMemoryInfo* info : infos_) host().api->ReleaseMemoryInfo(info);
  }

 private:
  static OrtStatus* OfferDevices(OrtEpFactory* self, const OrtHardwareDevice* const* devices,
                                 size_t count, OrtEpDevice** offered, size_t most,
                                 size_t* offered_count) {
    auto* const factory = static_cast<CudaFactory*>(self);
    const Host& host = factory->host();
    return Guard(host, ORT_FAIL, [&] {
      *offered_count = 0;
      if (!cuda::DriverTrouble().empty()) return;
      // The GPUs that ONNX Runtime knows of, in its order, which need not be the driver's: they say
      // what a device is, not which one. It may know of none; then the CPU stands for them.
      std::vector<const OrtHardwareDevice*> gpus;
      const OrtHardwareDevice* cpu = nullptr;
      for (size_t i = 0; i < count; ++i) {
        const OrtHardwareDeviceType type = host.api->HardwareDevice_Type(devices[i]);
        const bool nvidia = host.api->HardwareDevice_VendorId(devices[i]) == cuda::kVendor;
        if (type == OrtHardwareDeviceType_GPU && nvidia) gpus.push_back(devices[i]);
        if (type == OrtHardwareDeviceType_CPU && !cpu) cpu = devices[i];
      }
      const auto wanted = static_cast<size_t>(cuda::TheDriver().devices);
      for (size_t i = 0; i < wanted && *offered_count < most; ++i) {
        const OrtHardwareDevice* const hardware = i < gpus.size() ? gpus[i] : cpu;
        if (!hardware) continue;
        offered[*offered_count] = factory->Offer(hardware, static_cast<int>(i));
        ++*offered_count;
      }
    });
  }

  OrtEpDevice* Offer(const OrtHardwareDevice* hardware, int number) {
    const cuda::Device& device = cuda::Device::At(number);
    struct Pairs {
      const Host& host;
      OrtKeyValuePairs* pairs = nullptr;
      ~Pairs() { host.api->ReleaseKeyValuePairs(pairs); }
    } told{host()};
    host().api->CreateKeyValuePairs(&told.pairs);
    host().api->AddKeyValuePair(told.pairs, kDeviceKey, std::to_string(number).c_str());
    host().api->AddKeyValuePair(told.pairs, "name", device.name().c_str());
    host().api->AddKeyValuePair(told.pairs, "arch", Text("sm_", device.arch()).c_str());
    OrtEpDevice* made = nullptr;
    Check(host(), host().ep_api->CreateEpDevice(this, hardware, told.pairs, nullptr, &made));
    // The same type, vendor and number as other providers for these devices: tensors go from one
    // to the other as they are.
    for (const OrtDeviceMemoryType type :
         {OrtDeviceMemoryType_DEFAULT, OrtDeviceMemoryType_HOST_ACCESSIBLE}) {
      OrtMemoryInfo* info = nullptr;
      Check(host(),
            host().api->CreateMemoryInfo_V2(kCudaEpName, OrtMemoryInfoDeviceType_GPU, cuda::kVendor,
                                            number, type, 0, OrtDeviceAllocator, &info));
      infos_.push_back(info);
      Check(host(), host().ep_api->EpDevice_AddAllocatorInfo(made, info));
    }
    return made;
  }

  static OrtStatus* MakeEp(OrtEpFactory* self, const OrtHardwareDevice* const*,
                           const OrtKeyValuePairs* const* told, size_t count,
                           const OrtSessionOptions* options, const OrtLogger*, OrtEp** ep) {
    const Host& host = static_cast<CudaFactory*>(self)->host();
    return Guard(host, ORT_INVALID_ARGUMENT, [&] {
      if (count != 1) Fail("pitc: expected one CUDA device for a session, got ", count);
      const char* const number = host.api->GetKeyValue(told[0], kDeviceKey);
      if (!number) Fail("pitc: expected a device that ", kCudaEpName, " has offered");
      *ep = new CudaEp(host, options, std::stoi(number), self->ort_version_supported);
    });
  }

  static OrtStatus* MakeAllocator(OrtEpFactory* self, const OrtMemoryInfo* info,
                                  const OrtKeyValuePairs*, OrtAllocator** allocator) {
    const Host& host = static_cast<CudaFactory*>(self)->host();
    return Guard(host, ORT_FAIL, [&] {
      const OrtMemoryDevice* const memory = host.ep_api->MemoryInfo_GetMemoryDevice(info);
      const bool pinned =
          host.ep_api->MemoryDevice_GetMemoryType(memory) == OrtDeviceMemoryType_HOST_ACCESSIBLE;
      *allocator = new cuda::Allocator(
          host, info, static_cast<int>(host.ep_api->MemoryDevice_GetDeviceId(memory)), pinned,
          self->ort_version_supported);
    });
  }

  static OrtStatus* Validate(OrtEpFactory*, const OrtHardwareDevice* const*, size_t,
                             const char* info, OrtCompiledModelCompatibility* result) {
    *result = strcmp(info, kPlanFormat) == 0 ? OrtCompiledModelCompatibility_EP_SUPPORTED_OPTIMAL
                                             : OrtCompiledModelCompatibility_EP_UNSUPPORTED;
    return nullptr;
  }

  std::vector<OrtMemoryInfo*> infos_;  // devices know them by address
};

}  // namespace

std::unique_ptr<Factory> NewCudaFactory(const Host& host) {
  return std::make_unique<CudaFactory>(host);
}

}  // namespace pitc

// The factory of the provider for CPUs.
#include "provider/factory.h"

#include <cstring>

#include "plan/plan.h"
#include "provider/ep.h"

namespace pitc {
namespace {

// CPU memory only: no allocator, no data transfer, no streams.
class CpuFactory : public Factory {
 public:
  explicit CpuFactory(const Host& host) : Factory(host) {
    OrtEpFactory::GetName = [](const OrtEpFactory*) { return kEpName; };
    OrtEpFactory::GetVendor = [](const OrtEpFactory*) { return "pitc"; };
    OrtEpFactory::GetVendorId = [](const OrtEpFactory*) -> uint32_t { return 0; };
    OrtEpFactory::GetVersion = [](const OrtEpFactory*) { return kEpVersion; };
    OrtEpFactory::GetSupportedDevices = OfferCpu;
    OrtEpFactory::CreateEp = MakeEp;
    OrtEpFactory::ReleaseEp = [](OrtEpFactory*, OrtEp* ep) { delete static_cast<Ep*>(ep); };
    OrtEpFactory::ValidateCompiledModelCompatibilityInfo = Validate;
    OrtEpFactory::CreateAllocator = [](OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*,
                                       OrtAllocator** allocator) -> OrtStatus* {
      *allocator = nullptr;
      return nullptr;
    };
    OrtEpFactory::ReleaseAllocator = [](OrtEpFactory*, OrtAllocator*) {};
    OrtEpFactory::CreateDataTransfer = [](OrtEpFactory*,
                                          OrtDataTransferImpl** transfer) -> OrtStatus* {
      *transfer = nullptr;
      return nullptr;
    };
    OrtEpFactory::IsStreamAware = [](const OrtEpFactory*) { return false; };
    OrtEpFactory::CreateSyncStreamForDevice = [](OrtEpFactory*, const OrtMemoryDevice*,
                                                 const OrtKeyValuePairs*,
                                                 OrtSyncStreamImpl** stream) -> OrtStatus* {
      *stream = nullptr;
      return nullptr;
    };
  }

 private:
  static OrtStatus* OfferCpu(OrtEpFactory* self, const OrtHardwareDevice* const* devices,
                             size_t count, OrtEpDevice** offered, size_t most,
                             size_t* offered_count) {
    const Host& host = static_cast<CpuFactory*>(self)->host();
    return Guard(host, ORT_FAIL, [&] {
      *offered_count = 0;
      for (size_t i = 0; i < count && *offered_count < most; ++i) {
        if (host.api->HardwareDevice_Type(devices[i]) != OrtHardwareDeviceType_CPU) continue;
        Check(host, host.ep_api->CreateEpDevice(self, devices[i], nullptr, nullptr,
                                                &offered[*offered_count]));
        ++*offered_count;
        return;  // one is enough: memory and thread pool are the session's
      }
    });
  }

  static OrtStatus* MakeEp(OrtEpFactory* self, const OrtHardwareDevice* const*,
                           const OrtKeyValuePairs* const*, size_t, const OrtSessionOptions* options,
                           const OrtLogger* logger, OrtEp** ep) {
    Host host = static_cast<CpuFactory*>(self)->host();
    host.logger = logger;  // the session's
    return Guard(host, ORT_INVALID_ARGUMENT,
                 [&] { *ep = new Ep(host, options, self->ort_version_supported); });
  }

  static OrtStatus* Validate(OrtEpFactory*, const OrtHardwareDevice* const*, size_t,
                             const char* info, OrtCompiledModelCompatibility* result) {
    const bool good = strcmp(info, kPlanFormat) == 0 && MachineCpuLevel() != CpuLevel::kBaseline;
    *result = good ? OrtCompiledModelCompatibility_EP_SUPPORTED_OPTIMAL
                   : OrtCompiledModelCompatibility_EP_UNSUPPORTED;
    return nullptr;
  }
};

}  // namespace

std::unique_ptr<Factory> NewCpuFactory(const Host& host) {
  return std::make_unique<CpuFactory>(host);
}

}  // namespace pitc

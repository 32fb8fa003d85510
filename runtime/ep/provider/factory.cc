// The library's two exported functions, and the factory that ONNX Runtime gets from them.
#include <cstdio>
#include <cstring>
#include <memory>

#include "plan/plan.h"
#include "provider/ep.h"

namespace pitc {
namespace {

// CPU memory only: no allocator, no data transfer, no streams.
class Factory : public OrtEpFactory {
 public:
  explicit Factory(const Host& host) : OrtEpFactory{}, host_(host) {
    ort_version_supported = kOrtApiVersion;
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
    const Host& host = static_cast<Factory*>(self)->host_;
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
                           const OrtLogger*, OrtEp** ep) {
    const Host& host = static_cast<Factory*>(self)->host_;
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

  const Host host_;
};

}  // namespace
}  // namespace pitc

#define PITC_EXPORT extern "C" __attribute__((visibility("default")))

PITC_EXPORT OrtStatus* CreateEpFactories(const char*, const OrtApiBase* base, const OrtLogger*,
                                         OrtEpFactory** factories, size_t most, size_t* count) {
  const OrtApi* api = base->GetApi(kOrtApiVersion);
  if (!api) {  // version 1 is part of every release, and has CreateStatus in the same slot
    try {
      std::string text =
          pitc::Text("pitc: expected ONNX Runtime 1.23.2 or newer, got ", base->GetVersionString());
      return base->GetApi(1)->CreateStatus(ORT_FAIL, text.c_str());
    } catch (...) {
      return base->GetApi(1)->CreateStatus(ORT_FAIL, "pitc: expected ONNX Runtime 1.23.2 or newer");
    }
  }
  int version = 0;
  sscanf(base->GetVersionString(), "1.%d", &version);
  const pitc::Host host{api, api->GetEpApi(), version};
  return pitc::Guard(host, ORT_FAIL, [&] {
    if (most < 1) pitc::Fail("pitc: no room for a factory");
    factories[0] = new pitc::Factory(host);
    *count = 1;
  });
}

PITC_EXPORT OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) {
  delete static_cast<pitc::Factory*>(factory);
  return nullptr;
}

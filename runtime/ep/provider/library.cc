// What the library exports: its factories, and why there is no GPU.
#include <cstdio>
#include <memory>

#include "device/cuda_driver.h"
#include "provider/factory.h"

#define PITC_EXPORT extern "C" __attribute__((visibility("default")))

PITC_EXPORT OrtStatus* CreateEpFactories(const char*, const OrtApiBase* base,
                                         const OrtLogger* logger, OrtEpFactory** factories,
                                         size_t most, size_t* count) {
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
  const pitc::Host host{api, api->GetEpApi(), version, logger};
  return pitc::Guard(host, ORT_FAIL, [&] {
    if (most < 1) pitc::Fail("pitc: no room for a factory");
    std::unique_ptr<pitc::Factory> cpu = pitc::NewCpuFactory(host), cuda;
    if (most > 1) cuda = pitc::NewCudaFactory(host);
    *count = 0;
    for (auto* factory : {&cpu, &cuda}) {
      if (*factory) factories[(*count)++] = factory->release();
    }
  });
}

PITC_EXPORT OrtStatus* ReleaseEpFactory(OrtEpFactory* factory) {
  delete static_cast<pitc::Factory*>(factory);
  return nullptr;
}

// Why ONNX Runtime is offered no CUDA device: "", or one line, which stays where it is.
PITC_EXPORT const char* PitcCudaTrouble() {
  try {
    return pitc::cuda::DriverTrouble().c_str();
  } catch (...) {
    return "out of memory";
  }
}

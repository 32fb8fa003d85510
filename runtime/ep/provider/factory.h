// The factories that ONNX Runtime gets from the library: one for each provider.
#pragma once

#include <memory>

#include "ort/ort.h"

namespace pitc {

class Factory : public OrtEpFactory {
 public:
  explicit Factory(const Host& host) : OrtEpFactory{}, host_(host) {
    ort_version_supported = kOrtApiVersion;
  }
  virtual ~Factory() = default;

  const Host& host() const { return host_; }

 private:
  const Host host_;
};

std::unique_ptr<Factory> NewCpuFactory(const Host& host);
std::unique_ptr<Factory> NewCudaFactory(const Host& host);

}  // namespace pitc

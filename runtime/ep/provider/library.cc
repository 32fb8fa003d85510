// What the library exports: its factories, why there is no GPU, and what the selector goes by.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "device/cuda_driver.h"
#include "provider/factory.h"
#include "select/selector.h"

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

// What the selector knows of a contraction on one thread (`pitc/tiles/selector.py`).
//
// work: rows, k, panels, row_block, k_blocks, scanned; live elements, columns, stretches of
// columns; for each variant with tiles how many live, for each with blocks how many live, pieces of
// so many columns, stretches of those. features: [kVariants, kFeatures]. shares: how much each of
// kFactors counts.
PITC_EXPORT void PitcFeatures(const int64_t* work, double* features, double* shares) {
  pitc::Work w{};
  for (int64_t* size : {&w.rows, &w.k, &w.panels, &w.row_block, &w.k_blocks}) *size = *work++;
  w.scanned = *work++ != 0;
  for (int64_t* count : {&w.counts.elements, &w.live_columns, &w.live_runs[0]}) *count = *work++;
  for (const pitc::VariantRecord& v : pitc::kTable) {
    if (v.cut == pitc::Cut::kTile) w.counts.strips[v.place] = *work++;
    if (v.cut != pitc::Cut::kBlock) continue;
    w.counts.segments[v.place] = *work++;
    w.live_pieces[v.place] = *work++;
    w.live_runs[v.place + 1] = *work++;
  }
  for (int v = 0; v < pitc::kVariants; ++v) {
    const pitc::Features found = FeaturesOf(static_cast<pitc::Variant>(v), w);
    features = std::copy_n(found.amount, pitc::kFeatures, features);
  }
  std::fill_n(shares, pitc::kFactors, 0.0);
  for (const auto& grid : CornersOf(w).corners) {
    for (const auto& corner : grid) shares[corner.factor] += corner.share;
  }
}

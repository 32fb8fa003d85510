#include "simd/primitives.h"

namespace pitc {

namespace baseline {
extern const Primitives kPrimitives;
}
#if defined(__x86_64__)
namespace v3 {
extern const Primitives kPrimitives;
}
namespace v4 {
extern const Primitives kPrimitives;
}
#endif

MicroTileCounts& MicroTileCounts::operator+=(const MicroTileCounts& other) {
  elements += other.elements;
  for (int i = 0; i < kStripKinds; ++i) strips[i] += other.strips[i];
  for (int i = 0; i < kSegmentKinds; ++i) segments[i] += other.segments[i];
  return *this;
}

void MicroTileCounts::Scale(double all, double part) {
  const auto scale = [=](int64_t n) {
    return static_cast<int64_t>(static_cast<double>(n) * all / part);
  };
  elements = scale(elements);
  for (int64_t& n : strips) n = scale(n);
  for (int64_t& n : segments) n = scale(n);
}

const Primitives& PrimitivesOf(CpuLevel level) {
#if defined(__x86_64__)
  if (level >= CpuLevel::kV4) return v4::kPrimitives;
  if (level == CpuLevel::kV3) return v3::kPrimitives;
#endif
  static_cast<void>(level);
  return baseline::kPrimitives;
}

}  // namespace pitc

#include "simd/level.h"

namespace pitc::PITC_LEVEL {

extern const Primitives kPrimitives;
const Primitives kPrimitives = {kLevel,          LiveBits,  MaskBits,
                                CountMicroTiles, CountBits, FewPositions,
                                ManyPositions,   Pack,      Round};

}  // namespace pitc::PITC_LEVEL

// Which kernels a machine lacks and who is told, and lines in ONNX Runtime's log.
#include "base/cpu_level.h"

#include "check.h"
#include "ort/ort.h"

using pitc::CpuLevel;
using pitc::Host;
using pitc::Lack;
using pitc::LackOf;

struct OrtStatus {};

namespace {

constexpr CpuLevel kLevels[] = {CpuLevel::kBaseline, CpuLevel::kNeon,   CpuLevel::kV3,
                                CpuLevel::kV4,       CpuLevel::kV4Bf16, CpuLevel::kV4Amx};

// Kernels of float32 lack nothing, and who asked for a level knows what runs.
void UsualKernelsLackNothing() {
  for (const CpuLevel machine : kLevels) {
    for (const bool tiles : {false, true}) {
      for (const CpuLevel built : kLevels) {
        CHECK(LackOf(built, machine, tiles, true) == Lack::kNothing);
        if (built <= CpuLevel::kV4) CHECK(LackOf(built, machine, tiles, false) == Lack::kNothing);
      }
    }
  }
}

void KernelsOfBfloat16LackUnitsOrTiles() {
  for (const bool unit : {false, true}) {
    for (const CpuLevel built : {CpuLevel::kV4Bf16, CpuLevel::kV4Amx}) {
      for (const CpuLevel machine : {CpuLevel::kNeon, CpuLevel::kV3, CpuLevel::kV4})
        CHECK(LackOf(built, machine, unit, false) == Lack::kUnits);
    }
    CHECK(LackOf(CpuLevel::kV4Amx, CpuLevel::kV4Bf16, unit, false) == Lack::kNothing);
    CHECK(LackOf(CpuLevel::kV4Bf16, CpuLevel::kV4Amx, unit, false) == Lack::kNothing);
  }
  CHECK(LackOf(CpuLevel::kV4Bf16, CpuLevel::kV4Bf16, false, false) == Lack::kSpeed);
  CHECK(LackOf(CpuLevel::kV4Bf16, CpuLevel::kV4Bf16, true, false) == Lack::kNothing);
  CHECK(LackOf(CpuLevel::kV4Amx, CpuLevel::kV4Amx, false, false) == Lack::kTiles);
  CHECK(LackOf(CpuLevel::kV4Amx, CpuLevel::kV4Amx, true, false) == Lack::kNothing);
}

void TheBestLevelRuns() {
  constexpr CpuLevel kNeon = CpuLevel::kNeon, kV3 = CpuLevel::kV3, kV4 = CpuLevel::kV4,
                     kV4Bf16 = CpuLevel::kV4Bf16, kV4Amx = CpuLevel::kV4Amx;
  for (const bool unit : {false, true}) {
    for (const CpuLevel machine : kLevels) {
      for (const CpuLevel built : {kNeon, kV3, kV4})
        CHECK(pitc::Runs(built, machine, unit) == (built <= machine));
    }
    CHECK(pitc::Runs(kV4Amx, kV4Amx, unit) == unit);
    CHECK(!pitc::Runs(kV4Amx, kV4Bf16, unit));
    CHECK(pitc::Runs(kV4Bf16, kV4Bf16, unit) == unit);
    CHECK(!pitc::Runs(kV4Bf16, kV4Amx, unit));
    CHECK(!pitc::Runs(kV4Bf16, kV4, unit));
  }
}

// A log: what it shows, what it was given, statuses that are not released, and a call that fails.
OrtLoggingLevel least;
std::string shown;
int alive;
bool fails_to_tell, fails_to_log;

OrtStatus* Status(bool fails) {
  alive += fails;
  return fails ? new OrtStatus : nullptr;
}

OrtApi Api() {
  OrtApi api{};
  api.ReleaseStatus = [](OrtStatus* status) {
    --alive;
    delete status;
  };
  api.Logger_GetLoggingSeverityLevel = [](const OrtLogger*, OrtLoggingLevel* out) {
    *out = least;
    return Status(fails_to_tell);
  };
  api.Logger_LogMessage = [](const OrtLogger*, OrtLoggingLevel level, const char* text,
                             const ORTCHAR_T*, int, const char*) {
    shown += (level == ORT_LOGGING_LEVEL_WARNING ? "W " : "E ") + std::string(text) + "\n";
    return Status(fails_to_log);
  };
  return api;
}

// Where nobody sees it, it is still to be said.
void WarningsAreShownOnce() {
  const OrtApi api = Api();
  int logger = 0;
  const Host host{&api, nullptr, 24, reinterpret_cast<const OrtLogger*>(&logger)};
  const Host silent{&api, nullptr, 24};
  std::atomic<bool> told{false}, other{false};
  WarnOnce(silent, &told, "a");
  for (const auto level : {ORT_LOGGING_LEVEL_ERROR, ORT_LOGGING_LEVEL_FATAL}) {
    least = level;
    WarnOnce(host, &told, "a");
  }
  least = ORT_LOGGING_LEVEL_WARNING;
  fails_to_tell = true;
  WarnOnce(host, &told, "a");
  fails_to_tell = false;
  CHECK(!told && shown.empty());
  for (int i = 0; i < 2; ++i) {
    WarnOnce(host, &told, "a");
    CHECK(told && shown == "W a\n");
  }
  fails_to_log = true;
  WarnOnce(host, &other, "b");
  LogError(host, "c");
  LogError(silent, "d");
  CHECK(other && shown == "W a\nW b\nE c\n");
  CHECK(alive == 0);
}

}  // namespace

int main() {
  return pitc::test::RunTests(
      {{"usual kernels lack nothing", UsualKernelsLackNothing},
       {"kernels of bfloat16 lack units or tiles", KernelsOfBfloat16LackUnitsOrTiles},
       {"the best level runs", TheBestLevelRuns},
       {"warnings are shown once", WarningsAreShownOnce}});
}

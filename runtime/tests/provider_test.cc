// The whole provider in a fake ONNX Runtime: threads, loading and unloading, failing calls.
#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <malloc.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <utility>

#include "node_inputs.h"

using pitc::test::alive;
using pitc::test::Contains;
using pitc::test::failing_call;
using pitc::test::Library;
using pitc::test::Options;
using pitc::test::PlanCase;
using pitc::test::Random;
using pitc::test::Session;
using pitc::test::Thrown;

namespace {

constexpr int kThreads = 8, kRuns = 500, kShapes = 40;

// All of them.
const std::vector<PlanCase>& Cases() {
  static const std::vector<PlanCase> cases = [] {
    std::vector<PlanCase> found;
    for (const auto& entry : std::filesystem::directory_iterator(PITC_TEST_PLANS))
      found.emplace_back(entry.path().filename());
    return found;
  }();
  return cases;
}

// One session of each operation, used by all threads at once, each with other shapes: the bits are
// those of one thread.
void EightThreads() {
  const Library library(PITC_TEST_LIBRARY);
  for (const PlanCase& c : Cases()) {
    const auto session = c.Make(library);
    std::vector<std::vector<OrtValue>> inputs, expected;
    Random random(11);
    for (int i = 0; i < kShapes; ++i) {
      inputs.push_back(pitc::test::MakeInputs(c.plan, random, i + 1));
      expected.push_back(session->Run(inputs.back()));
    }
    std::atomic<int> wrong{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (size_t run = 0; run < kRuns; ++run) {
          const size_t i = (run * 7 + static_cast<size_t>(t) * 5) % kShapes;
          if (!(session->Run(inputs[i]) == expected[i])) ++wrong;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (wrong) printf("%s: %d of %d runs differ\n", c.name.c_str(), wrong.load(), kThreads * kRuns);
    CHECK(wrong == 0);
  }
  CHECK(alive == 0);
}

// Work large enough for ONNX Runtime's pool, from two threads at once.
void LargeRunsOnThePool() {
  const Library library(PITC_TEST_LIBRARY);
  for (const PlanCase& c : Cases()) {
    const auto session = c.Make(library);
    Random random(13);
    const bool moves = !pitc::test::ContractOf(c.plan) && c.plan.op.find("attention") != 0;
    const std::vector<OrtValue> inputs = pitc::test::MakeInputs(c.plan, random, moves ? 900 : 300);
    const std::vector<OrtValue> expected = session->Run(inputs);
    std::thread other([&] { CHECK(session->Run(inputs) == expected); });
    CHECK(session->Run(inputs) == expected);
    other.join();
  }
}

// Sessions are made and dropped while others run, all of the same kernels.
void SessionsComeAndGo() {
  const Library library(PITC_TEST_LIBRARY);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Random random(t);
      for (int round = 0; round < 30; ++round) {
        const PlanCase& c =
            Cases()[static_cast<size_t>(random.Below(static_cast<int64_t>(Cases().size())))];
        c.Make(library)->Run(pitc::test::MakeInputs(c.plan, random, 9));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(alive == 0);
}

// Load, make a session, run on a thread that ends, drop, unload, always beside another copy of the
// kernels: what is in use does not grow.
void LoadAndUnload() {
  const std::filesystem::path kernels = PITC_TEST_KERNELS;
  const auto folder = kernels.parent_path() / ("unload." + std::to_string(getpid()));
  size_t before = 0;
  for (size_t round = 0; round < 1000; ++round) {
    const auto beside = folder / std::to_string(round);
    std::filesystem::create_directories(beside);
    std::filesystem::create_hard_link(kernels, beside / kernels.filename());
    {
      const Library library(PITC_TEST_LIBRARY);
      std::thread([&] {
        const PlanCase& c = Cases()[round % Cases().size()];
        Random random(17);
        c.Make(library, {}, beside / "model.onnx")->Run(pitc::test::MakeInputs(c.plan, random, 9));
      }).join();
    }
    std::filesystem::remove_all(beside);
    if (round == 99) before = mallinfo2().uordblks;
  }
  const auto grown = static_cast<int64_t>(mallinfo2().uordblks) - static_cast<int64_t>(before);
  printf("in use after 900 more rounds: %lld bytes more\n", static_cast<long long>(grown));
  CHECK(grown < 16 << 10);
  CHECK(alive == 0);
  std::filesystem::remove_all(folder);
}

// Every call of ONNX Runtime's functions fails once: the provider says so, or does without, and
// gives everything back.
void FailOnce() {
  for (const PlanCase& c : Cases()) {
    int64_t failed = 0;
    for (int64_t call = 1;; ++call) {
      Random random(19);
      const std::vector<OrtValue> inputs = pitc::test::MakeInputs(c.plan, random, 5);
      failing_call = call;
      const std::string error = Thrown([&] {
        const Library library(PITC_TEST_LIBRARY);
        c.Make(library)->Run(inputs);
      });
      const bool reached = failing_call == 0;
      failing_call = 0;
      CHECK(alive == 0);
      failed += !error.empty();
      CHECK(reached || error.empty());
      for (char letter : error) CHECK(letter >= ' ' && letter <= '~');
      if (!reached) break;
    }
    CHECK(failed > 20);
  }
}

void EveryCallFailsOnce() { FailOnce(); }

// The oldest one has no function that shows a shape where it is.
void OldestRuntime() {
  const auto run = [](const PlanCase& c) {
    Random random(29);
    const Library library(PITC_TEST_LIBRARY);
    return c.Make(library)->Run(pitc::test::MakeInputs(c.plan, random, 9));
  };
  std::vector<std::vector<OrtValue>> expected;
  for (const PlanCase& c : Cases()) expected.push_back(run(c));
  const char* const newest = std::exchange(pitc::test::version, "1.23.2");
  for (size_t i = 0; i < Cases().size(); ++i) CHECK(run(Cases()[i]) == expected[i]);
  FailOnce();
  pitc::test::version = newest;
}

// The choice is by what lives, unless it is told to be dense; lines tell it.
void ChoosesChannels() {
  const Library library(PITC_TEST_LIBRARY);
  const PlanCase c("choose_channels");  // 3, 24, 24, 40 channels; 10, 2 and 3 for each pair
  const auto path = std::filesystem::path(PITC_TEST_KERNELS).parent_path() /
                    ("channels." + std::to_string(getpid()));
  const auto run = [&](const Session& session, int64_t first, int64_t second, int64_t third,
                       float live) {
    std::vector<float> flags(104);
    std::fill_n(&flags[0], first, live);
    std::fill_n(&flags[40], second, live);
    std::fill_n(&flags[64], third, live);
    const auto y = session.Run({OrtValue::Of(pitc::test::kFloatType, {104}, flags)});
    CHECK(y.size() == 1 && y[0].dims.empty() && y[0].type == pitc::test::kBoolType);
    return y[0].bytes[0] != 0;
  };
  const auto chosen = c.Make(library), other = c.Make(library, {{"variant", "row"}}),
             dense = c.Make(library, {{"variant", "dense"}, {"trace", path}}),
             traced = c.Make(library, {{"trace", path}});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const auto& session : {&chosen, &other, &traced}) {
    // 30 * 24 + 2 * 24 * 24 + 3 * 24 * 19 = 3240, what pays; 30 * 16 + 2 * 16 * 24 + 3 * 24 * 27
    CHECK(run(**session, 24, 24, 19, 1) && !run(**session, 24, 24, 20, 1));
    CHECK(run(**session, 16, 24, 27, 1e-42f) && !run(**session, 16, 24, 28, 1e-42f));
    CHECK(!run(**session, 24, 24, 20, nan));
    for (float zero : {0.0f, -0.0f, -1.0f, -std::numeric_limits<float>::infinity()})
      CHECK(run(**session, 24, 24, 40, zero));
  }
  CHECK(!run(*dense, 24, 24, 19, 1) && !run(*dense, 0, 0, 0, 1));
  std::ifstream stream(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::filesystem::remove(path);
  CHECK(lines.size() == 3 * 11);
  lines.resize(33);
  CHECK(lines[1] ==
        "{\"node\": \"stage.1/conv\", \"channels\": 24, \"live_channels\": 24, \"filters\": 24, "
        "\"live_filters\": 24, \"work\": 4752, \"live_work\": 3240, \"budget\": 3240, "
        "\"chosen\": \"channels\"}");
  CHECK(lines[5] ==
        "{\"node\": \"\xc3\xa4,\", \"channels\": 24, \"live_channels\": 24, \"filters\": 40, "
        "\"live_filters\": 20, \"work\": 4752, \"live_work\": 3312, \"budget\": 3240, "
        "\"chosen\": \"dense\"}");
  CHECK(lines[32] ==
        "{\"node\": \"\xc3\xa4,\", \"channels\": 24, \"live_channels\": 0, \"filters\": 40, "
        "\"live_filters\": 0, \"work\": 4752, \"live_work\": 0, \"budget\": 3240, \"chosen\": "
        "\"dense\"}");

  const auto error = [&](const OrtValue& flags) { return Thrown([&] { chosen->Run({flags}); }); };
  const std::vector<float> some(200);
  for (const char* count : {"103", "105"}) {
    CHECK(Contains(error(OrtValue::Of(pitc::test::kFloatType, {atoi(count)}, some)),
                   "(choose_channels): expected flags as float32 [104], got float32 [" +
                       std::string(count) + "]"));
  }
  CHECK(Contains(error(OrtValue::Of(pitc::test::kFloatType, {1, 104}, some)),
                 "expected flags as float32 of rank 1, got float32 [1, 104]"));
  CHECK(Contains(error(OrtValue::Of(pitc::test::kInt32Type, {104}, some)),
                 "expected flags as float32 of rank 1, got int32 [104]"));
}

// A host writes into its own tensors while a node reads them: what was checked is what is used.
void HostWritesMeanwhile() {
  const Library library(PITC_TEST_LIBRARY);
  for (const PlanCase& c : Cases()) {
    const auto session = c.Make(library);
    Random random(23);
    for (int64_t most : {3, 40, 150}) {
      const std::vector<OrtValue> inputs = pitc::test::MakeInputs(c.plan, random, most);
      const std::vector<OrtValue> expected = session->Run(inputs);
      for (char byte : {'\x01', '\x7f', '\xff'}) {
        int calls = 0;
        const struct Quiet {
          ~Quiet() { pitc::test::meanwhile = nullptr; }
        } afterwards;
        pitc::test::meanwhile = [&](std::vector<OrtValue>& now) {
          ++calls;
          for (OrtValue& value : now) {
            const bool lists = value.type == pitc::test::kInt32Type;
            const bool mask = value.type == pitc::test::kBoolType && c.plan.op != "elementwise";
            if (lists || mask) std::fill(value.bytes.begin(), value.bytes.end(), byte);
          }
        };
        std::vector<OrtValue> found;
        const std::string error = Thrown([&] { found = session->Run(inputs); });
        // The first output of a `detect` is made when all of the mask has been read.
        if (!(found == expected)) printf("%s: other results %s\n", c.name.c_str(), error.c_str());
        CHECK(calls > 0 && found == expected);
      }
    }
  }
}

// A second ONNX Runtime in the process registers the library: sessions of the first one stay there.
void TwoRuntimes() {
  const Library library(PITC_TEST_LIBRARY);
  for (const PlanCase& c : Cases()) {
    Random random(29);
    const std::vector<OrtValue> inputs = pitc::test::MakeInputs(c.plan, random, 9);
    const auto before = c.Make(library);
    const std::vector<OrtValue> expected = before->Run(inputs);
    const Library other(PITC_TEST_LIBRARY, true);
    CHECK(before->Run(inputs) == expected);
    CHECK(c.Make(library)->Run(inputs) == expected);
    CHECK(Contains(Thrown([&] { c.Make(other); }), "from another ONNX Runtime"));
  }
  CHECK(alive == 0);
}

// What a run says, and with which code; "" where nothing is wrong.
std::string Said(const Session& session, const std::vector<OrtValue>& inputs, OrtErrorCode* code) {
  try {
    session.Run(inputs);
  } catch (const pitc::test::Error& error) {
    *code = error.code;
    return error.what();
  }
  return "";
}

// Products with more scratch memory than threads keep: in the node's own thread, and in its tasks.
std::vector<PlanCase> LargeCases() {
  return {PlanCase("contract"), PlanCase("contract_right_wide").With(69, 2100)};
}

std::vector<OrtValue> LargeInputs(const PlanCase& c) {
  constexpr int64_t kRows = 3000, kFewRows = 100;
  Random random(31);
  const pitc::ContractPlan& plan = *pitc::test::ContractOf(c.plan);
  if (plan.right != pitc::ContractPlan::kPanels)
    return pitc::test::MakeRightInputs(plan, random, kFewRows, false);
  return {pitc::test::RandomFloats(random, {kRows, plan.k}),
          pitc::test::RandomPanels(random, plan.k, plan.n, 16)};
}

// No memory has a code of its own, on this thread, on the pool's, and for an output.
void OutOfMemory() {
  const Library library(PITC_TEST_LIBRARY);
  for (const PlanCase& c : LargeCases()) {
    const auto session = c.Make(library, {{"variant", "tile8"}});
    const std::vector<OrtValue> inputs = LargeInputs(c);
    const std::vector<OrtValue> expected = session->Run(inputs);
    int told = 0;
    for (int64_t pieces = 0;; ++pieces) {
      pitc::test::lendable = pieces;
      OrtErrorCode code = ORT_FAIL;
      const std::string said = Said(*session, inputs, &code);
      const bool enough = pitc::test::lendable > 0;
      pitc::test::lendable = -1;
      CHECK(pitc::test::lent == 0);
      if (said.empty()) {
        if (enough) break;
        continue;
      }
      CHECK(said == "pitc: node 'n' (" + c.plan.op + "): out of memory");
      CHECK(code == ORT_EP_FAIL);
      ++told;
    }
    CHECK(session->Run(inputs) == expected);
    CHECK(told > 0);
  }
  const PlanCase unpack("unpack");
  const auto session = unpack.Make(library);
  OrtErrorCode code = ORT_FAIL;
  const auto ints = [](std::vector<int64_t> dims) {
    return OrtValue::Of(pitc::test::kInt32Type, std::move(dims), std::vector<int32_t>());
  };
  std::vector<OrtValue> huge = {
      OrtValue::Of(pitc::test::kFloatType, {0, 30000}, std::vector<float>()), ints({0}),
      ints({2, 0}), OrtValue::Of(pitc::test::kBoolType, {1, 30000}, std::vector<uint8_t>(30000))};
  huge.resize(static_cast<size_t>(pitc::test::InputCount(unpack.plan)));
  CHECK(Contains(Said(*session, huge, &code), "(unpack): out of memory"));
  CHECK(code == ORT_EP_FAIL);
  CHECK(alive == 0);
}

// Large scratch memory is ONNX Runtime's, and is given back before the run ends.
void ScratchIsLent() {
  const Library library(PITC_TEST_LIBRARY);
  for (const PlanCase& c : LargeCases()) {
    const auto session = c.Make(library, {{"variant", "row"}});
    pitc::test::most_lent = 0;
    session->Run(LargeInputs(c));
    CHECK(pitc::test::most_lent > 256 << 10);  // more than a thread keeps
    CHECK(pitc::test::lent == 0);
  }
  CHECK(alive == 0);
}

// How a thread rounds, and what it does with denormals: other ways than usual.
#if defined(__aarch64__)
constexpr uint64_t kModes[] = {1u << 22, 2u << 22, 3u << 22, 1u << 24};
uint64_t Mode() {
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
void SetMode(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#else
constexpr uint64_t kModes[] = {0x1f80u | 1u << 13, 0x1f80u | 2u << 13, 0xffc0u, 0x9fc0u};
uint64_t Mode() { return _mm_getcsr() & ~0x3fu; }  // without what has happened so far
void SetMode(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#endif

// Results do not depend on how the caller's thread, or those of the pool, round and take denormals;
// the caller's mode stays.
void RoundsAsItWants() {
  const Library library(PITC_TEST_LIBRARY);
  for (const PlanCase& c : Cases()) {
    const auto session = c.Make(library);
    Random random(41);
    for (int64_t most : {9, 200}) {
      const std::vector<OrtValue> inputs = pitc::test::MakeInputs(c.plan, random, most);
      const std::vector<OrtValue> expected = session->Run(inputs);
      const uint64_t before = Mode();
      for (uint64_t mode : kModes) {
        SetMode(mode);  // threads of the pool begin with it
        const std::vector<OrtValue> found = session->Run(inputs);
        const uint64_t after = Mode();
        SetMode(before);
        CHECK(after == mode);
        if (!(found == expected)) printf("%s: other results\n", c.name.c_str());
        CHECK(found == expected);
      }
    }
  }
}

// Kernels of another build may have the same symbols and mean other arguments.
void OtherKernels() {
  const Library library(PITC_TEST_LIBRARY);
  for (const PlanCase& c : Cases()) {
    if (c.plan.library.empty()) continue;
    PlanCase other = c;
    const std::string line = "identity=2/reference";
    other.text.replace(other.text.find(line), line.size(), "identity=2/pitc-9/0123");
    const std::string error = Thrown([&] { other.Make(library); });
    CHECK(Contains(error, "pitc: node 'n' (" + c.plan.op +
                              "): expected kernels '2/pitc-9/0123' in '" + c.plan.library +
                              "', got '2/reference'; run: pitc compile "));
    CHECK(Contains(error, " --force"));
  }
  CHECK(alive == 0);
}

void OldAndOddHosts() {
  const Library library(PITC_TEST_LIBRARY);
  const PlanCase& c = Cases()[0];
  const auto error = [&](const std::string& text, int inputs, const Options& options = {}) {
    return Thrown([&] { Session(library, text, PITC_TEST_KERNELS, inputs, 1, options); });
  };
  const char* const lowest = pitc::Name(*(std::end(pitc::kKernelLevels) - 1));
  CHECK(Contains(error(c.text, 9), "inputs and"));
  CHECK(Contains(error("", 1), "expected the line"));
  CHECK(Contains(error(c.text, 1, {{"cpu_level", "v5"}}),
                 std::string("expected cpu_level ") + pitc::kKernelLevelNames + ", got 'v5'"));
  setenv("PITC_CPU", "v5", 1);
  CHECK(Contains(error(c.text, 1),
                 std::string("expected PITC_CPU ") + pitc::kKernelLevelNames + ", got 'v5'"));
  CHECK(Contains(error(c.text, 9, {{"cpu_level", lowest}}), "inputs and"));  // the option wins
  setenv("PITC_CPU", pitc::Name(pitc::kKernelLevels[0]), 1);
  if (pitc::kKernelLevels[0] > pitc::MachineCpuLevel())
    CHECK(Contains(error(c.text, 1), "expected PITC_CPU up to "));
  for (const char* empty_or_low : {"", lowest}) {
    setenv("PITC_CPU", empty_or_low, 1);
    CHECK(Contains(error(c.text, 9), "inputs and"));
  }
  unsetenv("PITC_CPU");
  CHECK(Contains(error(c.text, 1, {{"variant", "tile9"}}),
                 "expected variant as one of dense, row, tile8, block16, block32, block64, "
                 "got 'tile9'"));
  CHECK(Contains(error(c.text, 1, {{"trace", "/nowhere/t"}}),
                 "cannot write the trace file '/nowhere/t': No such file"));
  CHECK(Contains(Thrown([&] { Session(library, c.text, "", 1, 1); }), "a model from memory") ||
        c.plan.library.empty());
  CHECK(alive == 0);
}

}  // namespace

int main() {
  return pitc::test::RunTests({{"load and unload", LoadAndUnload},
                               {"eight threads on one session", EightThreads},
                               {"large runs on the pool", LargeRunsOnThePool},
                               {"sessions come and go", SessionsComeAndGo},
                               {"every call fails once", EveryCallFailsOnce},
                               {"oldest runtime", OldestRuntime},
                               {"chooses channels", ChoosesChannels},
                               {"host writes meanwhile", HostWritesMeanwhile},
                               {"two runtimes", TwoRuntimes},
                               {"out of memory", OutOfMemory},
                               {"scratch is lent", ScratchIsLent},
                               {"rounds as it wants", RoundsAsItWants},
                               {"kernels of another build", OtherKernels},
                               {"odd hosts", OldAndOddHosts}});
}

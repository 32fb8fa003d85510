// The whole provider in a fake ONNX Runtime: threads, loading and unloading, failing calls.
#include <malloc.h>
#include <unistd.h>

#include <thread>

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
    const bool moves = !pitc::test::LastProduct(c.plan) && c.plan.op != "attention";
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
void EveryCallFailsOnce() {
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

void OldAndOddHosts() {
  const Library library(PITC_TEST_LIBRARY);
  const PlanCase& c = Cases()[0];
  const auto error = [&](const std::string& text, int inputs, const Options& options = {}) {
    return Thrown([&] { Session(library, text, PITC_TEST_KERNELS, inputs, 1, options); });
  };
  CHECK(Contains(error(c.text, 9), "inputs and"));
  CHECK(Contains(error("", 1), "expected the line"));
  CHECK(Contains(error(c.text, 1, {{"cpu_level", "v5"}}), "expected cpu_level v3 or v4, got 'v5'"));
  CHECK(Contains(error(c.text, 1, {{"variant", "tile9"}}),
                 "expected variant as one of dense, row, tile8, tile32, block16, block32, block64, "
                 "got 'tile9'"));
  CHECK(Contains(error(c.text, 1, {{"trace", "/nowhere/t"}}),
                 "cannot write the trace file '/nowhere/t': No such file"));
  CHECK(Contains(Thrown([&] { Session(library, c.text, "", 1, 1); }), "a model from memory") ||
        c.plan.op == "detect");
  CHECK(alive == 0);
}

}  // namespace

int main() {
  return pitc::test::RunTests({{"load and unload", LoadAndUnload},
                               {"eight threads on one session", EightThreads},
                               {"large runs on the pool", LargeRunsOnThePool},
                               {"sessions come and go", SessionsComeAndGo},
                               {"every call fails once", EveryCallFailsOnce},
                               {"odd hosts", OldAndOddHosts}});
}

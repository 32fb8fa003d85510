// Constants that the provider keeps: copies, shared ones, and nodes that read them.
#include "ort/constants.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <bitset>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "check.h"
#include "node_inputs.h"
#include "ort/large_memory.h"

using pitc::Constant;
using pitc::Constants;
using pitc::MemoryNodes;
using pitc::Shape;
using pitc::Tensor;
using pitc::test::alive;
using pitc::test::Contains;
using pitc::test::failing_call;
using pitc::test::Initializers;
using pitc::test::Library;
using pitc::test::PlanCase;
using pitc::test::Random;
using pitc::test::Session;
using pitc::test::Thrown;

namespace {

Tensor Bytes(const std::vector<char>& bytes) {
  return {"b", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, Shape{static_cast<int64_t>(bytes.size())},
          bytes.data()};
}

std::vector<char> Filled(size_t size) {
  std::vector<char> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + (i >> 9));
  return bytes;
}

// Around the sizes of pages and of what begins with a huge one.
void CopiesAreEqualAndApart() {
  constexpr size_t kMega = size_t{1} << 20;
  for (size_t size : {size_t{0}, size_t{1}, size_t{63}, kMega - 1, kMega, kMega + 1, 2 * kMega - 1,
                      2 * kMega, 2 * kMega + 4097, 5 * kMega + 3}) {
    std::vector<char> bytes = Filled(size);
    const std::vector<char> before = bytes;
    const Constant constant(Bytes(bytes));
    const Tensor& tensor = constant.tensor();
    CHECK(constant.IsCopyOf(Bytes(bytes)));
    CHECK(tensor.data != bytes.data() && tensor.shape == Shape{static_cast<int64_t>(size)});
    CHECK(reinterpret_cast<size_t>(tensor.data) % 64 == 0);
    if (size >= kMega) CHECK(reinterpret_cast<size_t>(tensor.data) % (2 * kMega) == 0);
    if (size == 0) continue;
    bytes.back() ^= 1;
    CHECK(!constant.IsCopyOf(Bytes(bytes)));
    CHECK(memcmp(tensor.data, before.data(), size) == 0);
  }
}

// The kernel's policy for a page, and the nodes that it names; -1 where it does not tell.
int PolicyOf(const void* memory, MemoryNodes* nodes) {
  int policy = -1;
  constexpr int kOfAddress = 2;
  syscall(SYS_get_mempolicy, &policy, nodes->data(), 8 * sizeof *nodes, memory, kOfAddress);
  return policy;
}

// Where there are several memory nodes, pages come from each of them. A mask with bits of nodes
// that are not there stands for several on a machine that has one.
void NodesTakeTurns() {
  constexpr size_t kBytes = (size_t{5} << 20) + 3;
  constexpr int kDefault = 0, kInterleave = 3;
  const MemoryNodes usable = pitc::UsableNodes();
  size_t count = 0;
  for (unsigned long word : usable) count += std::bitset<64>(word).count();
  MemoryNodes first{}, two{}, strange{}, got{};
  for (size_t i = 0; i < usable.size() && !first[i]; ++i) first[i] = usable[i] & -usable[i];
  two = usable;
  if (count == 1) two[15] |= 1ul << 63;
  strange[15] = 3ul << 62;
  const struct {
    MemoryNodes nodes;
    int policy;
  } cases[] = {{usable, count > 1 ? kInterleave : kDefault},
               {first, kDefault},  // nothing is asked for
               {two, kInterleave},
               {strange, kDefault},  // refused
               {{}, kDefault}};
  const bool told = PolicyOf(&got, &got) >= 0 && count > 0;
  if (!told) printf("the system tells no policy of memory\n");
  for (const auto& [nodes, policy] : cases) {
    auto* const memory = static_cast<char*>(pitc::MapLarge(kBytes, nodes));
    for (size_t at : {size_t{0}, kBytes / 2, kBytes - 1}) {
      got = {};
      if (told) CHECK(PolicyOf(memory + at, &got) == policy);
      if (told && policy == kInterleave) CHECK(got == usable);
      CHECK(memory[at] == 0);
      memory[at] = 1;
    }
    pitc::UnmapLarge(memory, kBytes);
  }
}

void EqualOnesAreShared() {
  Constants constants;
  const std::vector<char> bytes = Filled(3 << 20), other(3 << 20);
  const auto first = constants.Keep("b", Bytes(bytes));
  CHECK(constants.Keep("b", Bytes(bytes)) == first);
  CHECK(constants.Keep("c", Bytes(bytes)) != first);
  const auto second = constants.Keep("b", Bytes(other));  // another graph's value of that name
  CHECK(second != first && second->IsCopyOf(Bytes(other)));
  CHECK(constants.Keep("b", Bytes(other)) == second && constants.Keep("b", Bytes(bytes)) == first);
  Tensor shaped = Bytes(bytes);
  shaped.shape = Shape{3, 1 << 20};
  CHECK(constants.Keep("b", shaped) != first);
  Tensor typed = Bytes(bytes);
  typed.type = ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL;
  CHECK(constants.Keep("b", typed) != first);
  // Those of a file are found by its name and place, before anybody reads them again.
  const pitc::FilePart part{"/nowhere/f", 4, bytes.size()};
  CHECK(!constants.Find("e", part));
  auto of_file = constants.Keep("e", Bytes(bytes), part);
  CHECK(constants.Find("e", part) == of_file && !constants.Find("b", part));
  CHECK(!constants.Find("e", {"/nowhere/g", 4, bytes.size()}));
  CHECK(!constants.Find("e", {"/nowhere/f", 5, bytes.size()}));
  CHECK(!constants.Find("e", {"/nowhere/f", 4, bytes.size() - 1}));
  of_file.reset();
  CHECK(!constants.Find("e", part));
  // What no node holds any more is gone.
  const std::weak_ptr<const Constant> gone = constants.Keep("d", Bytes(bytes));
  CHECK(gone.expired() && constants.Keep("d", Bytes(bytes))->IsCopyOf(Bytes(bytes)));
}

std::vector<PlanCase> Cases() {
  std::vector<PlanCase> cases;
  for (const auto& file : std::filesystem::directory_iterator(PITC_TEST_PLANS))
    cases.emplace_back(file.path().filename().string());
  return cases;
}

// Every input in turn, and all of them, once kept by the provider and once passed to it.
void NodesReadThem() {
  const Library library(PITC_TEST_LIBRARY);
  size_t kept = 0;
  for (const PlanCase& c : Cases()) {
    Random random(29);
    const std::vector<OrtValue> inputs = pitc::test::MakeInputs(c.plan, random, 9);
    const auto count = static_cast<int>(inputs.size());
    const std::vector<OrtValue> expected = c.Make(library)->Run(inputs);
    const auto check = [&](const Initializers& initializers, const char* huge) {
      const Session session(library, c.text, PITC_TEST_KERNELS, count,
                            pitc::test::OutputCount(c.plan), {{"huge_pages", huge}}, initializers);
      const pitc::ContractPlan* const contract = pitc::test::ContractOf(c.plan);
      const bool skips =
          contract && contract->skips && contract->right == pitc::ContractPlan::kPanels;
      const bool drops = skips && *huge == '1' && !initializers.empty();
      CHECK(session.DropsInitializers() == drops);
      std::vector<OrtValue> passed;
      for (int i = 0; i < count; ++i) {
        if (!drops || !initializers.count(i)) passed.push_back(inputs[static_cast<size_t>(i)]);
      }
      kept += inputs.size() - passed.size();
      // The provider knows what a moved tensor's output is like from its first input.
      if (!passed.empty() && passed[0].type == inputs[0].type)
        CHECK(session.Run(passed) == expected);
    };
    Initializers rest;
    for (int i = 0; i < count; ++i) {
      check({{i, inputs[static_cast<size_t>(i)]}}, "1");
      if (i) rest[i] = inputs[static_cast<size_t>(i)];
    }
    check(rest, "1");
    check(rest, "0");
    check({}, "1");
  }
  CHECK(kept > 30);
  CHECK(alive == 0);
}

// Where a constant lies that ONNX Runtime passes is read in the first run only.
void PassedOnesAreFoundOnce() {
  const Library library(PITC_TEST_LIBRARY);
  const PlanCase c("dense_all");
  Random random(29);
  const std::vector<OrtValue> inputs = pitc::test::MakeInputs(c.plan, random, 9);
  const auto other = pitc::test::RandomFloats(random, inputs[2].dims);
  const auto make = [&](bool overridable) {
    return std::make_unique<Session>(library, c.text, PITC_TEST_KERNELS,
                                     static_cast<int>(inputs.size()), 1, pitc::test::Options{},
                                     Initializers{{1, inputs[1]}, {2, inputs[2]}}, "", overridable);
  };
  const std::vector<OrtValue> expected = c.Make(library)->Run(inputs);
  for (const bool overridable : {false, true}) {
    const auto session = make(overridable);
    const auto run = [&] { CHECK(session->Run(inputs) == expected); };
    const int64_t cold = pitc::test::Calls(run), warm = pitc::test::Calls(run);
    CHECK(warm > 0 && cold - warm == (overridable ? 0 : 2 * 3));  // value, shape and data of each
  }
  std::vector<OrtValue> changed = inputs;
  changed[2] = other;
  const auto session = make(true);
  CHECK(session->Run(inputs) == expected);
  CHECK(session->Run(changed) == c.Make(library)->Run(changed));
}

// A file that has not all of the bytes is no source; a whole one is the only one.
void FilesAreRead() {
  const auto path =
      std::filesystem::temp_directory_path() / ("constants." + std::to_string(getpid()));
  const std::vector<char> bytes = Filled(3 << 20), mapped(3 << 20);
  const auto write = [&](size_t size) {
    std::ofstream stream(path, std::ios::binary);
    stream << "head";
    stream.write(bytes.data(), static_cast<std::streamsize>(size));
  };
  write(bytes.size());
  const pitc::FilePart part{path, 4, bytes.size()};
  CHECK(Constant(Bytes(mapped), part).IsCopyOf(Bytes(bytes)));
  for (const pitc::FilePart& other :
       {pitc::FilePart{path, 5, bytes.size()}, pitc::FilePart{path, 4, bytes.size() - 1},
        pitc::FilePart{path, -1, bytes.size()}, pitc::FilePart{"/nowhere/f", 4, bytes.size()},
        pitc::FilePart{path.parent_path(), 4, bytes.size()}}) {
    CHECK(Constant(Bytes(mapped), other).IsCopyOf(Bytes(mapped)));
  }
  write(bytes.size() - 1);
  CHECK(Constant(Bytes(mapped), part).IsCopyOf(Bytes(mapped)));
  std::filesystem::remove(path);
  CHECK(Constant(Bytes(mapped), part).IsCopyOf(Bytes(mapped)));
}

// The file beside the model has other weights than those that ONNX Runtime has mapped: it counts.
void NodesReadFiles() {
  const Library library(PITC_TEST_LIBRARY);
  const PlanCase c("contract");
  Random random(37);
  std::vector<OrtValue> inputs = pitc::test::MakeInputs(c.plan, random, 9);
  const std::filesystem::path kernels = PITC_TEST_KERNELS;
  const std::string name = "weights." + std::to_string(getpid());
  const auto run = [&](std::vector<OrtValue> passed, const Initializers& initializers) {
    const Session session(library, c.text, PITC_TEST_KERNELS, static_cast<int>(inputs.size()), 1,
                          {{"huge_pages", "1"}}, initializers, name);
    for (const auto& [i, value] : initializers) passed.erase(passed.begin() + i);
    return session.Run(passed);
  };
  const std::vector<OrtValue> expected = run(inputs, {});
  OrtValue zeros = inputs[1];
  std::fill(zeros.bytes.begin(), zeros.bytes.end(), '\0');
  CHECK(run(inputs, {{1, zeros}}) != expected);  // no such file
  {
    std::ofstream stream(kernels.parent_path() / name, std::ios::binary);
    stream << std::string(pitc::test::kExternalOffset, 'x');
    stream.write(inputs[1].bytes.data(), static_cast<std::streamsize>(inputs[1].bytes.size()));
  }
  CHECK(run(inputs, {{1, zeros}}) == expected);
  std::filesystem::remove(kernels.parent_path() / name);
  CHECK(alive == 0);
}

void WrongOnesAreNamed() {
  const Library library(PITC_TEST_LIBRARY);
  const PlanCase c("contract");
  Random random(31);
  std::vector<OrtValue> inputs = pitc::test::MakeInputs(c.plan, random, 9);
  const auto make = [&](const OrtValue& b, const char* huge) {
    return std::make_unique<Session>(
        library, c.text, PITC_TEST_KERNELS, static_cast<int>(inputs.size()), 1,
        pitc::test::Options{{"huge_pages", huge}}, Initializers{{1, b}}, "nowhere");
  };
  OrtValue flat = inputs[1];
  flat.dims = {flat.dims[0] * flat.dims[1] * flat.dims[2]};
  std::vector<OrtValue> passed = inputs;
  passed.erase(passed.begin() + 1);
  CHECK(Contains(Thrown([&] { make(flat, "1")->Run(passed); }), "expected b as float32 of rank 3"));
  OrtValue deep = inputs[1];
  deep.dims.assign(17, 1);
  CHECK(Contains(Thrown([&] { make(deep, "1"); }), "expected x1 of rank <= 16, got 17"));
  CHECK(Contains(Thrown([&] { make(inputs[1], "2"); }), "expected huge_pages 0 or 1, got '2'"));
  for (int64_t call = 1;; ++call) {  // every call of ONNX Runtime's functions fails once
    failing_call = call;
    const std::string error = Thrown([&] { make(inputs[1], "1")->Run(passed); });
    const bool reached = failing_call == 0;
    failing_call = 0;
    CHECK(alive == 0 && (reached || error.empty()));
    if (!reached) break;
  }
}

}  // namespace

int main() {
  return pitc::test::RunTests({{"copies are equal and apart", CopiesAreEqualAndApart},
                               {"nodes take turns", NodesTakeTurns},
                               {"equal ones are shared", EqualOnesAreShared},
                               {"nodes read them", NodesReadThem},
                               {"passed ones are found once", PassedOnesAreFoundOnce},
                               {"files are read", FilesAreRead},
                               {"nodes read files", NodesReadFiles},
                               {"wrong ones are named", WrongOnesAreNamed}});
}

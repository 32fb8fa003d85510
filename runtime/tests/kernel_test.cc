// usage: kernel_test REFERENCE_KERNELS.so
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <thread>
#include <vector>

#include "base/arena.h"
#include "base/cpu_level.h"
#include "check.h"
#include "kernels/kernel_library.h"

using pitc::Arena;
using pitc::Kernel;
using pitc::KernelCall;
using pitc::KernelLibrary;
using pitc::test::Contains;
using pitc::test::Random;
using pitc::test::Thrown;

namespace {

std::string library_path;
const std::string level =  // the lowest that kernels are built for here
    std::string("_") + pitc::Name(*(std::end(pitc::kKernelLevels) - 1));

bool Aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 64 == 0; }

// A lender that counts. What it lends is as little aligned as can be.
class Lending final : public pitc::Lender {
 public:
  void* Lend(size_t size) override {
    if (empty) throw std::bad_alloc();
    auto* piece = static_cast<char*>(malloc(size + 16));
    memcpy(piece, &size, sizeof size);
    ++pieces, bytes += size;
    return piece + 16;
  }
  void TakeBack(void* memory) noexcept override {
    char* const piece = static_cast<char*>(memory) - 16;
    size_t size;
    memcpy(&size, piece, sizeof size);
    --pieces, bytes -= size;
    free(piece);
  }
  size_t bytes = 0;
  int pieces = 0;
  bool empty = false;
};

void ArenaStacks() {
  Arena arena;
  Lending lending;
  const Arena::Borrowing borrowing(lending, arena);
  for (int round = 0; round < 50; ++round) {
    Arena::Scope scope(arena);
    std::vector<std::pair<char*, size_t>> taken;
    Random sizes(7);  // the same in every round
    for (int i = 0; i < 60; ++i) {
      const auto bytes = static_cast<size_t>(sizes.Below(40000));
      char* p = static_cast<char*>(arena.Take(bytes));
      CHECK(Aligned(p));
      memset(p, i, bytes);
      taken.push_back({p, bytes});
      if (sizes.Below(3) == 0) {  // some go early, in any order
        const auto victim = static_cast<size_t>(sizes.Below(static_cast<int64_t>(taken.size())));
        arena.Free(taken[victim].first);
        taken.erase(taken.begin() + static_cast<int64_t>(victim));
      }
    }
    for (const auto& [p, bytes] : taken) {
      for (size_t i = 1; i < bytes; ++i) CHECK(p[i] == p[0]);
    }
    CHECK(lending.bytes > 0);
  }
  CHECK(lending.bytes == 0 && lending.pieces == 0 && arena.Capacity() == Arena::kKept);
}

void ArenaKeepsItsPlace() {
  Arena arena;
  void* first = arena.Take(100);
  arena.Free(first);
  for (int i = 0; i < 10; ++i) {
    Arena::Scope scope(arena);
    CHECK(arena.Take(100) == first);
    CHECK(scope.Array<int32_t>(0) != nullptr);
  }
  CHECK(!Thrown([&] { arena.Take(UINT64_MAX); }).empty());
}

// What does not fit into a thread's block is lent, and given back at once.
void ArenaBorrowsLargePieces() {
  Arena arena;
  Lending lending, inner;
  {
    const Arena::Borrowing borrowing(lending, arena);
    for (int round = 0; round < 3; ++round) {
      Arena::Scope scope(arena);
      CHECK(arena.Take(100) && lending.pieces == 0);
      void* const large = arena.Take(size_t{20} << 20);
      CHECK(Aligned(large) && lending.pieces == 1 && lending.bytes >= size_t{20} << 20);
      {
        const Arena::Borrowing nested(inner, arena);
        Arena::Scope here(arena);
        here.Array<char>(int64_t{1} << 20);
        CHECK(inner.pieces == 1);
      }
      CHECK(inner.pieces == 0);
      arena.Take(Arena::kKept / 2);
      arena.Take(Arena::kKept / 2);  // the block is full
      CHECK(lending.pieces == 2);
      arena.Free(large);  // below others
      CHECK(lending.pieces == 2);
    }
    CHECK(lending.pieces == 0);
    lending.empty = true;
    Arena::Scope scope(arena);
    CHECK(Contains(Thrown([&] { arena.Take(size_t{1} << 20); }), "bad_alloc"));
    CHECK(arena.Take(100));
  }
  CHECK(arena.Capacity() == Arena::kKept);
  arena.Free(arena.Take(size_t{200} << 20));  // without a lender from the heap
  CHECK(arena.Capacity() == Arena::kKept);
}

Kernel Load(const std::string& symbol) {
  const size_t slash = library_path.rfind('/');
  Kernel kernel{KernelLibrary::Open(library_path.substr(0, slash), library_path.substr(slash + 1)),
                nullptr, symbol};
  kernel.function = kernel.library->Find(symbol);
  return kernel;
}

void CallsKernels() {
  const Kernel pack = Load("pack_b4" + level);
  CHECK(pack.function != nullptr && Load("absent" + level).function == nullptr);
  CHECK(pack.library == Load("pack_b1" + level).library);
  CHECK(pack.library->Identity() == "2/reference");
  const int32_t x[] = {1, 2, 3, 4, 5, 6}, index[] = {2, 0};
  int32_t out[4] = {};
  KernelCall().Words(x, 4, {3, 2}).Int32s(index, {2}).Words(out, 4, {2, 2}).Run(pack);
  CHECK(out[0] == 5 && out[1] == 6 && out[2] == 1 && out[3] == 2);
  const std::string error = Thrown([&] { KernelCall().Words(x, 4, {3, 2}).Run(pack); });
  CHECK(Contains(error, "kernel 'pack_b4" + level + "' refused its arguments: 'argument 1"));
}

// Workspace comes from the calling thread's arena, and a kernel that fails leaves none behind.
void Workspace() {
  const Kernel attention = Load("attention_d1_v1_bias" + level);
  const float q = 1, k = 2, v = 3, bias = 0.5;
  const int32_t position = 0, far = 1000000;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        const bool fails = round % 2;
        float out = -1;
        KernelCall call;
        call.Floats(&q, {1, 1, 1}).Floats(&k, {1, 1, 1}).Floats(&v, {1, 1, 1}).Floats(&bias, {1});
        call.Int32s(fails ? &far : &position, {1}).Int32s(&position, {1}).Floats(&out, {1, 1, 1});
        call.Float(0.5)
            .Int(0)
            .Int(0)
            .Int(0)
            .Int(0)
            .Int(0)
            .Int(0)
            .Int(1)
            .Int(0)
            .Int(1)
            .Int(0)
            .Int(1)
            .Int(1);
        const std::string error = Thrown([&] { call.Run(attention); });
        if (fails != Contains(error, "bias index") || (!fails && out != 3)) ++pitc::test::failures;
      }
      if (Arena::Local().Capacity() > Arena::kKept) ++pitc::test::failures;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void OpensOnlyInTheFolder() {
  char pattern[] = "/tmp/pitc_test_XXXXXX";
  const std::string root = mkdtemp(pattern), folder = root + "/model";
  CHECK(mkdir(folder.c_str(), 0700) == 0);
  const auto open = [&](const char* name) {
    return Thrown([&] { KernelLibrary::Open(folder, name); });
  };
  const auto copy = [](const std::string& to) {
    std::ofstream(to, std::ios::binary) << std::ifstream(library_path, std::ios::binary).rdbuf();
  };
  CHECK(Contains(open("absent.so"), "cannot open the kernel library"));
  CHECK(symlink(library_path.c_str(), (folder + "/leaves.so").c_str()) == 0);
  CHECK(Contains(open("leaves.so"), "inside the model's folder"));
  CHECK(mkdir((folder + "/folder.so").c_str(), 0700) == 0);
  CHECK(Contains(open("folder.so"), "expected a file"));
  std::ofstream(folder + "/text.so") << "no library";
  CHECK(Contains(open("text.so"), "cannot load the kernel library"));
  CHECK(Contains(Thrown([&] { KernelLibrary::Open(root + "/gone", "k.so"); }),
                 "cannot open the model's folder"));
  copy(folder + "/k.so");
  CHECK(symlink("k.so", (folder + "/stays.so").c_str()) == 0);
  CHECK(open("stays.so").empty());

  // A file that is replaced while it is in use: new sessions get the new one, old ones keep theirs.
  auto before = KernelLibrary::Open(folder, "k.so");
  CHECK(before == KernelLibrary::Open(folder, "stays.so"));
  for (int i = 0; i < 2; ++i) {
    copy(folder + "/new.so");
    CHECK(rename((folder + "/new.so").c_str(), (folder + "/k.so").c_str()) == 0);
    auto after = KernelLibrary::Open(folder, "k.so");
    CHECK(after != before && after->Find("pack_b4" + level) != before->Find("pack_b4" + level));
    before = after;
  }
  for (const char* name : {"/leaves.so", "/text.so", "/stays.so", "/k.so"})
    unlink((folder + name).c_str());
  rmdir((folder + "/folder.so").c_str());
  rmdir(folder.c_str());
  rmdir(root.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  library_path = argv[1];
  return pitc::test::RunTests({{"arena stacks", ArenaStacks},
                               {"arena keeps its place", ArenaKeepsItsPlace},
                               {"arena borrows large pieces", ArenaBorrowsLargePieces},
                               {"calls kernels", CallsKernels},
                               {"workspace", Workspace},
                               {"opens only in the folder", OpensOnlyInTheFolder}});
}

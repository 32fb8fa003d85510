// Nodes in the provider: a warm run allocates nothing, whatever its operation, on one thread and on
// two. What counts is who asks for memory: the provider's library has its own `operator new`, which
// calls malloc from inside it. Scratch memory that ONNX Runtime lends is ONNX Runtime's.
#include <dlfcn.h>

#include <cerrno>
#include <condition_variable>
#include <thread>

#include "node_inputs.h"

using pitc::kVariants;
using pitc::test::Library;
using pitc::test::Options;
using pitc::test::PlanCase;
using pitc::test::Random;
using pitc::test::Session;

extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);
}

namespace {

void* library_base = nullptr;  // null: nobody counts
std::atomic<int64_t> allocations{0};

void Note(const void* caller) {
  Dl_info info;
  if (library_base && dladdr(caller, &info) && info.dli_fbase == library_base) ++allocations;
}

}  // namespace

#define PITC_COUNTED extern "C" __attribute__((visibility("default"))) void*

PITC_COUNTED malloc(size_t bytes) {
  Note(__builtin_return_address(0));
  return __libc_malloc(bytes);
}
PITC_COUNTED calloc(size_t count, size_t bytes) {
  Note(__builtin_return_address(0));
  return __libc_calloc(count, bytes);
}
PITC_COUNTED realloc(void* memory, size_t bytes) {
  Note(__builtin_return_address(0));
  return __libc_realloc(memory, bytes);
}
PITC_COUNTED memalign(size_t alignment, size_t bytes) {
  Note(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
PITC_COUNTED aligned_alloc(size_t alignment, size_t bytes) {
  Note(__builtin_return_address(0));
  return __libc_memalign(alignment, bytes);
}
extern "C" __attribute__((visibility("default"))) int posix_memalign(void** out, size_t alignment,
                                                                     size_t bytes) {
  Note(__builtin_return_address(0));
  *out = __libc_memalign(alignment, bytes);
  return *out ? 0 : ENOMEM;
}

namespace {

// A second thread that stays, as those of ONNX Runtime's pool do. It has every odd task.
class Pair {
 public:
  Pair() : second_([this] { Serve(); }) {
    pitc::test::share = [this](void (*task)(void*, size_t), size_t total, void* data) {
      ++shared_;
      Give([&] {
        for (size_t i = 1; i < total; i += 2) task(data, i);
      });
      for (size_t i = 0; i < total; i += 2) task(data, i);
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [&] { return !work_; });
    };
  }
  ~Pair() {
    pitc::test::share = nullptr;
    Give([this] { ended_ = true; });
    second_.join();
  }
  int Shared() const { return shared_; }

 private:
  void Give(std::function<void()> work) {
    std::lock_guard<std::mutex> lock(mutex_);
    work_ = std::move(work);
    changed_.notify_all();
  }
  void Serve() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (!ended_) {
      changed_.wait(lock, [&] { return work_ != nullptr; });
      work_();
      work_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> work_;
  bool ended_ = false;
  int shared_ = 0;  // loops
  std::thread second_;
};

void* BaseOf(const char* path) {
  void* const handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  Dl_info info{};
  dladdr(dlsym(handle, "CreateEpFactories"), &info);
  dlclose(handle);
  return info.dli_fbase;
}

// What the provider allocates in the third run of the same inputs.
int64_t WarmAllocations(const Session& session, const std::vector<OrtValue>& inputs, void* base) {
  for (int run = 0; run < 2; ++run) session.Run(inputs);
  allocations = 0;
  library_base = base;
  session.Run(inputs);
  library_base = nullptr;
  return allocations;
}

void WarmRunsAllocateNothing() {
  const Library library(PITC_TEST_LIBRARY);
  void* const base = BaseOf(PITC_TEST_LIBRARY);
  Pair pair;
  std::map<std::string, int> shared;  // loops of each kind that both threads had tasks of
  for (const auto& file : std::filesystem::directory_iterator(PITC_TEST_PLANS)) {
    const PlanCase c(file.path().filename());
    // Work for both threads; rows of few elements must be many.
    const pitc::ContractPlan* const contract = pitc::test::ContractOf(c.plan);
    const bool computed = contract && contract->right != pitc::ContractPlan::kPanels;
    const int64_t large = contract && !contract->skips    ? 200000
                          : computed                      ? 30000
                          : c.plan.op == "elementwise"    ? 30000
                          : c.plan.op == "attention_grad" ? 1000
                                                          : 4000;
    const int variants = contract ? kVariants : 1;
    const std::string kind = !contract         ? c.plan.op
                             : computed        ? "of a computed matrix"
                             : contract->inner ? "with a product inside"
                             : contract->skips ? "over zeros"
                                               : "dense";
    const int before = pair.Shared();
    for (const int64_t most : {int64_t{1}, int64_t{9}, int64_t{200}, large}) {
      Random random(43);
      const std::vector<OrtValue> inputs = pitc::test::MakeInputs(c.plan, random, most);
      for (int v = 0; v < variants; ++v) {
        const Options options{{"variant", Name(static_cast<pitc::Variant>(v))}, {"threads", "2"}};
        const int64_t made = WarmAllocations(*c.Make(library, options), inputs, base);
        if (made) printf("%s, up to %d: %d\n", c.name.c_str(), int(most), int(made));
        CHECK(made == 0);
      }
    }
    shared[kind] += pair.Shared() - before;
  }
  CHECK(shared.size() == 17);
  for (const auto& [kind, loops] : shared) CHECK(loops || kind == "choose_channels");
}

// A wrong twin of the above: what is new to a thread is seen.
void ColdRunsAreSeen() {
  const Library library(PITC_TEST_LIBRARY);
  const PlanCase c("dense");
  Random random(43);
  const std::vector<OrtValue> inputs = pitc::test::MakeInputs(c.plan, random, 9);
  const auto session = c.Make(library);
  std::thread([&] {
    allocations = 0;
    library_base = BaseOf(PITC_TEST_LIBRARY);
    session->Run(inputs);
    library_base = nullptr;
    CHECK(allocations == 1);  // the thread's scratch memory
  }).join();
}

}  // namespace

int main() {
  return pitc::test::RunTests({{"warm runs allocate nothing", WarmRunsAllocateNothing},
                               {"cold runs are seen", ColdRunsAreSeen}});
}

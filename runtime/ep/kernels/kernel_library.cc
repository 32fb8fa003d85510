#include "kernels/kernel_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <utility>

#include "base/arena.h"
#include "base/failure.h"

namespace pitc {
namespace {

constexpr size_t kLongestReason = 400;  // of a kernel's own error text

// ---- what a library may ask of its host

// Why this thread's kernel got no workspace: it only knows that there is none.
thread_local std::exception_ptr no_workspace;

void* AllocWorkspace(int, int, uint64_t bytes, int, int) {
  try {
    return Arena::Local().Take(bytes);
  } catch (...) {  // called from C: null is the kernel's error
    no_workspace = std::current_exception();
    return nullptr;
  }
}

int FreeWorkspace(int, int, void* memory) {
  Arena::Local().Free(memory);
  return 0;
}

// Kernels are single-threaded (docs/plans.md); one that asks for tasks all the same gets them one
// by one.
int LaunchInOrder(tvm::ParallelTask task, void* data, int num_task) {
  tvm::ParallelEnv env{nullptr, std::max(num_task, 1)};
  for (int i = 0; i < env.num_task; ++i) {
    if (int code = task(i, &env, data)) return code;
  }
  return 0;
}

// ---- files

std::string RealPath(const std::string& path, const char* what) {
  char resolved[PATH_MAX];
  if (!realpath(path.c_str(), resolved))
    Fail("cannot open ", what, " '", path, "': ", strerror(errno));
  return resolved;
}

// Throws Failure when an ELF file ends early. dlopen does not look, and a page that is not there
// kills the process at first use.
void CheckComplete(const std::string& path, off_t size) {
  struct Close {
    void operator()(FILE* file) const { fclose(file); }
  };
  const std::unique_ptr<FILE, Close> file(fopen(path.c_str(), "rbe"));
  if (!file) Fail("cannot open the kernel library '", path, "': ", strerror(errno));
  const auto within = [size](uint64_t offset, uint64_t bytes) {
    uint64_t end = 0;
    return !__builtin_add_overflow(offset, bytes, &end) && end <= static_cast<uint64_t>(size);
  };
  Elf64_Ehdr head{};
  bool complete = fread(&head, 1, sizeof head, file.get()) == sizeof head;
  if (memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return;  // dlopen has words for that
  complete = complete && within(head.e_shoff, uint64_t{head.e_shentsize} * head.e_shnum) &&
             within(head.e_phoff, uint64_t{head.e_phnum} * sizeof(Elf64_Phdr)) &&
             fseeko(file.get(), static_cast<off_t>(head.e_phoff), SEEK_SET) == 0;
  for (int i = 0; complete && i < head.e_phnum; ++i) {
    Elf64_Phdr segment{};
    complete = fread(&segment, sizeof segment, 1, file.get()) == 1 &&
               within(segment.p_offset, segment.p_filesz);
  }
  if (!complete) Fail("the kernel library is damaged: '", path, "' is cut off at ", size, " bytes");
}

// Held while a file is opened or closed. Recursive: the last owner of a library may be its opener.
std::recursive_mutex opening;

// One loaded file. dlopen knows files by name: a file that was replaced while its predecessor is
// still loaded needs another spelling of the same path, or the old code would run.
struct Loaded {
  std::weak_ptr<const KernelLibrary> library;
  dev_t device = 0;
  ino_t inode = 0;
  off_t size = 0;
  timespec changed{};
  std::string spelling;  // "", "./", "././", ..

  bool Is(const struct stat& s) const {
    return s.st_dev == device && s.st_ino == inode && s.st_size == size &&
           s.st_mtim.tv_sec == changed.tv_sec && s.st_mtim.tv_nsec == changed.tv_nsec;
  }
  // Of a file that was replaced, an older one may still be loaded.
  bool IsForgettable() const { return library.expired() && spelling.empty(); }
};

}  // namespace

std::shared_ptr<const KernelLibrary> KernelLibrary::Open(const std::string& folder,
                                                         const std::string& name) {
  static auto* loaded =
      new std::map<std::string, Loaded>;  // never destroyed: sessions may end after main()
  const std::string home = RealPath(folder, "the model's folder");
  const std::string path = RealPath(home + "/" + name, "the kernel library");
  const std::string inside = home == "/" ? home : home + "/";
  if (path.compare(0, inside.size(), inside) != 0) {
    Fail("expected the kernel library inside the model's folder '", home, "', got a link to '",
         path, "'");
  }
  struct stat now{};
  if (stat(path.c_str(), &now) != 0 || !S_ISREG(now.st_mode))
    Fail("expected a file, got '", path, "'");

  std::lock_guard<std::recursive_mutex> lock(opening);
  for (auto at = loaded->begin(); at != loaded->end();) {
    at = at->second.IsForgettable() ? loaded->erase(at) : std::next(at);
  }
  Loaded& entry = (*loaded)[path];
  if (auto library = entry.library.lock()) {
    if (entry.Is(now)) return library;
    entry.spelling += "./";
  }
  CheckComplete(path, now.st_size);
  size_t slash = path.rfind('/') + 1;
  std::shared_ptr<const KernelLibrary> library(
      new KernelLibrary(path.substr(0, slash) + entry.spelling + path.substr(slash)));
  entry.library = library;
  entry.device = now.st_dev;
  entry.inode = now.st_ino;
  entry.size = now.st_size;
  entry.changed = now.st_mtim;
  return library;
}

KernelLibrary::KernelLibrary(const std::string& path)
    // Lazy: the symbol by which kernels report refused arguments may be absent, and is needed only
    // then.
    : handle_(dlopen(path.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
  if (!handle_) Fail("cannot load the kernel library: ", dlerror());
  auto fill = [this](const char* symbol, auto function) {
    auto* at = static_cast<decltype(function)*>(dlsym(handle_, symbol));
    // Already there when another thread is just about to close the same file: it may still read it.
    if (at && *at != function) *at = function;
  };
  fill("__TVMBackendAllocWorkspace", tvm::AllocWorkspace{AllocWorkspace});
  fill("__TVMBackendFreeWorkspace", tvm::FreeWorkspace{FreeWorkspace});
  fill("__TVMBackendParallelLaunch", tvm::ParallelLaunch{LaunchInOrder});
  const auto* identity = static_cast<const char*>(dlsym(handle_, "pitc_kernel_identity"));
  if (identity) identity_.assign(identity, strnlen(identity, kLongestReason));
  last_error_ = reinterpret_cast<const char* (*)()>(dlsym(handle_, "pitc_kernel_last_error"));
}

KernelLibrary::~KernelLibrary() {
  std::lock_guard<std::recursive_mutex> lock(opening);
  dlclose(handle_);
}

tvm::Function KernelLibrary::Find(const std::string& symbol) const {
  return reinterpret_cast<tvm::Function>(dlsym(handle_, ("__tvm_ffi_" + symbol).c_str()));
}

void* KernelLibrary::Symbol(const char* name) const { return dlsym(handle_, name); }

std::string KernelLibrary::LastError() const {
  return last_error_ ? last_error_() : "no reason given";
}

tvm::Any& KernelCall::Next() {
  assert(arg_count_ < kMostArgs);
  return args_[arg_count_++] = tvm::Any{};
}

KernelCall& KernelCall::Array(const void* data, uint8_t code, int bits,
                              std::initializer_list<int64_t> shape) {
  alignas(64) static char nothing[64];  // an empty tensor may have no address
  assert(tensor_count_ < kMostTensors && shape.size() <= kMostDims);
  std::copy(shape.begin(), shape.end(), shapes_[tensor_count_]);
  tvm::Tensor& t = tensors_[tensor_count_];
  t = {data ? const_cast<void*>(data) : nothing,
       place_.type,
       place_.number,
       static_cast<int32_t>(shape.size()),
       code,
       static_cast<uint8_t>(bits),
       1,
       shapes_[tensor_count_],
       nullptr,
       0};
  ++tensor_count_;
  tvm::Any& arg = Next();
  arg.type_index = tvm::kTensorPtr;
  arg.v_ptr = &t;
  return *this;
}

KernelCall& KernelCall::Floats(const void* data, std::initializer_list<int64_t> shape) {
  return Array(data, tvm::kFloatCode, 32, shape);
}

KernelCall& KernelCall::Numbers(const void* data, Element type,
                                std::initializer_list<int64_t> shape) {
  const uint8_t code = type == Element::kBfloat16 ? tvm::kUIntCode : tvm::kFloatCode;
  return Array(data, code, 8 * RecordOf(type).bytes, shape);
}

KernelCall& KernelCall::Int32s(const void* data, std::initializer_list<int64_t> shape) {
  return Array(data, tvm::kIntCode, 32, shape);
}

KernelCall& KernelCall::Int64s(const void* data, std::initializer_list<int64_t> shape) {
  return Array(data, tvm::kIntCode, 64, shape);
}

KernelCall& KernelCall::Bits(const void* data, std::initializer_list<int64_t> shape) {
  return Array(data, tvm::kUIntCode, 32, shape);
}

KernelCall& KernelCall::Words(const void* data, int word_bytes,
                              std::initializer_list<int64_t> shape) {
  return Array(data, tvm::kIntCode, 8 * word_bytes, shape);
}

KernelCall& KernelCall::Int(int64_t value) {
  tvm::Any& arg = Next();
  arg.type_index = tvm::kInt;
  arg.v_int = value;
  return *this;
}

KernelCall& KernelCall::Float(double value) {
  tvm::Any& arg = Next();
  arg.type_index = tvm::kFloat;
  arg.v_float = value;
  return *this;
}

void KernelCall::Run(const Kernel& kernel) {
  Arena::Scope scope;  // also frees what a refusing kernel leaves behind
  tvm::Any result{};
  if (kernel.function(nullptr, args_, arg_count_, &result) != 0) {
    if (no_workspace) std::rethrow_exception(std::exchange(no_workspace, nullptr));
    Fail("kernel '", kernel.symbol,
         "' refused its arguments: ", Quoted(kernel.library->LastError(), kLongestReason));
  }
}

}  // namespace pitc

// CUDA kernels of a kernel library. Its host functions are TVM packed functions like those of the
// CPU; each finds device kernels by name and calls them with the numbers of a launch behind their
// arguments, through three pointers that are filled in here. Two tables of the library say which
// kernels there are and where their code is:
//
//   pitc_cuda_kernels  {name, module, launch}                  launch: `blockIdx.x,threadIdx.x,..`,
//   what
//                                                              the numbers mean, in their order
//   pitc_cuda_images   {module, arch, is_ptx, data, size}      a module's code for one architecture
//
// A module is the code of one host function and has its symbol.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda_device.h"
#include "kernels/kernel_library.h"

namespace pitc::cuda {

// As the library has them.
struct KernelEntry {
  const char* name;
  const char* module;
  const char* launch;
};
struct ImageEntry {
  const char* module;
  int32_t arch;  // 90: sm_90
  int32_t is_ptx;
  const void* data;
  uint64_t size;
};

// What a launch number is: an extent of the grid or of a block, or bytes of shared memory.
enum LaunchNumber { kGridX, kGridY, kGridZ, kBlockX, kBlockY, kBlockZ, kSharedBytes };
constexpr int kLaunchNumbers = 7;

// Throws Failure for one that is not known.
std::vector<LaunchNumber> ParseLaunch(const std::string& tags);

// The image of `module` to use on an architecture: the machine code for the newest one of the same
// generation that it runs, else PTX, which the driver compiles. Throws Failure when there is none,
// and names the device.
const ImageEntry& ChooseImage(const ImageEntry* images, int count, const std::string& module,
                              int arch, const std::string& device);

class Kernels {
 public:
  // Those of a library; all who have it loaded share them, and what the devices have of them.
  static std::shared_ptr<Kernels> Of(std::shared_ptr<const KernelLibrary> library);

  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  ~Kernels();

  const KernelLibrary& library() const { return *library_; }

  // Puts the code of a host function on a device, unless it is there.
  void Load(const std::string& symbol, Device& device);

  // Calls a host function of the library, whose launches go to `stream`. Throws Failure.
  void Run(const Kernel& kernel, KernelCall& call, Device& device, Stream stream);

 private:
  explicit Kernels(std::shared_ptr<const KernelLibrary> library);

  // A device kernel, on each device that has it.
  struct OnDevice {
    std::atomic<Function> function{nullptr};
    std::atomic<int> shared_bytes{0};  // that it may ask for
  };
  struct Record {
    std::vector<LaunchNumber> launch;
    std::unique_ptr<OnDevice[]> on;
  };

  static int Find(void* context, const char* name, void** found);
  static int InitOnce(void** place, int (*find)(void**));
  static int Call(void* found, const tvm::Any* args, int32_t count, tvm::Any* result);

  Module LoadModule(const std::string& module, Device& device);  // under mutex_
  void Launch(const KernelEntry& entry, const tvm::Any* args, int count, Device& device,
              Stream stream);
  void AllowShared(OnDevice& on, const KernelEntry& entry, int bytes, Device& device);

  const std::shared_ptr<const KernelLibrary> library_;
  const KernelEntry* entries_ = nullptr;
  const ImageEntry* images_ = nullptr;
  int entry_count_ = 0, image_count_ = 0;
  std::vector<Record> records_;  // of each entry
  std::mutex mutex_;
  std::map<std::pair<std::string, int>, Module> modules_;  // by name and device
};

// A host function, and what keeps it loaded.
struct DeviceKernel {
  std::shared_ptr<Kernels> kernels;
  Kernel kernel;
};

}  // namespace pitc::cuda

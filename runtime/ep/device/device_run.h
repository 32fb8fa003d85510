// One run of one node on a device: its tensors, checked, in memory of the device or brought there,
// and the stream that its kernels go to.
#pragma once

#include <initializer_list>
#include <memory>
#include <vector>

#include "base/arena.h"
#include "device/constants.h"
#include "device/cuda_kernels.h"
#include "device/lists.h"
#include "ort/run_memory.h"
#include "select/trace.h"

namespace pitc::cuda {

// Bytes: kernels that compute read and write so many at a time.
constexpr uintptr_t kAlignment = 16;

// What all nodes of a session have in common.
struct SessionDevice {
  explicit SessionDevice(Device& d) : device(d), lists(d) {}
  Device& device;
  DeviceLists lists;
};

// Whether a kernel was chosen: if gate[0] is its number. For gate[1] rows at most.
struct Gate {
  const int32_t* gate;  // on the device
  int number;
};

// An input; its data are the device's only if it says so.
struct DeviceInput : Tensor {
  bool on_device = false;
  bool pinned = false;  // of the host, but the device reads it when it likes
  // Of a list that the device has made, or of rows packed by it: there are gate[1], which the
  // device alone knows, of kernels of number 0, and the shape says how many there is room for.
  // Null: as many as the shape says.
  const int32_t* gate = nullptr;
};

// Where the inputs of a step of a node come from, and where its output goes.
class StepValues {
 public:
  virtual ~StepValues() = default;
  virtual DeviceInput Input(int index, const char* role) const = 0;
  virtual void* Output(const Shape& shape, int element_bytes) = 0;
};

class DeviceRun {
 public:
  // As RunContext::Places.
  struct Places {
    std::vector<int> inputs, outputs;
    std::vector<std::shared_ptr<const DeviceConstant>>
        constants;  // of each input; null: it is none
  };

  // `traced`: somebody wants to know what was chosen.
  DeviceRun(const Host& host, OrtKernelContext* context, const Places& places,
            SessionDevice& session, bool traced);
  // A step of a run, on the same stream: its memory is given back when the step has been launched.
  DeviceRun(const DeviceRun& whole, StepValues& values);
  DeviceRun(const DeviceRun&) = delete;
  DeviceRun& operator=(const DeviceRun&) = delete;
  ~DeviceRun();  // memory of the run is given back in the order of the stream

  Device& device() const { return session_.device; }
  const Transfers& transfers() const { return told_.transfers; }
  bool traced() const { return traced_; }
  void Note(DeviceChoice choice) const { told_.choices.push_back(std::move(choice)); }
  const std::vector<DeviceChoice>& choices() const { return told_.choices; }
  Lender& memory() const { return memory_; }  // of the host

  DeviceInput Input(int index, const char* role) const;
  DeviceInput Int32Input(int index, const char* role,
                         std::initializer_list<int64_t> shape) const;  // -1: any
  DeviceInput MaskInput(int index, const char* role) const;

  // The first numbers of a list, in memory of the host, as they are now. Null for one that the
  // device has made: nobody else has written to it, so there is nothing to check.
  const int32_t* Copy(const DeviceInput& list, int64_t n, Arena::Scope& scratch) const;

  // Copies memory of the device, and waits for it.
  void Download(void* to, const void* from, int64_t bytes) const;

  // Memory of the device for this run.
  void* Take(size_t bytes) const;

  // The elements of an input in memory of the device, at a multiple of kAlignment.
  const void* OnDevice(const DeviceInput& input) const;
  // A list of the host's, checked.
  const int32_t* OnDevice(const int32_t* list, int64_t n) const;

  // Memory of an output on the device; of the run when nobody reads it.
  void* Output(int index, const Shape& shape, int element_bytes) const;

  void Zero(void* memory, int64_t bytes) const;

  // As many blocks as have something to do, but not more than the device runs at once.
  int64_t Blocks(int64_t work, int64_t of_a_block) const;

  // The last arguments of a kernel whose blocks take `tiles` in turns: whether it was chosen, and
  // how many blocks there are, `together` on a multiprocessor. Without a gate it was, for all rows
  // of its list.
  void AddTurns(KernelCall* call, int64_t tiles, Gate gate,
                int together = kCudaLeastTogether) const;
  void AddTurns(KernelCall* call, int64_t tiles) const;

  // A call of one of its kernels. Tensors are the device's.
  KernelCall Call() const { return KernelCall({tvm::kCuda, session_.device.number()}); }
  void Launch(const DeviceKernel& kernel, KernelCall& call) const;

 private:
  struct Told {
    Transfers transfers;
    std::vector<DeviceChoice> choices;
  };

  const Host& host_;
  OrtKernelContext* const context_;
  const Places& places_;
  SessionDevice& session_;
  StepValues* const step_ = nullptr;  // null: all of a node
  const bool traced_;
  Stream stream_ = nullptr;
  const Device::Current current_;
  mutable RunMemory memory_;
  mutable std::vector<Address> taken_;
  mutable std::vector<std::shared_ptr<const DeviceList>> lists_;
  mutable Told own_;
  Told& told_ = own_;  // of the whole run
};

// Throws Failure unless kernels that compute may write there.
void ExpectAligned(const void* output, const char* role);

// NVIDIA, as PCI numbers vendors.
constexpr uint32_t kVendor = 0x10DE;

}  // namespace pitc::cuda

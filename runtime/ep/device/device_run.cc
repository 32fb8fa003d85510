#include "device/device_run.h"

#include <algorithm>

namespace pitc::cuda {
namespace {

// That a kernel was chosen, whose number is 0, and for how many rows at most.
constexpr int32_t kChosen[] = {0, INT32_MAX};

bool IsAligned(const void* memory) { return reinterpret_cast<uintptr_t>(memory) % kAlignment == 0; }

enum class Where { kHost, kPinned, kDevice };

// Throws Failure for memory of another device.
Where WhereIs(const Host& host, const OrtValue* value, const char* role, const Device& device) {
  const OrtMemoryDevice* const memory = host.ep_api->Value_GetMemoryDevice(value);
  if (!memory) Fail("expected ", role, " as a tensor, got something else");
  const OrtMemoryInfoDeviceType type = host.ep_api->MemoryDevice_GetDeviceType(memory);
  if (host.ep_api->MemoryDevice_GetMemoryType(memory) == OrtDeviceMemoryType_HOST_ACCESSIBLE)
    return Where::kPinned;
  if (type == OrtMemoryInfoDeviceType_CPU) return Where::kHost;
  const uint32_t vendor = host.ep_api->MemoryDevice_GetVendorId(memory);
  const uint32_t number = host.ep_api->MemoryDevice_GetDeviceId(memory);
  if (type == OrtMemoryInfoDeviceType_GPU && vendor == kVendor &&
      number == static_cast<uint32_t>(device.number())) {
    return Where::kDevice;
  }
  Fail("expected ", role, " in memory of CUDA device ", device.number(), ", got memory of device ",
       number, " of vendor ", vendor);
}

// The stream of the run: null where ONNX Runtime has made none.
Stream StreamOf(const Host& host, const OrtKernelContext* context) {
  void* stream = nullptr;
  Check(host, host.api->KernelContext_GetGPUComputeStream(context, &stream));
  return static_cast<Stream>(stream);
}

}  // namespace

DeviceRun::DeviceRun(const Host& host, OrtKernelContext* context, const Places& places,
                     SessionDevice& session, bool traced)
    : host_(host),
      context_(context),
      places_(places),
      session_(session),
      traced_(traced),
      stream_(StreamOf(host, context)),
      current_(session.device),
      memory_(host, context) {}

DeviceRun::DeviceRun(const DeviceRun& whole, StepValues& values)
    : host_(whole.host_),
      context_(whole.context_),
      places_(whole.places_),
      session_(whole.session_),
      step_(&values),
      traced_(whole.traced_),
      stream_(whole.stream_),
      current_(whole.session_.device),
      memory_(whole.host_, whole.context_),
      told_(whole.told_) {}

DeviceRun::~DeviceRun() {
  try {
    for (const Address memory : taken_) session_.device.GiveBack(memory, stream_);
  } catch (const Failure&) {  // the device is lost, and its memory with it
  }
}

DeviceInput DeviceRun::Input(int index, const char* role) const {
  if (step_) return step_->Input(index, role);
  const auto at = static_cast<size_t>(index);
  if (const auto& constant = places_.constants[at])
    return {{constant->tensor().As(role)}, true, false};
  const OrtValue* value = nullptr;
  const int place = places_.inputs[at];
  if (place >= 0)
    Check(host_, host_.api->KernelContext_GetInput(context_, static_cast<size_t>(place), &value));
  if (!value) Fail("expected input ", role, ", got none");
  const Where where = WhereIs(host_, value, role, session_.device);
  return {{ReadTensor(host_, value, role)}, where == Where::kDevice, where == Where::kPinned};
}

DeviceInput DeviceRun::Int32Input(int index, const char* role,
                                  std::initializer_list<int64_t> shape) const {
  DeviceInput input = Input(index, role);
  ExpectInt32s(input, shape);
  return input;
}

DeviceInput DeviceRun::MaskInput(int index, const char* role) const {
  DeviceInput input = Input(index, role);
  ExpectMask(input);
  return input;
}

const int32_t* DeviceRun::Copy(const DeviceInput& list, int64_t n, Arena::Scope& scratch) const {
  if (list.gate) return nullptr;
  auto* const copy = scratch.Array<int32_t>(n);
  const size_t bytes = static_cast<size_t>(n) * sizeof(int32_t);
  if (bytes == 0) return copy;
  if (!list.on_device) {
    std::copy_n(list.Int32s(), n, copy);
    return copy;
  }
  Download(copy, list.data, static_cast<int64_t>(bytes));
  return copy;
}

void DeviceRun::Download(void* to, const void* from, int64_t bytes) const {
  PITC_CUDA(MemcpyDtoHAsync, to, reinterpret_cast<Address>(from), static_cast<size_t>(bytes),
            stream_);
  PITC_CUDA(StreamSynchronize, stream_);
  ++told_.transfers.downloads;
  told_.transfers.downloaded_bytes += bytes;
}

const void* DeviceRun::OnDevice(const DeviceInput& input) const {
  if (input.on_device && IsAligned(input.data)) return input.data;
  const int64_t bytes = input.shape.Elements() * ElementBytes(input.type);
  if (bytes == 0) return nullptr;
  void* const memory = Take(static_cast<size_t>(bytes));
  if (input.on_device) {  // a part of a tensor
    PITC_CUDA(MemcpyDtoDAsync, reinterpret_cast<Address>(memory),
              reinterpret_cast<Address>(input.data), static_cast<size_t>(bytes), stream_);
    return memory;
  }
  PITC_CUDA(MemcpyHtoDAsync, reinterpret_cast<Address>(memory), input.data,
            static_cast<size_t>(bytes), stream_);
  // ONNX Runtime may use the host's memory for something else when the node has returned.
  if (input.pinned) PITC_CUDA(StreamSynchronize, stream_);
  ++told_.transfers.uploads;
  told_.transfers.uploaded_bytes += bytes;
  return memory;
}

const int32_t* DeviceRun::OnDevice(const int32_t* list, int64_t n) const {
  bool fresh = false;
  lists_.push_back(session_.lists.Get(stream_, list, n, &fresh));
  if (fresh) {
    ++told_.transfers.uploads;
    told_.transfers.uploaded_bytes += n * static_cast<int64_t>(sizeof(int32_t));
  }
  return lists_.back()->data();
}

void* DeviceRun::Output(int index, const Shape& shape, int element_bytes) const {
  if (step_) return step_->Output(shape, element_bytes);
  const auto bytes = static_cast<size_t>(shape.Elements() * element_bytes);
  const int place = places_.outputs[static_cast<size_t>(index)];
  if (place < 0) return Take(bytes);
  OrtValue* value = nullptr;
  void* memory = nullptr;
  Check(host_, host_.api->KernelContext_GetOutput(context_, static_cast<size_t>(place), shape.dims,
                                                  static_cast<size_t>(shape.rank), &value));
  if (!value) return Take(bytes);
  Check(host_, host_.api->GetTensorMutableData(value, &memory));
  if (!memory && bytes) session_.device.FailForMemory(bytes);
  if (WhereIs(host_, value, "the output", session_.device) != Where::kDevice)
    Fail("expected the output in memory of CUDA device ", session_.device.number(),
         ", got memory of the host");
  return memory;
}

void DeviceRun::Zero(void* memory, int64_t bytes) const {
  if (bytes == 0) return;
  PITC_CUDA(MemsetD8Async, reinterpret_cast<Address>(memory), 0, static_cast<size_t>(bytes),
            stream_);
}

int64_t DeviceRun::Blocks(int64_t work, int64_t of_a_block) const {
  constexpr int64_t kBlocksTogether = 8;  // of 256 threads, on a multiprocessor
  const int64_t most = std::max(1, session_.device.multiprocessors()) * kBlocksTogether;
  return std::clamp<int64_t>((work + of_a_block - 1) / of_a_block, 1, most);
}

void DeviceRun::AddTurns(KernelCall* call, int64_t tiles, Gate gate, int together) const {
  const int64_t most = int64_t{std::max(1, session_.device.multiprocessors())} * together;
  call->Int32s(gate.gate, {2}).Int(gate.number).Int(std::clamp<int64_t>(tiles, 1, most));
}

void DeviceRun::AddTurns(KernelCall* call, int64_t tiles) const {
  AddTurns(call, tiles, {OnDevice(kChosen, 2), 0});
}

void DeviceRun::Launch(const DeviceKernel& kernel, KernelCall& call) const {
  kernel.kernels->Run(kernel.kernel, call, session_.device, stream_);
}

void* DeviceRun::Take(size_t bytes) const {
  const Address memory = session_.device.Take(bytes, stream_);
  taken_.push_back(memory);
  return reinterpret_cast<void*>(memory);
}

void ExpectAligned(const void* output, const char* role) {
  if (IsAligned(output)) return;
  Fail("expected ", role, " at a multiple of ", kAlignment, " bytes, got it ",
       reinterpret_cast<uintptr_t>(output) % kAlignment, " behind one");
}

}  // namespace pitc::cuda

#include "ort/run_memory.h"

#include <new>

namespace pitc {

RunMemory::~RunMemory() {
  if (allocator_) host_.api->ReleaseAllocator(allocator_);
}

OrtAllocator* RunMemory::Allocator() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (allocator_) return allocator_;
  OrtMemoryInfo* cpu = nullptr;
  Check(host_, host_.api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &cpu));
  OrtStatus* const status = host_.api->KernelContext_GetAllocator(context_, cpu, &allocator_);
  host_.api->ReleaseMemoryInfo(cpu);
  Check(host_, status);
  return allocator_;
}

void* RunMemory::Lend(size_t bytes) {
  void* memory = nullptr;
  if (OrtStatus* status = host_.api->AllocatorAlloc(Allocator(), bytes, &memory)) {
    host_.api->ReleaseStatus(status);
    memory = nullptr;
  }
  if (!memory) throw std::bad_alloc();
  return memory;
}

void RunMemory::TakeBack(void* memory) noexcept {
  if (OrtStatus* status = host_.api->AllocatorFree(allocator_, memory))
    host_.api->ReleaseStatus(status);
}

}  // namespace pitc

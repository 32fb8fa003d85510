#include "ort/large_memory.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <bitset>
#include <climits>
#include <fstream>
#include <string>

namespace pitc {
namespace {

constexpr size_t kPage = 4096, kHugePage = size_t{2} << 20;

// Of Linux; the header that names them belongs to a library that need not be there.
constexpr int kInterleave = 3, kAllowedNodes = 4;
constexpr unsigned long kNodeBits = sizeof(MemoryNodes) * CHAR_BIT;

size_t Count(const MemoryNodes& nodes) {
  size_t count = 0;
  for (unsigned long word : nodes) count += std::bitset<sizeof word * CHAR_BIT>(word).count();
  return count;
}

}  // namespace

bool HasHugePages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string text;
  return std::getline(file, text) && text.find("[never]") == text.npos;
}

MemoryNodes UsableNodes() {
  MemoryNodes nodes{};
  if (syscall(SYS_get_mempolicy, nullptr, nodes.data(), kNodeBits, nullptr, kAllowedNodes) != 0)
    return {};
  return nodes;
}

void* MapLarge(size_t bytes, const MemoryNodes& nodes) {
  const size_t reserved = bytes + kHugePage;
  void* const at = mmap(nullptr, reserved, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return nullptr;
  auto* const first = static_cast<char*>(at);
  const size_t before = (kHugePage - reinterpret_cast<size_t>(first) % kHugePage) % kHugePage;
  char* const begin = first + before;
  if (before) munmap(first, before);
  char* const end = begin + (bytes + kPage - 1) / kPage * kPage;
  if (end < first + reserved) munmap(end, static_cast<size_t>(first + reserved - end));
  madvise(begin, bytes, MADV_HUGEPAGE);
  // Before the first touch, which else takes all from the node of the thread that copies. Where it
  // is forbidden, as in many containers, pages stay there. The kernel reads one bit less than told.
  if (Count(nodes) > 1)
    syscall(SYS_mbind, begin, bytes, kInterleave, nodes.data(), kNodeBits + 1, 0);
  return begin;
}

void UnmapLarge(void* memory, size_t bytes) { munmap(memory, bytes); }

}  // namespace pitc

// Memory for weights that all threads read: in huge pages, and on every memory node in turn.
#pragma once

#include <array>
#include <cstddef>

namespace pitc {

// Whether the system gives huge pages to those who ask.
bool HasHugePages();

// One bit each.
using MemoryNodes = std::array<unsigned long, 16>;

// The nodes that this process may use; none where the system does not tell.
MemoryNodes UsableNodes();

// Null where the system has no room. Begins with a huge page; the last piece of less is in small
// ones. Pages come from `nodes` in turn where these are several and the system allows it.
void* MapLarge(size_t bytes, const MemoryNodes& nodes = UsableNodes());
void UnmapLarge(void* memory, size_t bytes);

}  // namespace pitc

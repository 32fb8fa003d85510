// Scratch memory of one thread: a stack that keeps its memory, so that a warm call allocates
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace pitc {

class Arena {
 public:
  // This thread's arena. Calls nest (a kernel inside a Compute call), and every level frees what it
  // took.
  static Arena& Local();

  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();

  // 64-byte aligned and uninitialised; throws std::bad_alloc.
  void* Take(uint64_t bytes);
  // Any order; memory comes back when everything above it is free as well.
  void Free(void* memory);

  // Frees on destruction all that was taken since construction, also what a failed kernel left
  // behind.
  class Scope {
   public:
    explicit Scope(Arena& arena = Local()) : arena_(arena), top_(arena.top_) {}
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope() { arena_.PopTo(top_); }

    template <class T>
    T* Array(int64_t n) {
      return static_cast<T*>(arena_.Take(static_cast<uint64_t>(n) * sizeof(T)));
    }

   private:
    friend class Arena;
    Arena& arena_;
    void* top_;
  };

  // Bytes held from the system.
  size_t Capacity() const;

 private:
  struct Header {  // stands in the 64 bytes below each piece
    Header* below;
    size_t block;  // the block it stands in
    bool free;
  };
  struct Block {
    char* base;
    size_t size, used;
  };

  void PopTo(void* top);
  void MergeBlocks();
  void AddBlock(size_t size);

  std::vector<Block> blocks_;
  size_t current_ = 0;  // pieces come from this block; the ones after it are empty
  Header* top_ = nullptr;
};

}  // namespace pitc

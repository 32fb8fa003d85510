// Scratch memory of one thread: a stack in a small block that the thread keeps, so that a warm call
// with little need allocates nothing. What does not fit is lent by ONNX Runtime, which sees it, and
// gets it back before the run ends.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pitc {

// Gives large pieces of memory for as long as a run lasts. Many threads may ask.
class Lender {
 public:
  virtual void* Lend(size_t bytes) = 0;  // throws std::bad_alloc
  virtual void TakeBack(void* memory) noexcept = 0;

 protected:
  ~Lender() = default;
};

class Arena {
 public:
  static constexpr size_t kKept = size_t{256} << 10;  // bytes that a thread holds at most

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

  // Until its end, large pieces come from `lender`; without one, from the heap.
  class Borrowing {
   public:
    explicit Borrowing(Lender& lender, Arena& arena = Local())
        : arena_(arena), before_(arena.lender_) {
      arena.lender_ = &lender;
    }
    Borrowing(const Borrowing&) = delete;
    Borrowing& operator=(const Borrowing&) = delete;
    ~Borrowing() { arena_.lender_ = before_; }

   private:
    Arena& arena_;
    Lender* before_;
  };

  // Bytes of its own.
  size_t Capacity() const { return block_ ? kKept : 0; }

 private:
  struct Header {  // stands in the 64 bytes below each piece
    Header* below;
    bool free, large;
    Lender* lender;  // of a large one; null: the heap
    void* memory;    // that a large one lies in
  };

  Header* TakeLarge(size_t need);
  void PopTo(void* top);

  char* block_ = nullptr;
  size_t used_ = 0;
  Header* top_ = nullptr;
  Lender* lender_ = nullptr;
};

}  // namespace pitc

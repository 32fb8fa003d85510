// The sparse operand of a contraction in one run: its live micro-tiles are counted, and their lists
// made, block of rows by block of rows.
#pragma once

#include <functional>

#include "block_lists.h"

namespace pitc {

class SparseOperand {
 public:
  // `bits`: [count, BitWords(k)] where a kernel has made them, or null. Else about
  // `sampled_rows` of A are counted.
  SparseOperand(const RunContext& run, CpuLevel level, const StoredMatrix& matrix, bool relu,
                const uint64_t* bits, int64_t sampled_rows)
      : run_(run),
        level_(level),
        matrix_(matrix),
        relu_(relu),
        bits_(bits),
        sampled_rows_(sampled_rows) {}

  // The work of a product with `panels` panels, as if nothing lived.
  Work Unseen(int64_t panels) const;
  // Counts what lives: all where A is small or has bits, else some groups of rows, the same ones
  // for every A of that size.
  void Count(Work* work, Arena::Scope& scratch);

  // Makes the lists of every block of rows and calls task(lists, first, begin, end) for panels
  // begin..end of the product of the rows from `first` on, at most `task_panels` at a time, in
  // parallel where it pays.
  using Task = std::function<void(const BlockLists&, int64_t, int64_t, int64_t)>;
  void Each(Variant variant, const Work& work, int64_t task_panels, const Task& task) const;

 private:
  void Scan(const Range& rows, const Range& ks, uint64_t* bits) const;
  void ScanAll(const Range& rows, uint64_t* bits) const;

  const RunContext& run_;
  const CpuLevel level_;
  const StoredMatrix matrix_;
  const bool relu_;
  const uint64_t* bits_;
  const int64_t sampled_rows_;
};

// Below so many elements, one thread is done sooner than others wake up.
constexpr int64_t kSerialScan = 1 << 17;

}  // namespace pitc

// The sparse operand of a contraction in one run: its live micro-tiles are counted, and their lists
// made, block of rows by block of rows.
#pragma once

#include "ops/block_lists.h"

namespace pitc {

class SparseOperand {
 public:
  // `bits`: [count, BitWords(k)] where a kernel has made them, or null. Else about
  // `sampled_rows` of A are counted.
  SparseOperand(const RunContext& run, const Primitives& simd, const StoredMatrix& matrix,
                Live live, const uint64_t* bits, int64_t sampled_rows)
      : run_(run),
        simd_(simd),
        matrix_(matrix),
        live_(live),
        bits_(bits),
        sampled_rows_(sampled_rows) {}

  // The work of a product with `panels` panels, as if nothing lived, cut for the threads there are;
  // `task_panels` are a task if tasks are enough.
  Work Unseen(int64_t panels, int64_t task_panels) const;
  // Counts what lives: all where A is small or has bits, else some groups of rows, the same ones
  // for every A of that size. `scratch` must last as long as this.
  void Count(Work* work, Arena::Scope& scratch);

  // Makes the lists of every block of rows and calls task(lists, first, begin, end) for panels
  // begin..end of the product of the rows from `first` on, in parallel where it pays.
  template <class Task>
  void Each(Variant variant, const Work& work, const Task& task) const {
    const Blocks blocks{matrix_.count, work.row_block};
    const bool parallel = IsWorthTasks(variant, work);
    const Blocks panels{work.panels, parallel && work.task_panels ? work.task_panels : work.panels};
    const int64_t per_wave = PerWave(work);
    for (int64_t wave = 0; wave < blocks.Count(); wave += per_wave) {
      Arena::Scope scratch;
      const int64_t count = std::min(per_wave, blocks.Count() - wave);
      const BlockLists* const lists = MakeLists(variant, work, wave, count, scratch);
      run_.Each(count * panels.Count(), parallel && work.threads > 1, [&](int64_t t) {
        const int64_t i = t % count, p = t / count;
        task(lists[i], blocks.Begin(wave + i), panels.Begin(p), panels.End(p));
      });
    }
  }

 private:
  // Blocks of rows whose lists exist at the same time.
  static int64_t PerWave(const Work& work);
  const BlockLists* MakeLists(Variant variant, const Work& work, int64_t first_block, int64_t count,
                              Arena::Scope& scratch) const;
  int64_t Group() const { return matrix_.columns ? kColumnGroup : kGroup; }
  void Scan(const Range& rows, const Range& ks, uint64_t* bits) const;
  void ScanColumns(const Range& rows, int threads, uint64_t* bits) const;

  const RunContext& run_;
  const Primitives& simd_;
  const StoredMatrix matrix_;
  const Live live_;
  const uint64_t* bits_;
  const MicroTileCounts* counts_ = nullptr;  // of each group of rows, where all are counted
  const int64_t sampled_rows_;

  static constexpr int64_t kGroup = 32;        // rows that are counted together
  static constexpr int64_t kColumnGroup = 64;  // of an A stored by columns that share its lines
};

// Below so many elements, one thread is done sooner than others wake up.
constexpr int64_t kSerialScan = 1 << 17;

}  // namespace pitc

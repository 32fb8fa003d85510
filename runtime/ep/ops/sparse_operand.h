// The sparse operand of a contraction in one run: its live micro-tiles are counted, and their lists
// made, block of rows by block of rows.
#pragma once

#include "ops/block_lists.h"

namespace pitc {

// Below so many elements, one thread is done sooner than others wake up.
constexpr int64_t kSerialScan = 1 << 17;

// The rows of a sparse operand: of a matrix, or of the transpose of a right operand that a kernel
// makes.
class OperandRows {
 public:
  OperandRows(const Primitives& simd, const StoredMatrix& matrix, Live live)
      : simd_(simd), matrix_(matrix), live_(live) {}
  // Needs no kernel where the transpose lies by rows.
  OperandRows(const Primitives& simd, const StoredRight& right, const Kernel& kernel);

  // Where they are; only its shape counts where they are made.
  const StoredMatrix& Matrix() const { return matrix_; }
  bool AreMade() const { return kernel_ != nullptr; }
  Live WhatLives() const { return live_; }
  // The bits of columns `ks` of some rows, [rows, words]; where rows are made also these, at
  // `room`, [rows, Matrix().stride], but for kListUnit rows of a word in which nothing lives. They
  // begin at multiples of kListUnit and of 64, and end at such ones or with the matrix.
  void Read(const Range& rows, const Range& ks, float* room, uint64_t* bits, int64_t words) const;

 private:
  const Primitives& simd_;
  StoredMatrix matrix_;
  Live live_ = Live::kNotZero;
  StoredRight right_{};
  const Kernel* kernel_ = nullptr;
};

class SparseOperand {
 public:
  // `bits`: [count, BitWords(k)] where a kernel has made them, or null. Else about
  // `sampled_rows` of A are counted.
  SparseOperand(const RunContext& run, const Primitives& simd, const OperandRows& rows,
                const uint64_t* bits, int64_t sampled_rows)
      : run_(run), simd_(simd), rows_(rows), bits_(bits), sampled_rows_(sampled_rows) {}

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
    const Blocks blocks{rows_.Matrix().count, work.row_block};
    const bool parallel = IsWorthTasks(variant, work);
    const Blocks panels{work.panels, parallel && work.task_panels ? work.task_panels : work.panels};
    if (IsOneTask(work)) {
      return run_.Each(blocks.Count(), parallel && work.threads > 1, [&](int64_t i) {
        Arena::Scope scratch;
        task(*MakeLists(variant, work, i, 1, 1, scratch), blocks.Begin(i), 0, work.panels);
      });
    }
    const int64_t per_wave = PerWave(work);
    for (int64_t wave = 0; wave < blocks.Count(); wave += per_wave) {
      Arena::Scope scratch;
      const int64_t count = std::min(per_wave, blocks.Count() - wave);
      const BlockLists* const lists = MakeLists(variant, work, wave, count, work.threads, scratch);
      run_.Each(count * panels.Count(), parallel && work.threads > 1, [&](int64_t t) {
        const int64_t i = t % count, p = t / count;
        task(lists[i], blocks.Begin(wave + i), panels.Begin(p), panels.End(p));
      });
    }
  }

 private:
  // Blocks of rows whose lists exist at the same time.
  int64_t PerWave(const Work& work) const;
  const BlockLists* MakeLists(Variant variant, const Work& work, int64_t first_block, int64_t count,
                              int threads, Arena::Scope& scratch) const;
  // A thread makes a block of rows, its lists and all panels: they are in its cache.
  bool IsOneTask(const Work& work) const {
    return rows_.AreMade() && !made_ && work.task_panels >= work.panels;
  }
  // All of these rows in parallel, as OperandRows::Read.
  void Make(const Range& rows, int threads, float* room, uint64_t* bits) const;
  int64_t SerialElements() const { return rows_.AreMade() ? kSerialScan / 4 : kSerialScan; }

  const RunContext& run_;
  const Primitives& simd_;
  const OperandRows rows_;
  const uint64_t* bits_;
  const MicroTileCounts* counts_ = nullptr;  // of each group of rows, where all are counted
  const float* made_ = nullptr;              // all rows, where they were made to be counted
  const int64_t sampled_rows_;

  static constexpr int64_t kGroup = 32;  // rows that are counted together
};

}  // namespace pitc

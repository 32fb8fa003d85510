// How work is cut into tasks: by its sizes, and by how many threads there are to take them.
// Elements of a result are sums of their own, so that no bit of them depends on a cut.
#pragma once

#include <cstdint>

#include "base/index.h"

namespace pitc {

// A matrix product cut into row blocks x panel blocks.
struct GemmSplit {
  Blocks rows, panels;
  bool parallel;

  struct Part {
    int64_t row_begin, row_end, panel_begin, panel_end;
  };
  int64_t Count() const { return rows.Count() * panels.Count(); }
  Part At(int64_t task) const;
};

// Work of so many multiplications or additions is worth a second thread: about 20 us of one.
constexpr double kSerialFlops = 4e6;
inline double GemmFlops(int64_t rows, int64_t k, int64_t columns) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(k) * static_cast<double>(columns);
}

// What multiplies: numbers of float32, words of two numbers of bfloat16 (rows may be converted by
// each task that reads them), or tiles of such words, by a matrix unit.
enum class Multiplier { kFloats, kPairs, kTiles };

// `rows` x `k` times `panels` panels of `k` x `width`, for so many threads.
GemmSplit SplitGemm(int64_t rows, int64_t k, int64_t panels, int64_t width, int threads,
                    Multiplier multiplier = Multiplier::kFloats);

// A product over lists: rows that share lists and a pass over B, and panels that a task takes.
struct ListSplit {
  Blocks rows, panels;
};

// Throws Failure where a block of `unit` rows may have more entries than lists count in int32.
// `unit`: rows of a block are a multiple of it, or of kListUnit where these are needed.
// `task_panels`: as many, if tasks are enough.
constexpr int64_t kListUnit = 16;  // whole micro-tiles, of rows that are made as well
ListSplit SplitLists(int64_t rows, int64_t k, int64_t panels, int64_t unit, int64_t task_panels,
                     int threads);
// The same where rows are made first: a thread makes a block, its lists and all its panels, if
// there are blocks enough.
ListSplit SplitMadeLists(int64_t rows, int64_t k, int64_t panels, int64_t width, int64_t unit,
                         int64_t task_panels, int threads);

// Of each sequence its first block of `size` points, and behind them how many blocks there are:
// first[sequences + 1].
void FindFirstBlocks(const int32_t* offsets, int64_t sequences, int64_t size, int64_t* first);

// The query blocks of packed attention: for each sequence, head and at most `kQueryBlock` queries
// one task, whole register tiles of `kQueryUnit` queries but for the last. Tasks of one sequence
// and head follow each other, as they share keys.
class AttentionSplit {
 public:
  static constexpr int64_t kQueryBlock = 128, kQueryUnit = 32;

  // first_task: room for sequences + 1 numbers, which must outlive the object. q_offsets: int32
  // [sequences + 1], ascending.
  AttentionSplit(const int32_t* q_offsets, int64_t sequences, int64_t heads, int64_t* first_task);

  struct Part {
    int64_t sequence, head, query_begin, query_end;
  };
  int64_t Count() const { return first_task_[sequences_]; }
  Part At(int64_t task) const;

 private:
  const int32_t* q_offsets_;
  int64_t sequences_;
  const int64_t* first_task_;
};

}  // namespace pitc

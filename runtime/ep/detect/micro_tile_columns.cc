#include "detect/micro_tile_columns.h"

#include <algorithm>

namespace pitc {
namespace {

constexpr int64_t kSide = 64;
constexpr int64_t kFew = 128;  // live elements of a window that are read one by one

// 64 rows x 64 columns of A. Columns are a power of two apart, or nearly: they would share few
// lines of the caches, so that a window is read line by line into a place of its own.
class Window {
 public:
  explicit Window(const DetectedRows& rows) : rows_(rows), a_(rows.matrix) {}

  // Moves to rows from `first` on and word `w` of each.
  void Move(int64_t first, int64_t w) {
    first_row_ = first, first_k_ = w * kSide;
    const int64_t begin = first_k_ * a_.columns + first;
    from_ = a_.a + begin, factor_ = a_.factor ? a_.factor + begin : nullptr, step_ = a_.columns;
    int64_t live = 0;
    for (int64_t r = first; r < Rows(); ++r) live += __builtin_popcountll(rows_.Bits(r)[w]);
    copied_ = live >= kFew;
    if (copied_) Copy();
  }
  // Asks for piece `i` of the window at `first`, `w`, which is next.
  void Ask(int64_t first, int64_t w, int64_t i) const {
    if (!copied_ || w * kSide + i >= a_.k) return;
    const int64_t begin = (w * kSide + i) * a_.columns + first;
    for (int64_t r = 0; r < std::min(kSide, a_.count - first); r += 16) {
      __builtin_prefetch(a_.a + begin + r);
      if (a_.factor) __builtin_prefetch(a_.factor + begin + r);
    }
  }
  int64_t Rows() const { return std::min(first_row_ + kSide, a_.count); }
  float At(int64_t r, int64_t k) const {
    const int64_t at = (k - first_k_) * step_ + r - first_row_;
    return factor_ ? from_[at] * factor_[at] : from_[at];
  }

 private:
  static constexpr int64_t kStep = kSide + 16;

  void Copy() {
    for (int64_t i = 0; i < std::min(kSide, a_.k - first_k_); ++i) {
      const float* const factor = factor_ ? factor_ + i * a_.columns : nullptr;
      CopyProduct(from_ + i * a_.columns, factor, Rows() - first_row_, elements_ + i * kStep);
    }
    from_ = elements_, factor_ = nullptr, step_ = kStep;
  }

  const DetectedRows& rows_;
  const StoredMatrix& a_;
  bool copied_ = false;
  int64_t first_row_ = 0, first_k_ = 0, step_ = 0;
  const float *from_ = nullptr, *factor_ = nullptr;
  float elements_[kSide * kStep];
};

// Calls visit(window, r, w) for word w of row r: block by block of `step` words, there by groups of
// rows, so that words of a row ascend.
template <class Visit>
void ForWords(const DetectedRows& rows, int64_t step, const Visit& visit) {
  const int64_t words = BitWords(rows.K());
  Window window(rows);
  for (int64_t block = 0; block < words; block += step) {
    const int64_t end = std::min(block + step, words);
    for (int64_t first = 0; first < rows.Count(); first += kSide) {
      for (int64_t w = block; w < end; ++w) {
        const bool down = w + 1 < end, right = first + kSide < rows.Count();
        const int64_t next_first = down ? first : right ? first + kSide : 0;
        const int64_t next_w = down ? w + 1 : right ? block : end;
        window.Move(first, w);
        for (int64_t r = first; r < window.Rows(); ++r) {
          window.Ask(next_first, next_w, r - first);
          visit(window, r, w);
        }
      }
    }
  }
}

}  // namespace

void FillRowsFromColumns(const DetectedRows& rows, int64_t k_block, const int32_t* starts,
                         float* values, int32_t* ks) {
  const int64_t step = k_block / kSide;
  int32_t next[kSide];  // the place of a row's next entry
  ForWords(rows, step, [&](const Window& window, int64_t r, int64_t w) {
    int32_t& place = next[r % kSide];
    if (w % step == 0) place = starts[w / step * rows.Count() + r];
    int32_t at = place;
    for (uint64_t word = rows.Bits(r)[w]; word; word &= word - 1, ++at) {
      const int64_t k = w * kSide + __builtin_ctzll(word);
      ks[at] = static_cast<int32_t>(k);
      values[at] = window.At(r, k);
    }
    place = at;
  });
}

void CopyTilesFromColumns(const StoredMatrix& a, int64_t first, int64_t height, const int32_t* ks,
                          int64_t n, int64_t group, float* values) {
  for (int64_t z = 0; z < n; ++z, values += group) {
    const int64_t at = ks[z] * a.columns + first;
    CopyProduct(a.a + at, a.factor ? a.factor + at : nullptr, height, values);
    std::fill(values + height, values + group, 0.0f);
  }
}

void FillBlocksFromColumns(const DetectedRows& rows, int64_t width, int32_t* next, float* values,
                           int32_t* live) {
  ForWords(rows, 1, [&](const Window& window, int64_t r, int64_t w) {
    ForSegments(rows.Bits(r) + w, 1, width, [&](int64_t segment) {
      const int64_t q = w * (kSide / width) + segment, k = q * width;
      const int64_t z = next[q]++, n = std::min(width, rows.K() - k);
      live[z] = static_cast<int32_t>(r);
      float* const to = values + z * width;
      for (int64_t i = 0; i < n; ++i) to[i] = window.At(r, k + i);
      std::fill(to + n, to + width, 0.0f);
    });
  });
}

}  // namespace pitc

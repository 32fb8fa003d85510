// The detector of contractions against plain loops, in memory that ends where nothing may be
// touched.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "micro_tiles.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace pitc::test {

// An array whose end (or begin) is the border to a page that nobody may touch; filled with 0xa5.
template <class T>
class Guarded {
 public:
  explicit Guarded(int64_t n, bool at_begin = false) : size_(static_cast<size_t>(n)) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t body = (size_ * sizeof(T) + page - 1) / page * page;
    mapped_ = body + 2 * page;
    base_ = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char* const begin = static_cast<char*>(base_) + page;
    if (base_ == MAP_FAILED || (body && mprotect(begin, body, PROT_READ | PROT_WRITE))) abort();
    memset(begin, 0xa5, body);
    data_ = reinterpret_cast<T*>(at_begin ? begin : begin + body - size_ * sizeof(T));
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(base_, mapped_); }

  T* data() { return data_; }
  size_t size() const { return size_; }
  T& operator[](int64_t i) { return data_[i]; }

 private:
  size_t size_, mapped_;
  void* base_;
  T* data_;
};

inline std::vector<CpuLevel> Levels() {
  std::vector<CpuLevel> levels;
  for (CpuLevel level : {CpuLevel::kBaseline, CpuLevel::kV3, CpuLevel::kV4}) {
    if (level <= MachineCpuLevel()) levels.push_back(level);
  }
  return levels;
}

// While it lives, arithmetic of this thread may treat denormals as 0.
class DenormalsAreZero {
 public:
#if defined(__x86_64__)
  explicit DenormalsAreZero(bool on) : before_(_mm_getcsr()) {
    if (on) _mm_setcsr(before_ | 0x8040);
  }
  ~DenormalsAreZero() { _mm_setcsr(before_); }
#else
  explicit DenormalsAreZero(bool) {}
#endif
  DenormalsAreZero(const DenormalsAreZero&) = delete;
  DenormalsAreZero& operator=(const DenormalsAreZero&) = delete;

 private:
  unsigned before_ = 0;
};

// What is tried on one matrix.
struct DetectorCase {
  int64_t rows = 0, k = 0;
  std::vector<float> a;       // [as many rows as `list` needs, k]
  std::vector<int32_t> list;  // empty: all rows in order
  CountRules rules;
  int64_t k_block = 64, group = 4, width = 16;
  bool at_begin = false, denormals_are_zero = false;
};

// Lists made by plain loops.
struct NaiveLists {
  std::vector<int32_t> starts{0}, index;
  std::vector<float> values;
};

class Reference {
 public:
  explicit Reference(const DetectorCase& c) : c_(c), live_(static_cast<size_t>(c.rows * c.k)) {
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t i = 0; i < c.k; ++i) live_[static_cast<size_t>(r * c.k + i)] = !(At(r, i) == 0);
    }
  }

  float At(int64_t r, int64_t i) const {
    if (r >= c_.rows || i >= c_.k) return 0;
    const int64_t row = c_.list.empty() ? r : c_.list[static_cast<size_t>(r)];
    return c_.a[static_cast<size_t>(row * c_.k + i)];
  }

  // Whether something lives in rows [r, r + height) and columns [i, i + width).
  bool Live(int64_t r, int64_t height, int64_t i, int64_t width) const {
    for (int64_t y = r; y < std::min(c_.rows, r + height); ++y) {
      for (int64_t x = i; x < std::min(c_.k, i + width); ++x) {
        if (live_[static_cast<size_t>(y * c_.k + x)]) return true;
      }
    }
    return false;
  }

  int64_t Count(int64_t height, int64_t width) const {
    int64_t count = 0;
    for (int64_t r = 0; r < c_.rows; r += height) {
      for (int64_t i = 0; i < c_.k; i += width) count += Live(r, height, i, width);
    }
    return count;
  }

  int64_t SegmentSteps(int64_t width) const {
    int64_t steps = 0;
    for (int64_t first = 0; first < c_.rows; first += c_.rules.list_rows) {
      for (int64_t i = 0; i < c_.k; i += width) {
        int64_t rows = 0;
        for (int64_t r = first; r < std::min(c_.rows, first + c_.rules.list_rows); ++r) {
          rows += Live(r, 1, i, width);
        }
        steps += (rows + c_.rules.tile_rows - 1) / c_.rules.tile_rows;
      }
    }
    return steps;
  }

  NaiveLists Rows() const {
    NaiveLists lists;
    for (int64_t first = 0; first < c_.k; first += c_.k_block) {
      for (int64_t r = 0; r < c_.rows; ++r) {
        for (int64_t i = first; i < std::min(c_.k, first + c_.k_block); ++i) {
          if (Live(r, 1, i, 1)) Add(&lists, i, r, 1, i, 1);
        }
        End(&lists);
      }
    }
    return lists;
  }

  NaiveLists Tiles() const {
    NaiveLists lists;
    for (int64_t r = 0; r < c_.rows; r += c_.group) {
      for (int64_t i = 0; i < c_.k; ++i) {
        if (Live(r, c_.group, i, 1)) Add(&lists, i, r, c_.group, i, 1);
      }
      End(&lists);
    }
    return lists;
  }

  NaiveLists Blocks() const {
    NaiveLists lists;
    for (int64_t i = 0; i < c_.k; i += c_.width) {
      for (int64_t r = 0; r < c_.rows; ++r) {
        if (Live(r, 1, i, c_.width)) Add(&lists, r, r, 1, i, c_.width);
      }
      End(&lists);
    }
    return lists;
  }

 private:
  void Add(NaiveLists* lists, int64_t index, int64_t r, int64_t height, int64_t i,
           int64_t width) const {
    lists->index.push_back(static_cast<int32_t>(index));
    for (int64_t y = r; y < r + height; ++y) {
      for (int64_t x = i; x < i + width; ++x) lists->values.push_back(At(y, x));
    }
  }
  static void End(NaiveLists* lists) {
    lists->starts.push_back(static_cast<int32_t>(lists->index.size()));
  }

  const DetectorCase& c_;
  std::vector<char> live_;
};

template <class T>
bool Same(Guarded<T>& found, const std::vector<T>& expected) {
  return found.size() == expected.size() &&
         (expected.empty() || !memcmp(found.data(), expected.data(), found.size() * sizeof(T)));
}

// What the detector of one level answers wrongly first, or "".
inline std::string WrongAnswer(CpuLevel level, const DetectorCase& c) {
  const Reference reference(c);
  const int64_t words = BitWords(c.k);
  MicroTileCounts expected;
  expected.rows = reference.Count(1, c.k);
  expected.elements = reference.Count(1, 1);
  for (int i = 0; i < 4; ++i) expected.strips[i] = reference.Count(kStripHeights[i], 1);
  for (int i = 0; i < 3; ++i) {
    expected.segments[i] = reference.Count(1, kSegmentWidths[i]);
    expected.segment_steps[i] = reference.SegmentSteps(kSegmentWidths[i]);
  }
  expected.squares[0] = reference.Count(16, 16);
  expected.squares[1] = reference.Count(32, 32);
  const int64_t strips = reference.Count(c.group, 1), segments = reference.Count(1, c.width);
  const NaiveLists row_lists = reference.Rows(), tile_lists = reference.Tiles(),
                   block_lists = reference.Blocks();
  const int64_t live_columns = reference.Count(std::max<int64_t>(c.rows, 1), 1);

  Guarded<float> a(static_cast<int64_t>(c.a.size()), c.at_begin);
  std::copy(c.a.begin(), c.a.end(), a.data());
  Guarded<uint64_t> bits(c.rows * words, c.at_begin), columns(words, c.at_begin);
  std::fill_n(columns.data(), words, 0);
  const DetectedRows rows{a.data(), c.list.empty() ? nullptr : c.list.data(), bits.data(), c.rows,
                          c.k};
  const DenormalsAreZero mode(c.denormals_are_zero);
  for (int64_t r = 0; r < c.rows; ++r) {
    LiveBits(level, Live::kNotZero, rows.Row(r), c.k, bits.data() + r * words);
  }
  for (int64_t r = 0; r < c.rows; ++r) {
    for (int64_t i = 0; i < words * 64; ++i) {
      const bool live = reference.Live(r, 1, i, 1);
      if (live != (bits[r * words + i / 64] >> i % 64 & 1)) return "bits";
    }
  }
  const MicroTileCounts counts =
      CountMicroTiles(level, bits.data(), c.rows, c.k, c.rules, columns.data());
  if (memcmp(&counts, &expected, sizeof counts)) return "counts";
  const MicroTileCounts again = CountMicroTiles(level, bits.data(), c.rows, c.k, c.rules);
  if (memcmp(&again, &counts, sizeof counts)) return "counts without columns";
  if (CountBits(level, columns.data(), words) != live_columns) return "live columns";
  if (CountBits(level, bits.data(), c.rows * words) != expected.elements) return "CountBits";
  if (CountStrips(level, bits.data(), c.rows, c.k, c.group) != strips) return "CountStrips";

  const auto wrong = [&](const NaiveLists& naive, int64_t entries, int64_t size, const auto& fill) {
    Guarded<int32_t> starts(static_cast<int64_t>(naive.starts.size()), c.at_begin);
    Guarded<int32_t> index(entries, c.at_begin);
    Guarded<float> values(entries * size, c.at_begin);
    fill(values.data(), index.data(), starts.data());
    return !Same(starts, naive.starts) || !Same(index, naive.index) || !Same(values, naive.values);
  };
  if (wrong(row_lists, expected.elements, 1, [&](float* values, int32_t* ks, int32_t* starts) {
        FillRowLists(level, rows, c.k_block, expected.elements, values, ks, starts);
      }))
    return "row lists";
  if (wrong(tile_lists, strips, c.group, [&](float* values, int32_t* ks, int32_t* starts) {
        FillTileLists(level, rows, c.group, strips, values, ks, starts);
      }))
    return "tile lists";
  if (wrong(block_lists, segments, c.width, [&](float* values, int32_t* live, int32_t* starts) {
        FillBlockLists(rows, c.width, values, live, starts);
      }))
    return "block lists";
  return "";
}

}  // namespace pitc::test

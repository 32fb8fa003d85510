// The detector of contractions against plain loops, in memory that ends where nothing may be
// touched.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "check.h"
#include "detect/micro_tiles.h"

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

// Of every level that this machine has.
inline std::vector<const Primitives*> Levels() {
  std::vector<const Primitives*> levels;
  for (CpuLevel level : {CpuLevel::kBaseline, CpuLevel::kV3, CpuLevel::kV4}) {
    if (level <= MachineCpuLevel()) levels.push_back(&PrimitivesOf(level));
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
  std::vector<float> a;            // [as many rows as `list` needs, k]
  std::vector<int32_t> list;       // empty: all rows in order
  int64_t gap = 0;                 // elements between rows
  int64_t first = 0;               // it is the rows from here on of a larger matrix
  int64_t row_cut = 0, k_cut = 0;  // its bits are found in parts, too; k_cut is a multiple of 64
  int64_t k_block = 64, group = 4, width = 16;
  bool at_begin = false, denormals_are_zero = false;
};

inline std::string Describe(const DetectorCase& c) {
  std::string text;
  const auto add = [&](const char* name, int64_t value) {
    text += (text.empty() ? "" : ", ") + std::string(name) + " " + std::to_string(value);
  };
  add("rows", c.rows), add("k", c.k), add("k_block", c.k_block), add("group", c.group);
  add("width", c.width), add("gap", c.gap), add("first", c.first);
  add("row_cut", c.row_cut), add("k_cut", c.k_cut);
  return text + (c.list.empty() ? "" : ", a list");
}

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

  std::vector<uint64_t> Bits(pitc::Live live) const {
    std::vector<uint64_t> bits(static_cast<size_t>(c_.rows * BitWords(c_.k)));
    for (int64_t r = 0; r < c_.rows; ++r) {
      for (int64_t i = 0; i < c_.k; ++i) {
        const float x = At(r, i);
        const bool lives = live == pitc::Live::kNotZero ? !(x == 0) : x > 0 || std::isnan(x);
        bits[static_cast<size_t>(r * BitWords(c_.k) + i / 64)] |= uint64_t{lives} << i % 64;
      }
    }
    return bits;
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

// The matrix of a case as it lies in memory: up to the last element of the last row. What is there
// besides lives: 0xa5a5a5a5 is not 0.
class StoredCase {
 public:
  explicit StoredCase(const DetectorCase& c)
      : c_(c),
        memory_(c.a.empty() ? 0 : Place(static_cast<int64_t>(c.a.size()) / c.k - 1, c.k - 1) + 1,
                c.at_begin),
        list_(static_cast<size_t>(c.first), -1) {
    for (int64_t at = 0; at < static_cast<int64_t>(c.a.size()); ++at)
      memory_[Place(at / c.k, at % c.k)] = c.a[static_cast<size_t>(at)];
    list_.insert(list_.end(), c.list.begin(), c.list.end());
  }
  StoredMatrix Matrix() {
    const int32_t* const list = c_.list.empty() ? nullptr : list_.data();
    const StoredMatrix whole{memory_.data(), list, c_.first + c_.rows, c_.k, c_.k + c_.gap};
    return whole.Part({c_.first, c_.first + c_.rows}, {0, c_.k});
  }

 private:
  int64_t Place(int64_t r, int64_t i) const {
    return ((c_.list.empty() ? c_.first : 0) + r) * (c_.k + c_.gap) + i;
  }

  const DetectorCase& c_;
  Guarded<float> memory_;
  std::vector<int32_t> list_;
};

template <class T>
bool Same(Guarded<T>& found, const std::vector<T>& expected) {
  return found.size() == expected.size() &&
         (expected.empty() || !memcmp(found.data(), expected.data(), found.size() * sizeof(T)));
}

// What the detector has to answer.
struct Answers {
  explicit Answers(const DetectorCase& c) {
    const Reference reference(c);
    counts.elements = reference.Count(1, 1);
    for (size_t i = 0; i < std::size(kStripHeights); ++i)
      counts.strips[i] = reference.Count(kStripHeights[i], 1);
    for (size_t i = 0; i < std::size(kSegmentWidths); ++i)
      counts.segments[i] = reference.Count(1, kSegmentWidths[i]);
    strips = reference.Count(c.group, 1);
    segments = reference.Count(1, c.width);
    columns = reference.Count(std::max<int64_t>(c.rows, 1), 1);
    rows = reference.Rows();
    tiles = reference.Tiles();
    blocks = reference.Blocks();
    not_zero = reference.Bits(Live::kNotZero);
    positive = reference.Bits(Live::kPositive);
  }

  MicroTileCounts counts;
  int64_t strips, segments, columns;
  NaiveLists rows, tiles, blocks;
  std::vector<uint64_t> not_zero, positive;
};

// What the detector of one level answers wrongly first, or "".
inline std::string WrongAnswer(const Primitives& simd, const DetectorCase& c,
                               const Answers& expected) {
  const int64_t words = BitWords(c.k);
  StoredCase stored(c);
  Guarded<uint64_t> bits(c.rows * words, c.at_begin), columns(words, c.at_begin);
  std::fill_n(columns.data(), words, 0);
  const DetectedRows rows{stored.Matrix(), bits.data()};
  const DenormalsAreZero mode(c.denormals_are_zero);
  MatrixBits(simd, Live::kPositive, rows.matrix, bits.data(), words);
  if (!Same(bits, expected.positive)) return "bits of what is above 0";
  std::fill_n(bits.data(), bits.size(), ~0ull);
  for (const Range& k : {Range{c.k_cut, c.k}, Range{0, c.k_cut}}) {
    for (const Range& r : {Range{c.row_cut, c.rows}, Range{0, c.row_cut}})
      MatrixBits(simd, Live::kNotZero, rows.matrix.Part(r, k),
                 bits.data() + r.begin * words + k.begin / 64, words);
  }
  if (!Same(bits, expected.not_zero)) return "bits in parts";
  std::fill_n(bits.data(), bits.size(), ~0ull);
  MatrixBits(simd, Live::kNotZero, rows.matrix, bits.data(), words);
  if (!Same(bits, expected.not_zero)) return "bits";
  MicroTileCounts counts, again;
  simd.count_micro_tiles(bits.data(), c.rows, c.k, columns.data(), &counts);
  if (memcmp(&counts, &expected.counts, sizeof counts)) return "counts";
  simd.count_micro_tiles(bits.data(), c.rows, c.k, nullptr, &again);
  if (memcmp(&again, &counts, sizeof counts)) return "counts without columns";
  const int64_t elements = counts.elements, strips = expected.strips, segments = expected.segments;
  if (simd.count_bits(columns.data(), words) != expected.columns) return "live columns";
  if (simd.count_bits(bits.data(), c.rows * words) != elements) return "set bits";

  const auto wrong = [&](const NaiveLists& naive, int64_t entries, int64_t size, const auto& fill) {
    Guarded<int32_t> starts(static_cast<int64_t>(naive.starts.size()), c.at_begin);
    Guarded<int32_t> index(entries, c.at_begin);
    Guarded<float> values(entries * size, c.at_begin);
    fill(values.data(), index.data(), starts.data());
    return !Same(starts, naive.starts) || !Same(index, naive.index) || !Same(values, naive.values);
  };
  if (wrong(expected.rows, elements, 1, [&](float* values, int32_t* ks, int32_t* starts) {
        FillRowLists(simd, rows, c.k_block, elements, values, ks, starts);
      }))
    return "row lists";
  if (wrong(expected.tiles, strips, c.group, [&](float* values, int32_t* ks, int32_t* starts) {
        FillTileLists(simd, rows, c.group, strips, values, ks, starts);
      }))
    return "tile lists";
  if (wrong(expected.blocks, segments, c.width, [&](float* values, int32_t* live, int32_t* starts) {
        FillBlockLists(rows, c.width, values, live, starts);
      }))
    return "block lists";
  return "";
}

// What is wrong first at any level, and of which case; or "".
inline std::string WrongAnswer(const DetectorCase& c) {
  const Answers expected(c);
  for (const Primitives* simd : Levels()) {
    const std::string wrong = WrongAnswer(*simd, c, expected);
    if (!wrong.empty()) return wrong + " on " + Name(simd->level) + ": " + Describe(c);
  }
  return "";
}

}  // namespace pitc::test

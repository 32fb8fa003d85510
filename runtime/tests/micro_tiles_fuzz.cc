// Any bytes are a matrix: the first ones choose its shape and what is tried on it, the others are
// its elements. The detector of every level finds what plain loops find, and touches nothing else.
#include <cstdlib>

#include "check.h"
#include "micro_tiles_check.h"

namespace {

using pitc::test::DetectorCase;
using pitc::test::Random;

// Takes bytes from the front; 0 where there are none left.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  int64_t Below(int64_t limit) { return static_cast<int64_t>(Take(2)) % limit; }
  uint64_t Take(size_t bytes) {
    uint64_t value = 0;
    for (; bytes && at_ < size_; --bytes) value = value << 8 | data_[at_++];
    return value;
  }
  bool Empty() const { return at_ >= size_; }

 private:
  const uint8_t* data_;
  size_t size_, at_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Input input(data, size);
  DetectorCase c;
  c.rows = input.Below(70);
  c.k = 1 + input.Below(input.Below(4) ? 140 : 600);
  c.k_block = 64 * (1 + input.Below(10));
  c.group = 4 * (1 + input.Below(18));
  c.width = pitc::kSegmentWidths[input.Below(3)];
  c.at_begin = input.Below(2);
  c.denormals_are_zero = input.Below(2);
  const bool listed = input.Below(2);
  const int64_t all_rows = listed ? 2 * c.rows : c.rows;
  c.first = input.Below(3) ? 0 : input.Below(70);
  c.row_cut = input.Below(c.rows + 1);
  c.k_cut = input.Below(c.k / 64 + 1) * 64;
  c.gap = input.Below(2) ? input.Below(70) : 0;
  for (int64_t r = 0; listed && r < c.rows; ++r)
    c.list.push_back(static_cast<int32_t>(2 * r + input.Below(2)));
  // Runs of zeros of random lengths, and between them one of the elements that the input names.
  Random random(input.Take(8));
  const int64_t longest = 1 + input.Below(300);
  std::vector<uint32_t> patterns;
  while (!input.Empty()) patterns.push_back(static_cast<uint32_t>(input.Take(4)));
  patterns.insert(patterns.end(), {1, 0x80000000, 0x7fc00000});
  c.a.resize(static_cast<size_t>(all_rows * c.k));
  const auto kinds = static_cast<int64_t>(patterns.size());
  for (size_t i = 0; i < c.a.size(); i += 1 + static_cast<size_t>(random.Below(longest)))
    memcpy(&c.a[i], &patterns[static_cast<size_t>(random.Below(kinds))], sizeof c.a[i]);
  const std::string wrong = WrongAnswer(c);
  if (wrong.empty()) return 0;
  fprintf(stderr, "%s\n", wrong.c_str());
  abort();
}

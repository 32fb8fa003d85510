// outer_products: C = A^T @ B, perhaps only where a mask is not 0, and 0 elsewhere; sizes are those
// of the run.
//
// Row k of A and row k of B make an outer product, and C is the sum of these: a gradient of weights
// over the rows of a batch. Under a mask, as of a sampled product, blocks of H rows of C list the
// columns in which one of them lives, and a kernel computes these; where most live, another one
// computes all of C.
//
// Sums are made in blocks of k, which depend on k alone, and are added in their order: an element
// has the same bits on any number of threads, with both kernels and for every H.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/index.h"
#include "base/split.h"
#include "ops/operation.h"
#include "ops/sampled_mask.h"

namespace pitc {
namespace {

constexpr int64_t kSide = 8;             // k that a kernel turns at a time
constexpr int64_t kGroup = 16;           // rows of C whose A stands together
constexpr int64_t kDenseGroup = 6;       // of the dense kernel
constexpr int64_t kPackedGroups = 16;    // that are packed together: several lines of a row of A
constexpr int64_t kNearK = 384;          // of a block
constexpr int64_t kPartRows = 512;       // of a task
constexpr int64_t kDensePartRows = 384;  // whose A stays near
constexpr int64_t kPartColumns = 2048;   // of a task
constexpr int64_t kSingleColumns = 384;  // whose lines stay near, where rows share no panel
constexpr int64_t kLeastColumns = 256;
constexpr int64_t kThreadTasks = 4;              // of each thread
constexpr int64_t kHeights[] = {1, 16, 32, 64};  // of blocks
constexpr int64_t kHighest = 64;                 // all of them divide it
constexpr int kDenseBits = 48;                   // of a word: columns are then listed all
constexpr int64_t kCounted = 512;  // with fewer sums in an element not all are counted

// What a vector of 16 columns of a list takes for each k, in that of one row of it whose columns
// lie side by side; where they do not, and for each of its rows; an element by itself; a line of B.
// As measured on AVX2.
constexpr double kBeside = 2, kApart = 4.5, kApartRow = 1.22, kSingle = 0.28, kLine = 2.5;
constexpr double kDenseRow = 0.85;  // a vector of the dense kernel

int64_t Groups(int64_t rows, int64_t group) { return (rows + group - 1) / group; }
int64_t Whole(int64_t k) { return (k + kSide - 1) / kSide * kSide; }

class OuterProducts final : public Operation {
 public:
  OuterProducts(const OuterProductsPlan& plan, const Primitives& simd, Kernel dense, Kernel listed,
                std::optional<Variant> variant)
      : plan_(plan),
        simd_(simd),
        dense_(std::move(dense)),
        listed_(std::move(listed)),
        told_(variant) {}
  int InputCount() const override { return plan_.Places().count; }
  int OutputCount() const override { return OuterProductsPlan::kOutputs; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const OuterProductsPlan::Inputs in = plan_.Places();
    const Tensor a = run.FloatInput(in.a, "a", 2, 2), b = run.FloatInput(in.b, "b", 2, 2);
    const int64_t k = a.shape.dims[0], m = a.shape.dims[1], n = b.shape.dims[1];
    Expect(b.shape.dims[0] == k, b, "of ", k, " rows");
    Numbered(n, "columns");
    SampledMask mask{};
    if (plan_.masked) mask = ReadSampledMask(run, simd_, in.mask, m, n, scratch);
    Product({m, n}, "the output");
    auto* const c = static_cast<float*>(run.Output(0, {m, n}, sizeof(float), scratch));
    if (m == 0 || n == 0) return;
    const int threads = run.ThreadsFor(GemmFlops(m, k, n));
    const Sizes sizes{m, n, EvenBlocks(k, kNearK, kSide)};
    const int64_t height = plan_.masked ? ChooseHeight(run, mask, k, threads) : 0;
    const bool dense = height == 0;
    const Matrix left = dense ? PackLeft<kDenseGroup>(run, a.Floats(), sizes, threads, scratch)
                              : PackLeft<kGroup>(run, a.Floats(), sizes, threads, scratch);
    const Blocks rows =
        dense ? EvenBlocks(m, kDensePartRows, kDenseGroup) : EvenBlocks(m, kPartRows, kHighest);
    const Blocks columns = ColumnParts(height, n, rows.Count(), threads);
    run.Each(rows.Count() * columns.Count(), threads > 1, [&](int64_t task) {
      const int64_t p = task / rows.Count(), part = task % rows.Count();
      const Range of_rows{rows.Begin(part), rows.End(part)};
      const Range of_columns{columns.Begin(p), columns.End(p)};
      if (dense) {
        RunDense(left, b.Floats(), sizes, mask, of_rows, of_columns, c);
      } else {
        RunListed(left, b.Floats(), sizes, mask, height, of_rows, of_columns, c);
      }
    });
  }

 private:
  struct Sizes {
    int64_t m, n;
    Blocks ks;
  };
  // A in groups of its columns, block of k by block of k, with zeros up to a whole `kSide`.
  struct Matrix {
    const float* data;
    int64_t groups, width;

    // The groups from column `first` of A on, of a block from k `begin` on.
    const float* Part(int64_t first, int64_t begin, int64_t depth) const {
      return data + (begin * groups + first / width * depth) * width;
    }
  };

  static Blocks ColumnParts(int64_t height, int64_t n, int64_t row_parts, int threads) {
    int64_t columns = height == 1 ? kSingleColumns : kPartColumns;
    const auto cut = [&] { return EvenBlocks(n, columns, 64); };
    while (threads > 1 && columns > kLeastColumns &&
           cut().Count() * row_parts < kThreadTasks * threads)
      columns /= 2;
    return cut();
  }

  template <int64_t kWidth>
  static Matrix PackLeft(const RunContext& run, const float* a, const Sizes& sizes, int threads,
                         Arena::Scope& scratch) {
    const int64_t m = sizes.m, count = Groups(m, kWidth);
    if (sizes.ks.total == 0) return {nullptr, count, kWidth};
    auto* const packed = scratch.Array<float>(Whole(sizes.ks.total) * count * kWidth);
    const Blocks parts{count, kPackedGroups};
    run.Each(parts.Count(), threads > 1, [&](int64_t part) {
      for (int64_t block = 0; block < sizes.ks.Count(); ++block) {
        const int64_t begin = sizes.ks.Begin(block), near = sizes.ks.End(block) - begin;
        const int64_t depth = Whole(near);
        float* const to = packed + begin * count * kWidth;
        const auto each_group = [&](auto&& step) {
          for (int64_t g = parts.Begin(part); g < parts.End(part); ++g)
            step(g * kWidth, to + g * depth * kWidth);
        };
        for (int64_t i = 0; i < near; ++i) {
          const float* const row = a + (begin + i) * m;
          each_group([&](int64_t first, float* group) {
            if (m - first >= kWidth) {
              std::copy_n(row + first, kWidth, group + i * kWidth);
            } else {
              std::copy_n(row + first, m - first, group + i * kWidth);
              std::fill_n(group + i * kWidth + m - first, first + kWidth - m, 0.0f);
            }
          });
        }
        each_group([&](int64_t, float* group) {
          std::fill_n(group + near * kWidth, (depth - near) * kWidth, 0.0f);
        });
      }
    });
    return {packed, count, kWidth};
  }

  // The columns that a block of rows lists, of words begin..end: all of a word where most live.
  static void ListedBits(const SampledMask& mask, int64_t height, int64_t first, int64_t last,
                         const Range& part, uint64_t* any) {
    mask.Any(first, last, part, any);
    if (height == 1) return;
    for (int64_t w = part.begin; w < part.end; ++w) {
      const int64_t left = mask.columns - w * 64;
      const uint64_t every = left < 64 ? (uint64_t{1} << left) - 1 : ~uint64_t{0};
      uint64_t& bits = any[w - part.begin];
      if (__builtin_popcountll(bits) >= kDenseBits) bits = every;
    }
  }

  // The fastest height for what lives, or 0 for all of C: of all rows, or of some, which are the
  // same ones for every mask of that size.
  int64_t ChooseHeight(const RunContext& run, const SampledMask& mask, int64_t k,
                       int threads) const {
    if (told_) {
      const VariantRecord& record = RecordOf(*told_);
      if (record.cut == Cut::kRow) return 1;
      if (record.cut == Cut::kBlock) return record.size;
      if (*told_ == Variant::kDense) return 0;
    }
    constexpr size_t kCount = std::size(kHeights);
    using Costs = std::array<double, kCount>;
    Arena::Scope scratch;
    const Blocks groups{mask.rows, kHighest};
    const int64_t all = groups.Count(), least = std::min<int64_t>(all, 2);
    const int64_t seen = std::clamp(all * k / kCounted, least, all);
    auto* const found = scratch.Array<Costs>(seen);
    run.Each(seen, threads > 1, [&](int64_t s) {
      Arena::Scope here;
      auto* const any = here.Array<uint64_t>(mask.words);
      const int64_t first = groups.Begin(s * all / seen), last = groups.End(s * all / seen);
      for (size_t h = 0; h < kCount; ++h) found[s][h] = CostOf(mask, kHeights[h], first, last, any);
    });
    Costs costs{};
    for (int64_t s = 0; s < seen; ++s) {
      for (size_t h = 0; h < kCount; ++h) costs[h] += found[s][h];
    }
    const double part = static_cast<double>(seen) / static_cast<double>(all);
    const auto lines = static_cast<double>(EvenBlocks(mask.rows, kPartRows, kHighest).Count());
    costs[0] += kLine * static_cast<double>(mask.columns) * lines * part;
    const auto best = std::min_element(costs.begin(), costs.end());
    const double vectors = static_cast<double>(mask.rows * mask.words * 4) * part;
    return *best < kDenseRow * vectors ? kHeights[best - costs.begin()] : 0;
  }

  // What some rows take for each k, in vectors of a row.
  double CostOf(const SampledMask& mask, int64_t height, int64_t first, int64_t last,
                uint64_t* any) const {
    if (height == 1) {
      const int64_t live = simd_.count_bits(mask.Row(first), (last - first) * mask.words);
      return kSingle * static_cast<double>(live);
    }
    double cost = 0;
    for (int64_t r = first; r < last; r += height) {
      const int64_t end = std::min(r + height, last);
      ListedBits(mask, height, r, end, {0, mask.words}, any);
      double beside = 0;
      for (int64_t w = 0; w < mask.words; ++w) beside += any[w] == ~uint64_t{0} ? 4 : 0;
      const double apart = static_cast<double>(simd_.count_bits(any, mask.words)) / 16 - beside;
      const auto here = static_cast<double>(end - r);
      cost += beside * (here + kBeside) + apart * (here * kApartRow + kApart);
    }
    return cost;
  }

  // Some rows and columns of C, all of their elements.
  void RunDense(const Matrix& left, const float* b, const Sizes& sizes, const SampledMask& mask,
                const Range& rows, const Range& columns, float* all) const {
    const int64_t n = sizes.n, count = rows.end - rows.begin;
    const int64_t width = columns.end - columns.begin;
    float* const c = all + rows.begin * n;
    for (int64_t block = 0; block < sizes.ks.Count(); ++block) {
      const int64_t begin = sizes.ks.Begin(block), near = sizes.ks.End(block) - begin;
      const int64_t depth = Whole(near);
      KernelCall call;
      call.Floats(left.Part(rows.begin, begin, depth),
                  {Groups(count, kDenseGroup), depth, kDenseGroup});
      call.Floats(b + begin * n, {near, n}).Floats(c, {count, n});
      call.Int(columns.begin).Int(columns.end).Int(block > 0).Run(dense_);
    }
    for (int64_t r = 0; r < count; ++r) {
      float* const row = c + r * n + columns.begin;
      if (sizes.ks.Count() == 0) std::fill_n(row, width, 0.0f);
      if (plan_.masked)
        KeepLive(mask.Row(rows.begin + r) + columns.begin / 64, nullptr, width, row);
    }
  }

  // Some rows and columns of C, what blocks of `height` rows list.
  void RunListed(const Matrix& left, const float* b, const Sizes& sizes, const SampledMask& mask,
                 int64_t height, const Range& rows, const Range& columns, float* all) const {
    Arena::Scope scratch;
    const int64_t n = sizes.n, count = rows.end - rows.begin;
    const ListedColumns lists =
        ListColumns(simd_, height, rows, columns, scratch,
                    [&](int64_t first, int64_t last, const Range& words, uint64_t* any) {
                      ListedBits(mask, height, first, last, words, any);
                    });
    float* const c = all + rows.begin * n;
    for (int64_t r = 0; r < count; ++r)
      std::fill_n(c + r * n + columns.begin, columns.end - columns.begin, 0.0f);
    if (lists.entries == 0) return;
    const bool turns = height == 1 || NeedsLines(lists, columns);
    for (int64_t block = 0; block < sizes.ks.Count(); ++block) {
      const int64_t begin = sizes.ks.Begin(block), near = sizes.ks.End(block) - begin;
      const int64_t depth = Whole(near);
      KernelCall call;
      call.Floats(left.Part(rows.begin, begin, depth), {Groups(count, kGroup), depth, kGroup});
      call.Floats(b + begin * n, {near, n});
      call.Int32s(lists.columns, {lists.entries})
          .Int32s(lists.starts, {lists.blocks + 1})
          .Floats(c, {count, n});
      call.Int(height).Int(columns.begin).Int(columns.end).Int(turns).Run(listed_);
    }
    for (int64_t r = 0; r < count && height > 1; ++r) {
      KeepLive(mask.Row(rows.begin + r) + columns.begin / 64, lists.any + r / height * lists.words,
               columns.end - columns.begin, c + r * n + columns.begin);
    }
  }

  // Many vectors of listed columns do not lie side by side: to turn all columns is faster.
  static bool NeedsLines(const ListedColumns& lists, const Range& columns) {
    constexpr int32_t kLanes = 16;
    int64_t apart = 0;
    for (int64_t g = 0; g < lists.blocks; ++g) {
      const int32_t end = lists.starts[g + 1];
      for (int32_t z = lists.starts[g]; z < end; z += kLanes) {
        const int32_t* const first = lists.columns + z;
        apart += !(z + kLanes <= end && first[kLanes - 1] - first[0] == kLanes - 1);
      }
    }
    return apart * kLanes > columns.end - columns.begin;
  }

  const OuterProductsPlan plan_;
  const Primitives& simd_;
  const Kernel dense_, listed_;
  const std::optional<Variant> told_;
};

}  // namespace

std::unique_ptr<Operation> MakeOuterProducts(const OuterProductsPlan& plan, const Primitives& simd,
                                             Kernel dense, Kernel listed,
                                             std::optional<Variant> variant) {
  return std::make_unique<OuterProducts>(plan, simd, std::move(dense), std::move(listed), variant);
}

}  // namespace pitc

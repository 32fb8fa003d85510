#include "base/index.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <vector>

#include "base/split.h"
#include "check.h"
#include "plan/layout.h"

using pitc::test::Contains;
using pitc::test::Random;
using pitc::test::Thrown;

namespace {

constexpr int32_t kMost = INT32_MAX, kLeast = INT32_MIN;

void BoundsScan() {
  const std::vector<int32_t> bad = {-1, kLeast, kLeast + 1, 100, 101, kMost};
  for (int64_t n = 0; n <= 70; ++n) {
    std::vector<int32_t> v(static_cast<size_t>(n));
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<int32_t>(i % 2 ? 99 : 0);
    CHECK(Thrown([&] { pitc::CheckBelow(v.data(), n, 100, "v"); }).empty());
    for (size_t at = 0; at < v.size(); ++at) {
      for (int32_t value : bad) {
        std::vector<int32_t> w = v;
        w[at] = value;
        const std::string error = Thrown([&] { pitc::CheckBelow(w.data(), n, 100, "v"); });
        CHECK(error ==
              "expected 0 <= v[" + std::to_string(at) + "] < 100, got " + std::to_string(value));
      }
    }
  }
}

void BoundsAtTheEdge() {
  const int32_t zero = 0, most = kMost, below = kMost - 1;
  CHECK(Thrown([&] { pitc::CheckBelow(&zero, 0, 0, "v"); }).empty());
  CHECK(!Thrown([&] { pitc::CheckBelow(&zero, 1, 0, "v"); }).empty());
  CHECK(Thrown([&] { pitc::CheckBelow(&below, 1, kMost, "v"); }).empty());
  CHECK(!Thrown([&] { pitc::CheckBelow(&most, 1, kMost, "v"); }).empty());
  CHECK(Thrown([&] { pitc::CheckBelow(&zero, 1, 1, "v"); }).empty());
}

void Ascending() {
  for (size_t at = 0; at < 40; ++at) {
    std::vector<int32_t> v(41);
    for (size_t i = 0; i < v.size(); ++i) v[i] = static_cast<int32_t>(2 * i);
    CHECK(Thrown([&] { pitc::CheckAscending(v.data(), 41, 81, "rows"); }).empty());
    v[at + 1] = v[at];
    CHECK(Contains(Thrown([&] { pitc::CheckAscending(v.data(), 41, 81, "rows"); }),
                   "expected rows to ascend"));
  }
  const int32_t ends[] = {0, kMost - 1};
  CHECK(Thrown([&] { pitc::CheckAscending(ends, 2, kMost, "rows"); }).empty());
}

void Offsets() {
  const auto error = [](std::vector<int32_t> v, int64_t total) {
    return Thrown(
        [&] { pitc::CheckOffsets(v.data(), static_cast<int64_t>(v.size()) - 1, total, "o"); });
  };
  CHECK(error({0}, 0).empty() && error({0, 0, 3, 3}, 3).empty());
  CHECK(Contains(error({1, 3}, 3), "o[0] = 0"));
  CHECK(Contains(error({0, 2, 1, 3}, 3), "not to fall"));
  CHECK(Contains(error({0, 4, 3}, 3), "not to fall"));
  CHECK(Contains(error({0, 2}, 3), "o[1] = 3") && Contains(error({0, 4}, 3), "o[1] = 3"));
  CHECK(Contains(error({0}, 3), "o[0] = 3"));
}

void Products() {
  CHECK(pitc::Product({3, 5}, "x") == 15 && pitc::Product({0, kMost, kMost}, "x") == 0);
  CHECK(pitc::Product({kMost, kMost, kMost, 0}, "x") == 0);
  CHECK(pitc::Product({kMost, 1}, "x") == kMost);
  CHECK(pitc::Product({65536, 32768}, "x") == int64_t{1} << 31);
  CHECK(Contains(Thrown([] { pitc::Product({1 << 20, 1 << 20, 2}, "x"); }), "elements in x"));
  CHECK(Contains(Thrown([] { pitc::Product({65536, 32768}, "x", kMost); }), "elements in x"));
  CHECK(pitc::Numbered(kMost, "x") == kMost);
  CHECK(Contains(Thrown([] { pitc::Numbered(int64_t{1} << 31, "x"); }),
                 "expected at most 2147483647 x, got 2147483648"));
  CHECK(!Thrown([] { pitc::Product({INT64_MAX, INT64_MAX}, "x"); }).empty());
}

void EvenBlocksCover() {
  for (int64_t total = 0; total <= 300; ++total) {
    for (int64_t most : {1, 4, 7, 120}) {
      for (int64_t unit : {1, 4, 12}) {
        const pitc::Blocks blocks = pitc::EvenBlocks(total, most, unit);
        int64_t at = 0;
        for (int64_t b = 0; b < blocks.Count(); ++b) {
          CHECK(blocks.Begin(b) == at && blocks.End(b) > at &&
                blocks.End(b) - at <= most + unit - 1);
          CHECK(blocks.Begin(b) % unit == 0);
          at = blocks.End(b);
        }
        CHECK(at == total);
      }
    }
  }
}

void GemmSplitCovers() {
  for (int64_t rows : {1, 5, 95, 96, 97, 500}) {
    for (int64_t k : {1, 768, 3072}) {
      for (int64_t panels : {1, 3, 48}) {
        for (int threads : {1, 2, 16, 1024}) {
          const pitc::GemmSplit split = pitc::SplitGemm(rows, k, panels, 64, threads);
          std::vector<int> seen(static_cast<size_t>(rows * panels));
          for (int64_t task = 0; task < split.Count(); ++task) {
            const auto part = split.At(task);
            CHECK(part.row_begin < part.row_end && part.panel_begin < part.panel_end);
            for (int64_t i = part.row_begin; i < part.row_end; ++i) {
              for (int64_t j = part.panel_begin; j < part.panel_end; ++j)
                ++seen.at(static_cast<size_t>(i * panels + j));
            }
          }
          CHECK(seen == std::vector<int>(seen.size(), 1));
          CHECK(!split.parallel || threads > 1);
        }
      }
    }
  }
  // A matrix unit has blocks of whole tiles, that are long: it reads B rarely.
  const auto tiled = pitc::SplitGemm(1280, 768, 48, 64, 1, pitc::Multiplier::kTiles);
  CHECK(tiled.rows.Count() == 3 && tiled.panels.Count() == 1 && !tiled.parallel);
  CHECK(tiled.At(0).row_end == 448 && tiled.At(2).row_end == 1280);
  const auto pairs = pitc::SplitGemm(1280, 768, 48, 64, 1, pitc::Multiplier::kPairs);
  CHECK(pairs.rows.Count() > 10 && pairs.panels.Count() == 1);
  CHECK(pitc::SplitGemm(512, 3072, 12, 64, 64, pitc::Multiplier::kTiles).Count() >= 192);
  // Work that is worth it has tasks for all.
  CHECK(pitc::SplitGemm(512, 3072, 12, 64, 2).Count() >= 8);
  CHECK(pitc::SplitGemm(512, 3072, 12, 64, 64).Count() >= 256);
  CHECK(pitc::SplitGemm(8, 64, 1, 64, 64).Count() == 1);
}

void ListSplitCovers() {
  for (int64_t rows : {1, 31, 500, 2048, 5000}) {
    for (int64_t k : {1, 3072, 1 << 20}) {
      for (int64_t panels : {1, 3, 12}) {
        for (int threads : {1, 2, 64}) {
          for (int64_t unit : {32, 64}) {
            const pitc::ListSplit split = pitc::SplitLists(rows, k, panels, unit, 4, threads);
            CHECK(split.rows.size % pitc::kListUnit == 0 && split.rows.size > 0);
            CHECK(split.rows.size <= 64 || split.rows.size * k <= int64_t{1} << 31);
            CHECK(split.rows.total == rows && split.panels.total == panels);
            CHECK(split.panels.size == 4 || (threads > 1 && split.panels.size <= 2));
          }
        }
      }
    }
  }
  // Lists count in int32. Plans have k up to 2^24, far from where there is no block small enough.
  const auto error = [](int64_t rows, int64_t k) {
    return Thrown([&] { pitc::SplitLists(rows, k, 12, 64, 4, 2); });
  };
  CHECK(error(5000, 1 << 24).empty() && error(5000, (1 << 25) - 1).empty());
  CHECK(Contains(error(5000, 1 << 25), "at most 2147483647 elements in a block of lists"));
  CHECK(error(63, 1 << 25).empty());
  const auto count = [](int64_t rows, int64_t k, int threads) {
    const pitc::ListSplit split = pitc::SplitLists(rows, k, 12, 32, 4, threads);
    return split.rows.Count() * split.panels.Count();
  };
  CHECK(count(512, 3072, 1) == 3 && count(512, 3072, 2) >= 8 && count(512, 3072, 64) >= 96);
  CHECK(count(5000, 3072, 1) == 9);
  CHECK(pitc::SplitLists(512, 16, 12, 32, 4, 64).rows.Count() == 1);  // hardly any work
  // Short blocks have short lists, and read B again: only threads that had none get some.
  const auto blocks = [](int64_t rows, int threads) {
    return pitc::SplitLists(rows, 3072, 12, 32, 4, threads).rows.Count();
  };
  CHECK(blocks(128, 2) == 2 && blocks(512, 2) == 4 && blocks(2048, 2) == 4);
  CHECK(blocks(256, 4) == 4 && blocks(512, 16) == 16);
}

// Where rows are made: a block of them stays in a cache, and is one task where blocks are enough.
void MadeListSplitCovers() {
  for (int64_t rows : {1, 63, 768, 3072, 5000}) {
    for (int64_t k : {1, 768, 1 << 20}) {
      for (int64_t panels : {1, 8}) {
        for (int threads : {1, 2, 16, 64}) {
          const pitc::ListSplit split = pitc::SplitMadeLists(rows, k, panels, 64, 32, 4, threads);
          CHECK(split.rows.size % pitc::kListUnit == 0 && split.rows.size > 0);
          CHECK(split.rows.total == rows && split.panels.total == panels);
          CHECK(threads > 1 || split.rows.size * k <= std::max<int64_t>(3 << 17, 64 * k));
          CHECK(split.panels.size == panels || split.panels.size <= 4);
          CHECK(threads == 1 || split.panels.size < panels || panels == 1 ||
                split.rows.Count() >= 4 * threads);
        }
      }
    }
  }
  const auto tasks = [](int threads) {
    const pitc::ListSplit split = pitc::SplitMadeLists(768, 3072, 8, 64, 32, 4, threads);
    return split.rows.Count() * split.panels.Count();
  };
  CHECK(tasks(1) == 6 && tasks(2) == 8 && tasks(16) >= 64 && tasks(64) >= 256);
}

void AttentionSplitCovers() {
  for (const std::vector<int32_t>& offsets :
       {std::vector<int32_t>{0}, {0, 0}, {0, 1}, {0, 0, 64, 64, 193, 194, 500, 500}}) {
    const auto sequences = static_cast<int64_t>(offsets.size()) - 1;
    std::vector<int64_t> first(offsets.size());
    const pitc::AttentionSplit split(offsets.data(), sequences, 3, first.data());
    std::map<std::array<int64_t, 2>, int> seen;  // (query, head)
    for (int64_t task = 0; task < split.Count(); ++task) {
      const auto part = split.At(task);
      CHECK(part.query_end - part.query_begin <= pitc::AttentionSplit::kQueryBlock &&
            part.query_begin < part.query_end);
      const auto s = static_cast<size_t>(part.sequence);
      CHECK(offsets[s] <= part.query_begin && part.query_end <= offsets[s + 1]);
      for (int64_t i = part.query_begin; i < part.query_end; ++i) ++seen[{i, part.head}];
    }
    CHECK(seen.size() == static_cast<size_t>(3 * offsets.back()));
    for (const auto& entry : seen) CHECK(entry.second == 1);
  }
}

// Slots of random layouts against index arithmetic by hand.
void LayoutSlots() {
  using pitc::DimUse;
  Random random(4);
  for (int round = 0; round < 300; ++round) {
    const int64_t b = 1 + random.Below(4), s = 1 + random.Below(5);
    std::vector<DimUse> dims;
    for (int kind : {0, 1, 2, 3, 4}) {
      const DimUse use = kind == 0   ? DimUse{DimUse::kCoordinate, 0}
                         : kind == 1 ? DimUse{DimUse::kCoordinate, 1}
                         : kind == 2 ? DimUse{DimUse::kOne, 0}
                                     : DimUse{DimUse::kRest, 0};
      dims.insert(dims.begin() + random.Below(static_cast<int64_t>(dims.size()) + 1), use);
    }
    pitc::Shape shape;
    for (const DimUse& use : dims) {
      shape.Add(use.kind == DimUse::kCoordinate ? (use.coordinate ? s : b)
                : use.kind == DimUse::kOne      ? 1
                                                : 1 + random.Below(3));
    }
    std::vector<int32_t> rows, coords;
    for (int64_t p = 0; p < b * s; ++p) {
      if (random.Below(2)) rows.push_back(static_cast<int32_t>(p));
    }
    for (int32_t row : rows) coords.push_back(static_cast<int32_t>(row / s));
    for (int32_t row : rows) coords.push_back(static_cast<int32_t>(row % s));
    const auto t = static_cast<int64_t>(rows.size());
    const pitc::Layout layout = pitc::MakeLayout(dims, shape, 2);
    CHECK(layout.slots * layout.width == shape.Elements());
    CHECK(layout.outer * layout.width == layout.rest.Elements());
    const int64_t begin = t / 3;
    std::vector<int32_t> slots(static_cast<size_t>((t - begin) * layout.outer));
    layout.Slots(rows.data(), coords.data(), t, begin, t, slots.data());
    size_t next = 0;
    for (int64_t i = begin; i < t; ++i) {
      for (int64_t element = 0; element < layout.rest.Elements(); element += layout.width) {
        int64_t at = 0, left = element, below = layout.rest.Elements();
        int kept = 0;
        for (int d = 0; d < shape.rank; ++d) {
          const DimUse& use = dims[static_cast<size_t>(d)];
          int64_t index = 0;
          if (use.kind == DimUse::kCoordinate)
            index = coords[static_cast<size_t>(use.coordinate * t + i)];
          if (use.kind == DimUse::kRest) {
            below /= layout.rest.dims[kept++];
            index = left / below;
            left %= below;
          }
          at = at * shape.dims[d] + index;
        }
        CHECK(slots.at(next++) == at / layout.width);
      }
      if (layout.in_order) CHECK(slots[next - 1] == rows[static_cast<size_t>(i)]);
    }
    CHECK(next == slots.size());
  }
}

}  // namespace

int main() {
  return pitc::test::RunTests({{"bounds scan finds every bad element", BoundsScan},
                               {"bounds at the edge of int32", BoundsAtTheEdge},
                               {"ascending", Ascending},
                               {"offsets", Offsets},
                               {"products", Products},
                               {"even blocks cover", EvenBlocksCover},
                               {"gemm split covers", GemmSplitCovers},
                               {"list split covers", ListSplitCovers},
                               {"made list split covers", MadeListSplitCovers},
                               {"attention split covers", AttentionSplitCovers},
                               {"layout slots", LayoutSlots}});
}

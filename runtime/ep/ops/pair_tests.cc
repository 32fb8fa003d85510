#include "ops/pair_tests.h"

#include "base/index.h"
#include "base/split.h"

namespace pitc {
namespace {

constexpr int64_t kBlockFlags = int64_t{1} << 16, kSerialFlags = int64_t{1} << 18;

bool Bit(const uint64_t* bits, int64_t at) { return (bits[at / 64] >> at % 64 & 1) != 0; }

// 64 bits from one on, of so many words; behind these there are none.
uint64_t BitsFrom(const uint64_t* bits, int64_t words, int64_t first) {
  const int64_t word = first / 64, shift = first % 64;
  const uint64_t low = bits[word] >> shift;
  return shift == 0 || word + 1 == words ? low : low | bits[word + 1] << (64 - shift);
}

// Whether 0 stands from one bit to another, that one included.
Holds ZerosIn(const uint64_t* bits, int64_t first, int64_t last) {
  uint64_t any = 0, all = ~uint64_t{0};
  for (int64_t word = first / 64; word <= last / 64; ++word) {
    uint64_t mask = ~uint64_t{0};
    if (word == first / 64) mask <<= first % 64;
    if (word == last / 64) mask &= ~uint64_t{0} >> (63 - last % 64);
    any |= bits[word] & mask;
    all &= bits[word] | ~mask;
  }
  if (any == 0) return Holds::kEverywhere;
  return all == ~uint64_t{0} ? Holds::kNowhere : Holds::kSomewhere;
}

}  // namespace

void Transpose(uint32_t* rows) {
  uint32_t mask = 0xffff;
  for (int width = 16; width != 0; width /= 2, mask ^= mask << width) {
    for (int i = 0; i < 32; i = ((i | width) + 1) & ~width) {
      const uint32_t moved = ((rows[i] >> width) ^ rows[i | width]) & mask;
      rows[i] ^= moved << width;
      rows[i | width] ^= moved;
    }
  }
}

Holds PositionTest::Over(int64_t q0, int64_t q1, int64_t k0, int64_t k1) const {
  const auto of_q = std::minmax({query * q0, query * q1});
  const auto of_k = std::minmax({key * k0, key * k1});
  if (of_q.first + of_k.first + constant >= 0) return Holds::kEverywhere;
  return of_q.second + of_k.second + constant < 0 ? Holds::kNowhere : Holds::kSomewhere;
}

PairTests::PairTests(const RunContext& run, const PairsPlan& plan, int64_t sequences,
                     const Primitives& simd, Arena::Scope& scratch)
    : plan_(plan), simd_(simd), sequences_(sequences) {
  const PairsPlan::Inputs in = plan.Places();
  if (plan.positions > 0)
    positions_ = ReadPositionTests(run.Input(in.position_tests, "position_tests"), scratch);
  const auto flags = [&](int place, const char* role, int64_t tests, bool of_queries) {
    return tests > 0 ? ReadFlags(run, run.MaskInput(place, role), tests, of_queries, scratch)
                     : Flags{};
  };
  of_keys_ = flags(in.key_flags, "key_flags", plan.keys, false);
  of_queries_ = flags(in.query_flags, "query_flags", plan.queries, false);
  of_pairs_ = flags(in.pair_flags, "pair_flags", plan.pairs, true);
}

PairTests::Flags PairTests::ReadFlags(const RunContext& run, const Tensor& t, int64_t tests,
                                      bool of_queries, Arena::Scope& scratch) const {
  const int lead = static_cast<int>(plan_.rank), rank = lead + 1 + static_cast<int>(of_queries);
  Expect(ElementBytes(t.type) == 1 && t.shape.rank == rank && t.shape.dims[0] == tests &&
             t.shape.Elements(1, lead) == sequences_,
         t, "as flags of ", rank, " dimensions, of ", tests, " tests and ", sequences_,
         " sequences");
  const int64_t columns = t.shape.dims[rank - 1], words = BitWords(columns);
  const int64_t height = of_queries ? t.shape.dims[rank - 2] : 1;
  const int64_t rows = tests * sequences_ * height;
  auto* const bits = scratch.Array<uint64_t>(rows * words);
  const Blocks blocks = EvenBlocks(rows, std::max<int64_t>(1, kBlockFlags / (columns + 1)), 1);
  run.Each(blocks.Count(), rows * columns > kSerialFlags, [&](int64_t block) {
    for (int64_t row = blocks.Begin(block); row < blocks.End(block); ++row)
      simd_.mask_bits(t.Bytes() + row * columns, columns, bits + row * words);
  });
  return {bits, height, columns};
}

const PositionTest* PairTests::ReadPositionTests(const Tensor& t, Arena::Scope& scratch) const {
  Expect(t.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 && t.shape.rank == 2 &&
             t.shape.dims[0] == plan_.positions && t.shape.dims[1] == 3,
         t, "as int64 [", plan_.positions, ", 3]");
  auto* const tests = scratch.Array<PositionTest>(plan_.positions);
  for (int64_t i = 0; i < plan_.positions; ++i) {
    const auto* const numbers = static_cast<const int64_t*>(t.data) + 3 * i;
    tests[i] = {numbers[0], numbers[1], numbers[2]};
    const auto within = [](int64_t x, int64_t most) { return x >= -most && x <= most; };
    if (!within(tests[i].query, kMostFactor) || !within(tests[i].key, kMostFactor) ||
        !within(tests[i].constant, kMostConstant))
      Fail("expected position_tests of moderate numbers, got others in row ", i);
  }
  return tests;
}

void PairTests::CheckPositions(const int32_t* queries, int64_t q_count, const int32_t* keys,
                               int64_t k_count) const {
  if (plan_.keys > 0) CheckBelow(keys, k_count, of_keys_.columns, "k_coords");
  if (plan_.queries > 0) CheckBelow(queries, q_count, of_queries_.columns, "q_coords");
  if (plan_.pairs > 0) {
    CheckBelow(queries, q_count, of_pairs_.rows, "q_coords");
    CheckBelow(keys, k_count, of_pairs_.columns, "k_coords");
  }
}

// Whether some region hides keys from the queries.
Holds PairTests::Hidden(const Sight& at, const Points& keys) const {
  Holds hidden = Holds::kNowhere;
  for (const int64_t region : plan_.regions) {
    Holds all = Holds::kEverywhere;
    for (int test = 0; region >> test != 0 && all != Holds::kNowhere; ++test) {
      if ((region >> test & 1) != 0) all = std::min(all, Over(at, keys, test));
    }
    hidden = std::max(hidden, all);
    if (hidden == Holds::kEverywhere) break;
  }
  return hidden;
}

// Where a test holds; "somewhere" where it would have to look at every pair.
Holds PairTests::Over(const Sight& at, const Points& keys, int64_t test) const {
  if (test < plan_.positions) {
    const auto end = at.queries.positions.begin() + at.queries.count;
    const auto [least, most] = std::minmax_element(at.queries.positions.begin(), end);
    return positions_[test].Over(*least, *most, keys.Least(), keys.Most());
  }
  test -= plan_.positions;
  if (test < plan_.keys)
    return ZerosIn(BitsOf(of_keys_, test, at.sequence), keys.Least(), keys.Most());
  test -= plan_.keys;
  if (test >= plan_.queries) return Holds::kSomewhere;
  const uint32_t where = QueriesAt(at, test);
  if (where == 0) return Holds::kNowhere;
  return where == at.queries.Lanes() ? Holds::kEverywhere : Holds::kSomewhere;
}

// Takes away the queries from which a region hides a key.
Seen PairTests::SeenIn(const Sight& at, const Points& keys) const {
  Seen seen;
  seen.fill(at.queries.Lanes());
  for (const int64_t region : plan_.regions) {
    Seen hidden;
    hidden.fill(~uint32_t{0});
    bool holds = true;
    for (int test = 0; region >> test != 0 && holds; ++test) {
      if ((region >> test & 1) == 0) continue;
      const Holds over = Over(at, keys, test);
      holds =
          over == Holds::kEverywhere || (over == Holds::kSomewhere && And(at, keys, test, &hidden));
    }
    if (!holds) continue;
    for (int64_t j = 0; j < keys.count; ++j) seen[j] &= ~hidden[j];
  }
  return seen;
}

// Keeps the bits of queries at which a test holds, too; false where there are none.
bool PairTests::And(const Sight& at, const Points& keys, int64_t test, Seen* bits) const {
  uint32_t any = 0;
  if (test < plan_.positions) {
    const PositionTest& t = positions_[test];
    for (int64_t j = 0; j < keys.count; ++j) {
      const int64_t rest = t.key * keys.positions[j] + t.constant;
      uint32_t where = 0;
      for (int64_t i = 0; i < at.queries.count; ++i)
        where |= static_cast<uint32_t>(t.query * at.queries.positions[i] + rest >= 0) << i;
      any |= (*bits)[j] &= where;
    }
    return any != 0;
  }
  test -= plan_.positions;
  if (test < plan_.keys) {
    const uint64_t* const live = BitsOf(of_keys_, test, at.sequence);
    for (int64_t j = 0; j < keys.count; ++j)
      any |= (*bits)[j] &= Bit(live, keys.positions[j]) ? 0 : ~uint32_t{0};
    return any != 0;
  }
  test -= plan_.keys;
  if (test >= plan_.queries) return AndPairs(at, keys, test - plan_.queries, bits);
  const uint32_t where = QueriesAt(at, test);
  for (int64_t j = 0; j < keys.count; ++j) any |= (*bits)[j] &= where;
  return any != 0;
}

// The queries at which a test of them holds.
uint32_t PairTests::QueriesAt(const Sight& at, int64_t test) const {
  const uint64_t* const live = BitsOf(of_queries_, test, at.sequence);
  uint32_t where = 0;
  for (int64_t i = 0; i < at.queries.count; ++i)
    where |= static_cast<uint32_t>(!Bit(live, at.queries.positions[i])) << i;
  return where;
}

bool PairTests::AndPairs(const Sight& at, const Points& keys, int64_t test, Seen* bits) const {
  const uint64_t* const flags = BitsOf(of_pairs_, test, at.sequence);
  const int64_t words = BitWords(of_pairs_.columns);
  const uint64_t used = ~uint64_t{0} >> (64 - keys.count);
  uint32_t low[32] = {}, high[32] = {};
  uint64_t dead = 0;
  const bool in_a_row = keys.InARow();
  for (int64_t i = 0; i < at.queries.count; ++i) {
    const uint64_t* const row = flags + at.queries.positions[i] * words;
    uint64_t live = 0;
    if (in_a_row) {
      live = BitsFrom(row, words, keys.Least());
    } else {
      for (int64_t j = 0; j < keys.count; ++j)
        live |= static_cast<uint64_t>(Bit(row, keys.positions[j])) << j;
    }
    dead |= ~live & used;
    low[i] = static_cast<uint32_t>(~live);
    high[i] = static_cast<uint32_t>(~live >> 32);
  }
  if (dead == 0) return false;
  Transpose(low);
  Transpose(high);
  uint32_t any = 0;
  for (int64_t j = 0; j < keys.count; ++j) any |= (*bits)[j] &= j < 32 ? low[j] : high[j - 32];
  return any != 0;
}

}  // namespace pitc

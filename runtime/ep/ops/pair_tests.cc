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

// The bits of the blocks of so many positions in which at most 64 keys lie.
uint64_t BitsAt(const uint64_t* bits, int64_t columns, const Points& keys, int64_t size = 1) {
  if (size == 1 && keys.InARow()) return BitsFrom(bits, BitWords(columns), keys.Least());
  uint64_t found = 0, bit = 0;
  int64_t end = 0;  // of the block
  for (int64_t j = 0; j < keys.count; ++j) {
    const int64_t position = keys.positions[j];
    if (position >= end) {
      const int64_t block = size == 1 ? position : position / size;
      bit = static_cast<uint64_t>(Bit(bits, block));
      end = (block + 1) * size;
    }
    found |= bit << j;
  }
  return found;
}

// The i below 32 at which step * i + first is at least 0, as bits.
uint32_t FromPlace(int64_t step, int64_t first) {
  constexpr uint32_t kAll = ~uint32_t{0};
  if (step == 1) return first >= 0 ? kAll : first < -31 ? 0 : kAll << -first;
  if (step == -1) return first >= 31 ? kAll : first < 0 ? 0 : kAll >> (31 - first);
  if (step == 0 || (step > 0 && first >= 0)) return first >= 0 ? kAll : 0;
  if (step < 0) {
    if (first < 0) return 0;
    const int64_t last = first / -step;
    return last >= 31 ? kAll : kAll >> (31 - last);
  }
  const int64_t begin = (-first + step - 1) / step;
  return begin > 31 ? 0 : kAll << begin;
}

Holds Opposite(Holds x) { return static_cast<Holds>(2 - static_cast<int>(x)); }

// The queries at which a test of their position, added or taken away once, holds: those from one
// on, or those before it, which is near that of the key before.
void InAscending(const Queries& queries, const Points& keys, const PositionTest& t, Seen* found) {
  int64_t below = 0;  // queries before the place from which on, or up to which, the test holds
  for (int64_t j = 0; j < keys.count; ++j) {
    const int64_t rest = t.key * keys.positions[j] + t.constant;
    const int64_t place = t.query == 1 ? -rest : rest + 1;
    while (below < queries.count && queries.positions[below] < place) ++below;
    while (below > 0 && queries.positions[below - 1] >= place) --below;
    const auto before = static_cast<uint32_t>((uint64_t{1} << below) - 1);
    (*found)[j] = t.query == 1 ? ~before : before;
  }
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
                     const Side& queries, const Side& keys, const Primitives& simd,
                     Arena::Scope& scratch)
    : plan_(plan),
      simd_(simd),
      sequences_(sequences),
      q_block_(plan.q_block.value_or(1)),
      k_block_(plan.k_block.value_or(1)),
      key_offsets_(keys.offsets) {
  const PairsPlan::Inputs in = plan.Places();
  if (plan.positions > 0)
    positions_ = ReadPositionTests(run.Input(in.position_tests, "position_tests"), scratch);
  if (plan.tables > 0) ReadTables(run, queries, keys, scratch);
  const auto flags = [&](int place, const char* role, int64_t tests, bool of_queries) {
    return tests > 0 ? ReadFlags(run, run.MaskInput(place, role), tests, of_queries, scratch)
                     : Flags{};
  };
  of_keys_ = flags(in.key_flags, "key_flags", plan.keys, false);
  of_queries_ = flags(in.query_flags, "query_flags", plan.queries, false);
  of_pairs_ = flags(in.pair_flags, "pair_flags", plan.pairs, true);
  const auto check = [](const Side& side, int64_t tests, int64_t extent, const char* role) {
    if (tests > 0) CheckBelow(side.positions, side.count, extent, role);
  };
  check(keys, plan.keys, of_keys_.columns, "k_coords");
  check(queries, plan.queries, of_queries_.columns, "q_coords");
  check(queries, plan.pairs, of_pairs_.rows * q_block_, "q_coords");
  check(keys, plan.pairs, of_pairs_.columns * k_block_, "k_coords");
}

void PairTests::ReadTables(const RunContext& run, const Side& queries, const Side& keys,
                           Arena::Scope& scratch) {
  const PairsPlan::Inputs in = plan_.Places();
  const int64_t* const of_queries =
      ReadNumbers(run.Input(in.q_tables, "q_tables"), queries, "q_coords", scratch);
  const int64_t* const of_keys =
      ReadNumbers(run.Input(in.k_tables, "k_tables"), keys, "k_coords", scratch);
  auto* const first = scratch.Array<int64_t>(sequences_ + 1);
  FindFirstBlocks(keys.offsets, sequences_, kKeyChunk, first);
  first_chunk_ = first;
  const int64_t chunks = first[sequences_];
  auto* const ends = scratch.Array<int64_t>(2 * plan_.tables * chunks);
  for (int64_t i = 0; i < plan_.tables; ++i) {
    const int64_t* const numbers = of_keys + i * keys.count;
    int64_t *const least = ends + 2 * i * chunks, *const most = least + chunks;
    for (int64_t s = 0; s < sequences_; ++s) {
      for (int64_t chunk = first[s]; chunk < first[s + 1]; ++chunk) {
        const int64_t begin = keys.offsets[s] + (chunk - first[s]) * kKeyChunk;
        const int64_t end = std::min<int64_t>(begin + kKeyChunk, keys.offsets[s + 1]);
        const auto [low, high] = std::minmax_element(numbers + begin, numbers + end);
        least[chunk] = *low;
        most[chunk] = *high;
      }
    }
    tables_[i] = {of_queries + i * queries.count, numbers, least, most};
  }
}

// The numbers of rows, [tables, side.count], from those of all positions of their sequences.
const int64_t* PairTests::ReadNumbers(const Tensor& t, const Side& side, const char* role,
                                      Arena::Scope& scratch) const {
  const int lead = static_cast<int>(plan_.rank);
  Expect(t.type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 && t.shape.rank == lead + 1 &&
             t.shape.dims[0] == plan_.tables && t.shape.Elements(1, lead) == sequences_,
         t, "as int64 of ", lead + 1, " dimensions, of ", plan_.tables, " tests and ", sequences_,
         " sequences");
  const int64_t extent = t.shape.dims[lead];
  CheckBelow(side.positions, side.count, extent, role);
  auto* const numbers = scratch.Array<int64_t>(plan_.tables * side.count);
  const auto* const all = static_cast<const int64_t*>(t.data);
  for (int64_t i = 0; i < plan_.tables; ++i) {
    for (int64_t s = 0; s < sequences_; ++s) {
      const int64_t* const of_sequence = all + (i * sequences_ + s) * extent;
      for (int64_t row = side.offsets[s]; row < side.offsets[s + 1]; ++row)
        numbers[i * side.count + row] = of_sequence[side.positions[row]];
    }
  }
  return numbers;
}

PairTests::Flags PairTests::ReadFlags(const RunContext& run, const Tensor& t, int64_t tests,
                                      bool of_queries, Arena::Scope& scratch) const {
  const int lead = static_cast<int>(plan_.rank), rank = lead + 1 + static_cast<int>(of_queries);
  const bool ranked = ElementBytes(t.type) == 1 && t.shape.rank == rank;
  const int64_t sequences = ranked ? t.shape.Elements(1, lead) : 0;
  const bool shared = sequences > 0 && t.shape.dims[1] == 1 && sequences_ % sequences == 0;
  Expect(ranked && t.shape.dims[0] == tests && (sequences == sequences_ || shared), t,
         "as flags of ", rank, " dimensions, of ", tests, " tests and ", sequences_, " sequences");
  const int64_t columns = t.shape.dims[rank - 1], words = BitWords(columns);
  const int64_t height = of_queries ? t.shape.dims[rank - 2] : 1;
  const int64_t rows = tests * sequences * height;
  auto* const bits = scratch.Array<uint64_t>(rows * words);
  const Blocks blocks = EvenBlocks(rows, std::max<int64_t>(1, kBlockFlags / (columns + 1)), 1);
  run.Each(blocks.Count(), rows * columns > kSerialFlags, [&](int64_t block) {
    for (int64_t row = blocks.Begin(block); row < blocks.End(block); ++row)
      simd_.mask_bits(t.Bytes() + row * columns, columns, bits + row * words);
  });
  return {bits, sequences, height, columns};
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

PairTests::Sight::Sight(const PairTests& all, int64_t s, const Queries& some, const Points& of_s)
    : tests(all), sequence(s), queries(some), keys(of_s) {
  const auto begin = some.positions.begin(), end = begin + some.count;
  const auto ends = std::minmax_element(begin, end);
  least = *ends.first;
  most = *ends.second;
  in_a_row = ascend = true;
  for (int64_t i = 0; i < some.count; ++i)
    blocks[i] = static_cast<int32_t>(some.positions[i] / all.q_block_);
  for (int64_t i = 1; i < some.count; ++i) {
    ascend = ascend && some.positions[i] > some.positions[i - 1];
    in_a_row = in_a_row && some.positions[i] == some.positions[0] + i;
  }
  for (int64_t test = 0; test < all.plan_.queries; ++test) {
    const uint64_t* const live = all.BitsOf(all.of_queries_, test, s);
    where[test] = 0;
    for (int64_t i = 0; i < some.count; ++i)
      where[test] |= static_cast<uint32_t>(!Bit(live, some.positions[i])) << i;
  }
  for (int64_t table = 0; table < all.plan_.tables; ++table) {
    const int64_t* const numbers = all.tables_[table].of_queries;
    least_number[table] = most_number[table] = numbers[some.rows[0]];
    for (int64_t i = 1; i < some.count; ++i) {
      least_number[table] = std::min(least_number[table], numbers[some.rows[i]]);
      most_number[table] = std::max(most_number[table], numbers[some.rows[i]]);
    }
  }
}

// Runs the program on values of some kind.
template <class Value, class Test, class Both, class Either, class Negate>
Value PairTests::Evaluate(const Test& test, const Both& both, const Either& either,
                          const Negate& negate) const {
  std::array<Value, kProgramDeepest> stack;
  int64_t depth = 0;
  for (const int64_t step : plan_.program) {
    if (step >= kProgramFirstLeaf) {
      test(step - kProgramFirstLeaf, &stack[depth++]);
    } else if (step == kProgramNegate) {
      negate(&stack[depth - 1]);
    } else {
      --depth;
      step == kProgramBoth ? both(&stack[depth - 1], stack[depth])
                           : either(&stack[depth - 1], stack[depth]);
    }
  }
  return stack[0];
}

// Whether the queries see keys.
Holds PairTests::SeenOver(const Sight& at, const Points& keys) const {
  return Evaluate<Holds>([&](int64_t test, Holds* over) { *over = Over(at, keys, test); },
                         [](Holds* x, Holds y) { *x = std::min(*x, y); },
                         [](Holds* x, Holds y) { *x = std::max(*x, y); },
                         [](Holds* x) { *x = Opposite(*x); });
}

// Which queries see each key, if not all see all, or none any. A test that holds everywhere or
// nowhere is one word.
Holds PairTests::SeenIn(const Sight& at, const Points& keys, Seen* seen) const {
  struct Value {
    Holds over;
    Seen at_keys;  // if it is somewhere
  };
  const auto each = [](Value* x, const Value& y, const auto& join) {
    for (int64_t j = 0; j < kKeyChunk; ++j) x->at_keys[j] = join(x->at_keys[j], y.at_keys[j]);
  };
  // What decides alone, and what changes nothing.
  const auto join = [&](Value* x, const Value& y, Holds decides, const auto& of_keys) {
    if (x->over == decides || y.over == decides) {
      x->over = decides;
    } else if (x->over != Holds::kSomewhere) {
      *x = y;
    } else if (y.over == Holds::kSomewhere) {
      each(x, y, of_keys);
    }
  };
  Value value = Evaluate<Value>(
      [&](int64_t test, Value* x) {
        x->over = Over(at, keys, test);
        if (x->over == Holds::kSomewhere) x->over = In(at, keys, test, &x->at_keys);
      },
      [&](Value* x, const Value& y) {
        join(x, y, Holds::kNowhere, [](uint32_t a, uint32_t b) { return a & b; });
      },
      [&](Value* x, const Value& y) {
        join(x, y, Holds::kEverywhere, [](uint32_t a, uint32_t b) { return a | b; });
      },
      [&](Value* x) {
        if (x->over == Holds::kSomewhere) {
          each(x, *x, [](uint32_t a, uint32_t) { return ~a; });
        } else {
          x->over = Opposite(x->over);
        }
      });
  if (value.over == Holds::kSomewhere)
    for (int64_t j = 0; j < kKeyChunk; ++j) (*seen)[j] = value.at_keys[j] & at.queries.Lanes();
  return value.over;
}

// Where a test holds; "somewhere" where it would have to look at every pair.
Holds PairTests::Over(const Sight& at, const Points& keys, int64_t test) const {
  if (test < plan_.positions) {
    return positions_[test].Over(at.least, at.most, keys.Least(), keys.Most());
  }
  test -= plan_.positions;
  if (test < plan_.tables) return OverTable(at, keys, test);
  test -= plan_.tables;
  if (test < plan_.keys)
    return ZerosIn(BitsOf(of_keys_, test, at.sequence), keys.Least(), keys.Most());
  test -= plan_.keys;
  if (test >= plan_.queries) return OverPairs(at, keys, test - plan_.queries);
  if (at.where[test] == 0) return Holds::kNowhere;
  return at.where[test] == at.queries.Lanes() ? Holds::kEverywhere : Holds::kSomewhere;
}

// The same of a comparison, by the ends of both sides' numbers.
Holds PairTests::OverTable(const Sight& at, const Points& keys, int64_t table) const {
  const Table& t = tables_[table];
  const int64_t q0 = at.least_number[table], q1 = at.most_number[table];
  const int64_t chunk = first_chunk_[at.sequence] + keys.first / kKeyChunk;
  const int64_t chunks = (keys.count + kKeyChunk - 1) / kKeyChunk;
  const int64_t k0 = *std::min_element(t.least + chunk, t.least + chunk + chunks);
  const int64_t k1 = *std::max_element(t.most + chunk, t.most + chunk + chunks);
  switch (OrderOf(table)) {
    case PairsPlan::kEqual:
      if (q1 < k0 || k1 < q0) return Holds::kNowhere;
      return q0 == q1 && k0 == k1 ? Holds::kEverywhere : Holds::kSomewhere;
    case PairsPlan::kLess:
      if (q1 < k0) return Holds::kEverywhere;
      return q0 >= k1 ? Holds::kNowhere : Holds::kSomewhere;
    default:
      if (q1 <= k0) return Holds::kEverywhere;
      return q0 > k1 ? Holds::kNowhere : Holds::kSomewhere;
  }
}

// The same of flags of pairs, by those of blocks.
Holds PairTests::OverPairs(const Sight& at, const Points& keys, int64_t test) const {
  if (q_block_ == 1 && k_block_ == 1) return Holds::kSomewhere;
  const uint64_t* const flags = BitsOf(of_pairs_, test, at.sequence);
  const int64_t words = BitWords(of_pairs_.columns);
  const int64_t first = keys.Least() / k_block_, last = keys.Most() / k_block_;
  const Holds found = ZerosIn(flags + at.blocks[0] * words, first, last);
  for (int64_t i = 1; i < at.queries.count && found != Holds::kSomewhere; ++i) {
    if (at.blocks[i] != at.blocks[i - 1] &&
        ZerosIn(flags + at.blocks[i] * words, first, last) != found)
      return Holds::kSomewhere;
  }
  return found;
}

// The queries at which a test holds, of each key, if it is not all of them, or none, throughout.
Holds PairTests::In(const Sight& at, const Points& keys, int64_t test, Seen* of_keys) const {
  Seen& found = *of_keys;
  found.fill(0);
  if (test < plan_.positions) {
    const PositionTest& t = positions_[test];
    if (!at.in_a_row && at.ascend && (t.query == 1 || t.query == -1)) {
      InAscending(at.queries, keys, t, of_keys);
      return Holds::kSomewhere;
    }
    for (int64_t j = 0; j < keys.count; ++j) {
      const int64_t rest = t.key * keys.positions[j] + t.constant;
      if (at.in_a_row) {
        found[j] = FromPlace(t.query, t.query * at.least + rest);
        continue;
      }
      for (int64_t i = 0; i < at.queries.count; ++i)
        found[j] |= static_cast<uint32_t>(t.query * at.queries.positions[i] + rest >= 0) << i;
    }
    return Holds::kSomewhere;
  }
  test -= plan_.positions;
  if (test < plan_.tables) {
    InTable(at, keys, test, of_keys);
    return Holds::kSomewhere;
  }
  test -= plan_.tables;
  if (test < plan_.keys) {
    const uint64_t set = BitsAt(BitsOf(of_keys_, test, at.sequence), of_keys_.columns, keys);
    for (int64_t j = 0; j < keys.count; ++j) found[j] = static_cast<uint32_t>(set >> j & 1) - 1;
    return Holds::kSomewhere;
  }
  test -= plan_.keys;
  if (test >= plan_.queries) return InPairs(at, keys, test - plan_.queries, of_keys);
  found.fill(at.where[test]);
  return Holds::kSomewhere;
}

void PairTests::InTable(const Sight& at, const Points& keys, int64_t table, Seen* found) const {
  const int64_t order = OrderOf(table);
  const int64_t* const of_keys = tables_[table].of_keys + key_offsets_[at.sequence] + keys.first;
  int64_t numbers[kListedQueries];
  for (int64_t i = 0; i < at.queries.count; ++i)
    numbers[i] = tables_[table].of_queries[at.queries.rows[i]];
  for (int64_t j = 0; j < keys.count; ++j) {
    const int64_t k = of_keys[j];
    if (j > 0 && k == of_keys[j - 1]) {  // keys of one document, or of one bar, lie in a row
      (*found)[j] = (*found)[j - 1];
      continue;
    }
    uint32_t equal = 0, less = 0;
    for (int64_t i = 0; i < at.queries.count; ++i) {
      equal |= static_cast<uint32_t>(numbers[i] == k) << i;
      less |= static_cast<uint32_t>(numbers[i] < k) << i;
    }
    (*found)[j] = (order == PairsPlan::kLess ? 0 : equal) | (order == PairsPlan::kEqual ? 0 : less);
  }
}

Holds PairTests::InPairs(const Sight& at, const Points& keys, int64_t test, Seen* found) const {
  const uint64_t* const flags = BitsOf(of_pairs_, test, at.sequence);
  const int64_t words = BitWords(of_pairs_.columns);
  uint32_t *const low = found->data(), *const high = low + 32;
  uint64_t any = 0, all = ~uint64_t{0}, live = 0;
  for (int64_t i = 0; i < at.queries.count; ++i) {
    if (i == 0 || at.blocks[i] != at.blocks[i - 1])
      live = BitsAt(flags + at.blocks[i] * words, of_pairs_.columns, keys, k_block_);
    any |= live;
    all &= live;
    low[i] = static_cast<uint32_t>(~live);
    high[i] = static_cast<uint32_t>(~live >> 32);
  }
  const uint64_t none = ~uint64_t{0} << (keys.count - 1) << 1;  // there are no such keys
  if ((any & ~none) == 0) return Holds::kEverywhere;
  if ((all | none) == ~uint64_t{0}) return Holds::kNowhere;
  if (any == all) {  // rows of one block are alike
    for (int64_t j = 0; j < keys.count; ++j) low[j] = static_cast<uint32_t>(any >> j & 1) - 1;
  } else {
    Transpose(low);
    Transpose(high);
  }
  return Holds::kSomewhere;
}

}  // namespace pitc

// Which keys some queries of a sequence see, by the program of a plan: over ranges of keys first,
// over single ones where a range says neither all nor none.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/arena.h"
#include "ort/run_context.h"
#include "plan/plan.h"
#include "simd/primitives.h"

namespace pitc {

constexpr int64_t kKeyChunk = 64;              // keys that are looked at one by one
constexpr int64_t kRanges = 8;                 // parts of a range that is looked at closer
using Seen = std::array<uint32_t, kKeyChunk>;  // of each key, bits of queries
enum class Holds { kNowhere, kSomewhere, kEverywhere };

// Keys of a sequence, from one of its keys on: their positions ascend.
struct Points {
  const int32_t* positions;
  int64_t first, count;
  int64_t Least() const { return positions[0]; }
  int64_t Most() const { return positions[count - 1]; }
  bool InARow() const { return Most() - Least() == count - 1; }
};

// Queries of a sequence that are looked at together, in any order; one at least.
struct Queries {
  std::array<int32_t, kListedQueries> rows, positions;
  int64_t count;

  uint32_t Lanes() const { return static_cast<uint32_t>((uint64_t{1} << count) - 1); }
};

// query * x + key * y + z >= 0
struct PositionTest {
  int64_t query, key, constant;

  Holds Over(int64_t q0, int64_t q1, int64_t k0, int64_t k1) const;
};

// The points of queries, or of keys.
struct Side {
  int64_t count;
  const int32_t *offsets, *positions;  // of sequences, and of points in them
};

class PairTests {
 public:
  // Reads what tests look at; once, as the host may write there meanwhile.
  PairTests(const RunContext& run, const PairsPlan& plan, int64_t sequences, const Side& queries,
            const Side& keys, const Primitives& simd, Arena::Scope& scratch);

  // Calls see(first, count, bits) for keys that some query sees, ascending: with null where each
  // query sees all of them; some bits may be none.
  template <class See>
  void Each(int64_t sequence, const Queries& queries, const Points& keys, const See& see) const {
    if (keys.count > 0) Look(Sight(*this, sequence, queries, keys), 0, keys.count, see);
  }

 private:
  // Flags that tests look at, as bits: [tests, sequences, rows, BitWords(columns)]. Those of few
  // sequences are read for all, in turn.
  struct Flags {
    const uint64_t* bits = nullptr;
    int64_t sequences = 1, rows = 0, columns = 0;
  };

  // Numbers of the rows of queries and of keys, and the ends of those of each kKeyChunk keys.
  struct Table {
    const int64_t *of_queries, *of_keys, *least, *most;
  };

  // Some queries and all keys of a sequence, and what every range of keys is asked for.
  struct Sight {
    Sight(const PairTests& tests, int64_t sequence, const Queries& queries, const Points& keys);

    const PairTests& tests;
    int64_t sequence;
    const Queries& queries;
    const Points& keys;
    int64_t least, most;                                        // positions of the queries
    bool in_a_row, ascend;                                      // these
    std::array<int32_t, kListedQueries> blocks;                 // of flags of pairs
    std::array<uint32_t, kMostTests> where;                     // a test of queries holds
    std::array<int64_t, kMostTests> least_number, most_number;  // of a table

    Points Range(int64_t first, int64_t count) const {
      return {keys.positions + first, first, count};
    }
  };

  template <class See>
  static void Look(const Sight& at, int64_t first, int64_t count, const See& see) {
    const PairTests& tests = at.tests;
    const Holds over = tests.SeenOver(at, at.Range(first, count));
    if (over == Holds::kNowhere) return;
    if (over == Holds::kEverywhere) {
      see(first, count, nullptr);
    } else if (count <= kKeyChunk) {
      Seen seen;
      const Holds in = tests.SeenIn(at, at.Range(first, count), &seen);
      if (in != Holds::kNowhere) see(first, count, in == Holds::kEverywhere ? nullptr : &seen);
    } else {
      int64_t size = kKeyChunk;
      while (size * kRanges < count) size *= kRanges;
      const int64_t end = first + count;
      for (; first < end; first += size) Look(at, first, std::min(size, end - first), see);
    }
  }

  Flags ReadFlags(const RunContext& run, const Tensor& t, int64_t tests, bool of_queries,
                  Arena::Scope& scratch) const;
  const int64_t* ReadNumbers(const Tensor& t, const Side& side, const char* role,
                             Arena::Scope& scratch) const;
  void ReadTables(const RunContext& run, const Side& queries, const Side& keys,
                  Arena::Scope& scratch);
  const PositionTest* ReadPositionTests(const Tensor& t, Arena::Scope& scratch) const;
  const uint64_t* BitsOf(const Flags& flags, int64_t test, int64_t sequence) const {
    const int64_t of_sequence = test * flags.sequences + sequence % flags.sequences;
    return flags.bits + of_sequence * flags.rows * BitWords(flags.columns);
  }

  template <class Value, class Test, class Both, class Either, class Negate>
  Value Evaluate(const Test& test, const Both& both, const Either& either,
                 const Negate& negate) const;
  Holds SeenOver(const Sight& at, const Points& keys) const;
  Holds SeenIn(const Sight& at, const Points& keys, Seen* seen) const;
  Holds Over(const Sight& at, const Points& keys, int64_t test) const;
  Holds OverTable(const Sight& at, const Points& keys, int64_t table) const;
  Holds OverPairs(const Sight& at, const Points& keys, int64_t test) const;
  Holds In(const Sight& at, const Points& keys, int64_t test, Seen* found) const;
  void InTable(const Sight& at, const Points& keys, int64_t table, Seen* found) const;
  Holds InPairs(const Sight& at, const Points& keys, int64_t test, Seen* found) const;
  int64_t OrderOf(int64_t table) const { return plan_.orders >> 2 * table & 3; }

  const PairsPlan& plan_;
  const Primitives& simd_;
  const int64_t sequences_, q_block_, k_block_;  // a flag of pairs is of so many queries and keys
  const int32_t* const key_offsets_;
  const PositionTest* positions_ = nullptr;
  std::array<Table, kMostTests> tables_{};
  const int64_t* first_chunk_ = nullptr;  // of each sequence
  Flags of_keys_, of_queries_, of_pairs_;
};

// The 32 x 32 bits of rows, as columns.
void Transpose(uint32_t* rows);

}  // namespace pitc

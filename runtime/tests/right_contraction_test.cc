// Nodes of contractions with a sparse right operand: every variant computes the same product, what
// must be dense is, and wrong inputs are named.
#include <thread>

#include "contraction_check.h"

using pitc::ContractPlan;
using pitc::kVariants;
using pitc::Variant;
using pitc::test::Activate;
using pitc::test::alive;
using pitc::test::Chosen;
using pitc::test::Contains;
using pitc::test::Data;
using pitc::test::kFloatType;
using pitc::test::kInt32Type;
using pitc::test::Levels;
using pitc::test::Library;
using pitc::test::MakeRightInputs;
using pitc::test::Options;
using pitc::test::PlanCase;
using pitc::test::Random;
using pitc::test::Session;
using pitc::test::Thrown;
using pitc::test::TraceFile;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Both ways to store the right operand, with and without a factor; several panels both ways, and
// nothing a whole number of tiles.
const std::vector<PlanCase>& Cases() {
  static const std::vector<PlanCase> cases = [] {
    const PlanCase plain("contract_right"), all("contract_right_all"), wide("contract_right_wide");
    return std::vector<PlanCase>{plain.With(69, 75),
                                 plain.With(69, 75, {{"right", "nk"}}),
                                 all.With(69, 75),
                                 all.With(69, 75, {{"right", "kn"}, {"factor", "1"}}),
                                 all.With(69, 75, {{"right", "kn"}, {"factor", "2"}}),
                                 wide,
                                 plain,
                                 all};
  }();
  return cases;
}

const ContractPlan& Body(const PlanCase& c) { return std::get<ContractPlan>(c.plan.body); }

// The output, from docs/plans.md and in the simplest way, and the size of what is added up:
// rounding errors are in proportion to that.
struct Product {
  std::vector<double> sums, sizes;
};

UNWATCHED Product Expected(const PlanCase& c, const std::vector<OrtValue>& inputs) {
  const ContractPlan& plan = Body(c);
  const bool by_columns = plan.right == ContractPlan::kNk;
  const int64_t k = plan.k, n = plan.n;
  size_t next = 2;
  const auto input = [&](bool there) { return there ? Data<float>(inputs[next++]) : nullptr; };
  const float *a = Data<float>(inputs[0]), *s = Data<float>(inputs[1]),
              *factor = input(plan.factor > 0), *bias = input(plan.bias),
              *residual = input(plan.residual);
  const auto t = static_cast<int64_t>(inputs[0].bytes.size() / sizeof(float)) / k;
  Product product{std::vector<double>(static_cast<size_t>(t * n)), {}};
  product.sizes = product.sums;
  std::vector<double> of_column(static_cast<size_t>(k));
  double* const column = of_column.data();
  for (int64_t j = 0; j < n; ++j) {
    for (int64_t i = 0; i < k; ++i) {
      const int64_t at = by_columns ? j * k + i : i * n + j;
      column[i] = factor ? s[at] * factor[at] : s[at];
    }
    for (int64_t r = 0; r < t; ++r) {
      const auto at = static_cast<size_t>(r * n + j);
      double sum = bias ? bias[j] : 0, size = std::abs(sum);
      for (int64_t i = 0; i < k; ++i) {
        const double term = a[r * k + i] * column[i];
        sum += term;
        size += std::abs(term);
      }
      const double other = residual ? residual[at] : 0;
      product.sums[at] = Activate(c.plan.kernels.Of("dense"), sum) + other;
      product.sizes[at] = size + std::abs(other);
    }
  }
  return product;
}

UNWATCHED bool Same(const OrtValue& got, const Product& expected) {
  if (got.bytes.size() != expected.sums.size() * sizeof(float)) return false;
  const float* const found = Data<float>(got);
  const double *const sums = expected.sums.data(), *const sizes = expected.sizes.data();
  for (size_t i = 0; i < expected.sums.size(); ++i) {
    const double x = found[i], y = sums[i], size = sizes[i];
    const double most = 1e-6 * (std::isfinite(size) ? size : std::abs(y)) + 1e-30;  // denormals
    const bool near = std::isfinite(y) && std::abs(x - y) <= most;
    if (x != y && !near && !(std::isnan(x) && std::isnan(y))) return false;
  }
  return true;
}

// What a session is told to run: each variant, and "", what it chooses.
const std::vector<std::string>& Told() {
  static const std::vector<std::string> told = [] {
    std::vector<std::string> names{""};
    for (int v = 0; v < kVariants; ++v) names.emplace_back(Name(static_cast<Variant>(v)));
    return names;
  }();
  return told;
}

std::unique_ptr<Session> Make(const Library& library, const PlanCase& c, const std::string& variant,
                              Options options = {}) {
  if (!variant.empty()) options["variant"] = variant;
  return c.Make(library, options);
}

// Rows 0, 1, .. and some calls of kernels; any density, odd numbers among them, on the left too.
void EveryVariantIsTheProduct() {
  const Library library(PITC_TEST_LIBRARY);
  for (const std::string& level : Levels(library, Cases()[0])) {
    for (const PlanCase& c : Cases()) {
      std::vector<std::unique_ptr<Session>> sessions;
      for (const std::string& variant : Told())
        sessions.push_back(Make(library, c, variant, {{"cpu_level", level}}));
      Random random(41);
      for (int64_t t : {0, 1, 2, 3, 8, 9, 40, 41, 48, 49, 63, 64, 65, 128, 129, 300}) {
        const auto inputs = MakeRightInputs(Body(c), random, t, t % 3 == 2);
        const Product expected = Expected(c, inputs);
        std::vector<int64_t> dims = inputs[0].dims;
        dims.back() = Body(c).n;
        for (size_t v = 0; v < sessions.size(); ++v) {
          const std::vector<OrtValue> got = sessions[v]->Run(inputs);
          const bool same = got[0].dims == dims && Same(got[0], expected) &&
                            (t > 65 || got == sessions[v]->Run(inputs));
          if (!same) {
            printf("%s, %s, '%s', %d rows\n", c.name.c_str(), level.c_str(), Told()[v].c_str(),
                   static_cast<int>(t));
          }
          CHECK(same);
        }
      }
    }
  }
  CHECK(alive == 0);
}

OrtValue Floats(std::vector<int64_t> dims, float filling, int64_t each = 1) {
  std::vector<float> x(static_cast<size_t>(dims[0] * dims[1]));
  for (size_t i = 0; i < x.size(); i += static_cast<size_t>(each)) x[i] = filling;
  return OrtValue::Of(kFloatType, std::move(dims), x);
}

void Set(OrtValue* value, int64_t at, float x) {
  memcpy(&value->bytes[static_cast<size_t>(at) * sizeof x], &x, sizeof x);
}

// 0 times Inf or NaN is not 0: with one of them on the left, nothing is skipped. Any finite number
// is skipped.
void ExceptionalRowsAreDense() {
  const Library library(PITC_TEST_LIBRARY);
  const TraceFile trace;
  const PlanCase c = Cases()[0].With(69, 75, {{"factor", "0"}});
  constexpr int64_t kRows = 130, kK = 69, kLast = kRows * kK - 1;
  std::vector<OrtValue> inputs{Floats({kRows, kK}, 0.5), Floats({kK, 75}, 0.5, 50)};
  for (const std::string& variant : Told()) {
    const auto session = Make(library, c, variant, {{"trace", trace.Path()}});
    const auto chosen = [&] {
      CHECK(Same(session->Run(inputs)[0], Expected(c, inputs)));
      return Chosen(trace.Take().at(0));
    };
    for (int64_t at : {int64_t{0}, 63 * kK + 5, 64 * kK, 127 * kK + 68, 128 * kK, kLast}) {
      for (float x : {kNan, kInfinity, -kInfinity}) {
        Set(&inputs[0], at, x);
        CHECK(chosen() == "dense");
      }
      Set(&inputs[0], at, 0.5);
    }
    for (float x : {std::numeric_limits<float>::max(), 1e-42f, -0.0f}) {
      Set(&inputs[0], kLast, x);
      const std::string skips = chosen();
      CHECK(variant.empty() || skips == variant);
    }
    Set(&inputs[0], kLast, 0.5);
  }
}

// Columns that are more than one block of lists, rows of many panels; two calls at a time, each on
// the pool.
void ManyColumns() {
  const Library library(PITC_TEST_LIBRARY);
  for (const char* stored : {"kn", "nk"}) {
    const PlanCase c = PlanCase("contract_right").With(69, 2100, {{"right", stored}});
    Random random(43);
    const auto inputs = MakeRightInputs(Body(c), random, 130, false);
    const Product expected = Expected(c, inputs);
    for (const char* variant : {"dense", "row", "tile8", "block16"}) {
      const auto session = Make(library, c, variant);
      std::vector<OrtValue> other;
      std::thread thread([&] { other = session->Run(inputs); });
      const std::vector<OrtValue> got = session->Run(inputs);
      thread.join();
      CHECK(Same(got[0], expected) && got == other);
      for (const char* threads : {"1", "64"})
        CHECK(got == Make(library, c, variant, {{"threads", threads}})->Run(inputs));
    }
  }
  CHECK(alive == 0);
}

// So large a matrix that lists are made in two waves.
void LargeMatrix() {
  const Library library(PITC_TEST_LIBRARY);
  constexpr int64_t kK = 8000, kN = 2100;
  for (const char* stored : {"kn", "nk"}) {
    const PlanCase c =
        PlanCase("contract_right_wide").With(kK, kN, {{"right", stored}, {"bias", "0"}});
    const bool by_rows = Body(c).right == ContractPlan::kNk;
    Random random(47);
    const OrtValue a = pitc::test::RandomFloats(random, {1, kK});
    std::vector<float> s(static_cast<size_t>(kK * kN));
    Product expected{std::vector<double>(kN), std::vector<double>(kN)};
    for (int64_t at = 0; at < kK * kN; at += 1 + random.Below(400)) {
      const int64_t k = by_rows ? at % kK : at / kN, n = by_rows ? at / kK : at % kN;
      const auto x = static_cast<float>(random.Below(100));
      s[static_cast<size_t>(at)] = x;
      const double term = static_cast<double>(Data<float>(a)[k]) * x;
      expected.sums[static_cast<size_t>(n)] += term;
      expected.sizes[static_cast<size_t>(n)] += std::abs(term);
    }
    std::vector<int64_t> dims{kK, kN};
    if (by_rows) std::swap(dims[0], dims[1]);
    const std::vector<OrtValue> inputs{a, OrtValue::Of(kFloatType, dims, s)};
    for (const char* variant : {"dense", "row", "tile8", "block16"})
      CHECK(Same(Make(library, c, variant)->Run(inputs)[0], expected));
  }
}

void TellsWhatItChose() {
  const Library library(PITC_TEST_LIBRARY);
  const TraceFile trace;
  for (const char* stored : {"kn", "nk"}) {
    const PlanCase c = Cases()[0].With(69, 75, {{"right", stored}});
    const auto session = c.Make(library, {{"trace", trace.Path()}});
    const std::vector<int64_t> dims =
        stored[0] == 'k' ? std::vector<int64_t>{69, 75} : std::vector<int64_t>{75, 69};
    const auto run = [&](int64_t rows, int64_t each, int64_t each_factor) {
      session->Run({Floats({rows, 69}, 1), Floats(dims, 1, each), Floats(dims, 1, each_factor)});
    };
    run(300, 1, 1);
    run(300, 5, 9);
    run(0, 5, 9);  // nothing to choose
    const std::vector<std::string> lines = trace.Take();
    CHECK(lines.size() == 2 && Chosen(lines[0]) == "dense" && Chosen(lines[1]) == "row");
    CHECK(Contains(lines[1], "\"node\": \"n\", \"rows\": 75, \"k\": 69, \"panels\": 5, "));
    CHECK(Contains(lines[0], "\"elements\": 5175, \"columns\": 69, "));
    CHECK(Contains(lines[1], "\"elements\": 115, "));  // those that live in both
    // Dense multiplies 300 rows by 2 panels of the right operand.
    CHECK(Contains(lines[1], ", 138.000, 41400.000, 100.000]"));
  }
}

// Few rows: what runs without a trace is what a trace tells. One row is dense, as few zeros are.
void FewRowsChooseAtAGlance() {
  const Library library(PITC_TEST_LIBRARY);
  const TraceFile trace;
  constexpr int64_t kK = 69, kN = 2100;
  for (const char* stored : {"kn", "nk"}) {
    for (const char* factor : {"0", "1"}) {
      const PlanCase c =
          PlanCase("contract_right").With(kK, kN, {{"right", stored}, {"factor", factor}});
      const auto told = c.Make(library, {{"trace", trace.Path()}}), untold = c.Make(library);
      const std::vector<int64_t> dims =
          stored[0] == 'k' ? std::vector<int64_t>{kK, kN} : std::vector<int64_t>{kN, kK};
      const auto chosen_for = [&](int64_t rows, const OrtValue& matrix) {
        std::vector<OrtValue> inputs{Floats({rows, kK}, 0.3f), matrix};
        if (Body(c).factor) inputs.push_back(Floats(dims, 1.1f));
        const std::vector<OrtValue> got = told->Run(inputs);
        const std::string variant = Chosen(trace.Take().at(0));
        CHECK(Same(got[0], Expected(c, inputs)));
        CHECK(got == untold->Run(inputs) && got == Make(library, c, variant)->Run(inputs));
        return variant;
      };
      const auto chosen = [&](int64_t rows, int64_t each) {
        return chosen_for(rows, Floats(dims, 0.7f, each));
      };
      CHECK(chosen(1, 1) == "dense" && chosen(1, 997) == "dense" && chosen(1, 1 << 20) == "dense");
      for (int64_t rows : {32, 40, 48, 49}) {
        CHECK(chosen(rows, 1) == "dense" && chosen(rows, 2) == "dense");
        CHECK(chosen(rows, 997) != "dense");
      }
      // Of so small a matrix the first square is all that is seen.
      OrtValue misleading = Floats(dims, 0.7f, 997);
      for (int64_t at = 0; at < 64 * 64; at += 2)
        Set(&misleading, at / 64 * dims[1] + at % 64, 0.7f);
      CHECK(chosen_for(40, misleading) == "dense");
      CHECK(chosen_for(49, misleading) != "dense");
    }
  }
}

// Without prices, dense is all there is.
void WithoutPrices() {
  const Library library(PITC_TEST_LIBRARY);
  const TraceFile trace;
  PlanCase c = Cases()[2];
  for (size_t at; (at = c.text.find("\ncost_")) != c.text.npos;)
    c.text.erase(at, c.text.find('\n', at + 1) - at);
  Random random(53);
  const auto inputs = MakeRightInputs(Body(c), random, 70, false);
  const auto session = c.Make(library, {{"trace", trace.Path()}, {"variant", "row"}});
  CHECK(Same(session->Run(inputs)[0], Expected(c, inputs)));
  const std::string line = trace.Take().at(0);
  CHECK(Chosen(line) == "dense" && Contains(line, "\"candidates\": {\"dense\": {"));
  CHECK(!Contains(line, "\"row\": {"));
}

// Sampled counts are those of all columns where groups of them are alike, and they are taken from
// everywhere.
void Samples() {
  const Library library(PITC_TEST_LIBRARY);
  const TraceFile trace;
  for (bool by_rows : {false, true}) {
    const PlanCase c = PlanCase("contract_right")
                           .With(69, 2100, {{"right", by_rows ? "nk" : "kn"}, {"factor", "0"}});
    const auto session = c.Make(library, {{"trace", trace.Path()}});
    const auto counted = [&](int64_t first) {
      std::vector<float> s(static_cast<size_t>(69 * 2100));
      for (int64_t j = first; j < 2100; ++j) {
        for (int64_t i = 0; i < 69; i += 8)
          s[static_cast<size_t>(by_rows ? j * 69 + i : i * 2100 + j)] = 1;
      }
      std::vector<int64_t> dims{69, 2100};
      if (by_rows) std::swap(dims[0], dims[1]);
      session->Run({Floats({300, 69}, 1), OrtValue::Of(kFloatType, dims, s)});
      return trace.Take().at(0);
    };
    CHECK(Contains(counted(0), "\"elements\": 18900, \"columns\": 9, "));
    const std::string half = counted(1050);
    const std::string key = "\"elements\": ";
    const int elements = std::stoi(half.substr(half.find(key) + key.size()));
    CHECK(elements > 6000 && elements < 13000 && Contains(half, "\"columns\": 9, "));
  }
}

void NamesWrongInputs() {
  const Library library(PITC_TEST_LIBRARY);
  const PlanCase c = Cases()[3];  // with all inputs there are: a, s, factor, bias, residual
  Random random(59);
  const std::vector<OrtValue> good = MakeRightInputs(Body(c), random, 4, false);
  const auto session = c.Make(library);
  const auto error = [&](size_t at, const std::vector<int64_t>& dims, bool floats = true) {
    std::vector<OrtValue> inputs = good;
    inputs[at].dims = dims;
    if (!floats) inputs[at].type = kInt32Type;
    inputs[at].bytes.resize(inputs[at].Bytes());
    return Thrown([&] { session->Run(inputs); });
  };
  const std::string node = "pitc: node 'n' (contract): expected ";
  const auto names = [&](const std::string& said, const std::string& text) {
    if (said != node + text) printf("%s\n", said.c_str());
    CHECK(said == node + text);
  };
  names(error(0, {4, 68}), "a of last dimension 69, got float32 [4, 68]");
  names(error(0, {}), "a as float32 of rank >= 1, got float32 []");
  names(error(0, {4, 69}, false), "a as float32 of rank >= 1, got int32 [4, 69]");
  size_t at = 1;
  for (const std::string role : {"b", "factor"}) {
    const std::string as = role + " as float32 ";
    names(error(at, {75, 69}), as + "[69, 75], got float32 [75, 69]");
    names(error(at, {69, 1}), as + "[69, 75], got float32 [69, 1]");
    names(error(at, {1, 75}), as + "[69, 75], got float32 [1, 75]");
    names(error(at, {69 * 75}), as + "of rank 2, got float32 [5175]");
    names(error(at, {1, 69, 75}), as + "of rank 2, got float32 [1, 69, 75]");
    names(error(at, {69, 75}, false), as + "of rank 2, got int32 [69, 75]");
    ++at;
  }
  names(error(3, {74}), "bias as float32 [75], got float32 [74]");
  names(error(3, {1, 75}), "bias as float32 of rank 1, got float32 [1, 75]");
  names(error(4, {3, 75}), "residual of 4 rows of 75, got float32 [3, 75]");
  names(error(4, {75, 4}), "residual of 4 rows of 75, got float32 [75, 4]");
  CHECK(Same(session->Run(good)[0], Expected(c, good)));

  const PlanCase rows = Cases()[1];  // stored by rows
  std::vector<OrtValue> inputs = MakeRightInputs(Body(rows), random, 4, false);
  std::swap(inputs[1].dims[0], inputs[1].dims[1]);
  names(Thrown([&] { rows.Make(library)->Run(inputs); }),
        "b as float32 [75, 69], got float32 [69, 75]");
}

void NamesWhatIsMissing() {
  const Library library(PITC_TEST_LIBRARY);
  const PlanCase plain("contract_right");
  CHECK(Contains(Thrown([&] { plain.With(71, 5).Make(library); }),
                 "expected kernel 'gather_gemm_k71_n5_none_kn_factor' for"));
  CHECK(Contains(Thrown([&] { plain.With(9, 9).Make(library); }),
                 "expected kernel 'contract_row_k9_n128_none' for"));
  for (int inputs : {2, 4}) {
    CHECK(Contains(Thrown([&] { Session(library, plain.text, PITC_TEST_KERNELS, inputs, 1); }),
                   "pitc: node 'n' (contract): expected 3 inputs and 1 outputs, got "));
  }
}

}  // namespace

int main() {
  return pitc::test::RunTests({{"every variant is the product", EveryVariantIsTheProduct},
                               {"exceptional rows are dense", ExceptionalRowsAreDense},
                               {"many columns", ManyColumns},
                               {"a large matrix", LargeMatrix},
                               {"tells what it chose", TellsWhatItChose},
                               {"few rows choose at a glance", FewRowsChooseAtAGlance},
                               {"without prices", WithoutPrices},
                               {"samples", Samples},
                               {"names wrong inputs", NamesWrongInputs},
                               {"names what is missing", NamesWhatIsMissing}});
}

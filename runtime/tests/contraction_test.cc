// Nodes of contractions in the provider: every variant computes the same product, and says so.
#include "contraction_check.h"

using pitc::CpuLevel;
using pitc::kVariants;
using pitc::Plan;
using pitc::Variant;
using pitc::test::Activate;
using pitc::test::alive;
using pitc::test::Chosen;
using pitc::test::Contains;
using pitc::test::Data;
using pitc::test::Levels;
using pitc::test::Library;
using pitc::test::Options;
using pitc::test::PlanCase;
using pitc::test::Random;
using pitc::test::Same;
using pitc::test::Session;
using pitc::test::Thrown;
using pitc::test::TraceFile;

namespace {

const std::vector<PlanCase>& Cases() {
  static const std::vector<PlanCase> cases{PlanCase("contract"), PlanCase("contract_all"),
                                           PlanCase("contract_scatter"), PlanCase("ffn"),
                                           PlanCase("ffn_all")};
  return cases;
}

// x @ panels + bias, one row.
UNWATCHED std::vector<double> Multiply(const std::vector<double>& x, const OrtValue& panels,
                                       int64_t n, const OrtValue* bias) {
  const int64_t k = panels.dims[1], width = panels.dims[2];
  const double* const row = x.data();
  const auto* const b = Data<float>(panels);
  std::vector<double> y(static_cast<size_t>(n));
  for (int64_t j = 0; j < n; ++j) {
    double sum = bias ? Data<float>(*bias)[j] : 0;
    for (int64_t i = 0; i < k; ++i) sum += row[i] * b[(j / width * k + i) * width + j % width];
    y[static_cast<size_t>(j)] = sum;
  }
  return y;
}

// The output, from docs/plans.md and in the simplest way.
std::vector<double> Expected(const Plan& plan, const std::vector<OrtValue>& inputs) {
  const pitc::ContractPlan& last = *pitc::test::ContractOf(plan);
  const int64_t n = last.n;
  size_t next = 1;
  const auto input = [&](bool there) { return there ? &inputs[next++] : nullptr; };
  const OrtValue& a = inputs[0];
  const OrtValue* b1 = input(last.inner.has_value());
  const OrtValue* bias1 = input(last.inner_bias);
  const OrtValue& b = *input(true);
  const OrtValue* bias = input(last.bias);
  const OrtValue* residual = input(last.residual);
  const OrtValue* rows = input(last.gather || last.scatter);
  const OrtValue* live = input(last.gather || last.scatter);
  const int64_t k = a.dims.back();
  int64_t stored = 1;
  for (size_t d = 0; d + 1 < a.dims.size(); ++d) stored *= a.dims[d];
  const int64_t t = rows ? rows->dims[0] : stored;
  const auto outputs =
      static_cast<size_t>((last.scatter ? static_cast<int64_t>(live->bytes.size()) : t) * n);
  std::vector<double> c(outputs);
  for (int64_t r = 0; r < t; ++r) {
    const int64_t from = last.gather ? Data<int32_t>(*rows)[r] : r;
    const int64_t to = last.scatter ? Data<int32_t>(*rows)[r] : r;
    std::vector<double> x(Data<float>(a) + from * k, Data<float>(a) + (from + 1) * k);
    if (last.input_relu) {
      for (double& v : x) v = v < 0 ? 0 : v;
    }
    if (b1) {
      x = Multiply(x, *b1, last.k, bias1);
      for (double& h : x) h = static_cast<float>(h < 0 ? 0 : h);
    }
    x = Multiply(x, b, n, bias);
    for (int64_t j = 0; j < n; ++j) {
      const double sum = Activate(plan.kernels.Of("dense"), x[static_cast<size_t>(j)]);
      c[static_cast<size_t>(to * n + j)] = sum + (residual ? Data<float>(*residual)[r * n + j] : 0);
    }
  }
  return c;
}

// Rows 0, 1, .. and more than one block of lists, any density, odd numbers among them.
void EveryVariantIsTheProduct() {
  const Library library(PITC_TEST_LIBRARY);
  int runs = 0, in_blocks = 0;
  const std::vector<std::string> levels = Levels(library, Cases()[0]);
  for (const std::string& level : levels) {
    for (const PlanCase& c : Cases()) {
      std::vector<std::unique_ptr<Session>> sessions, cut;  // the same for many threads
      for (int v = 0; v < kVariants; ++v) {
        Options options{{"cpu_level", level}, {"variant", Name(static_cast<Variant>(v))}};
        sessions.push_back(c.Make(library, options));
        options["threads"] = "64";
        cut.push_back(c.Make(library, options));
      }
      Random random(23);
      for (int64_t most : {0, 1, 2, 3, 4, 5, 8, 9, 16, 33, 64, 200, 600, 1500, 1500}) {
        const auto inputs = pitc::test::MakeInputs(c.plan, random, std::max<int64_t>(most, 1));
        const std::vector<double> expected = Expected(c.plan, inputs);
        for (size_t v = 0; v < sessions.size(); ++v) {
          const std::vector<OrtValue> got = sessions[v]->Run(inputs);
          const bool same = Same(got[0], expected) && got == sessions[v]->Run(inputs) &&
                            got == cut[v]->Run(inputs);
          if (!same) printf("%s, %s, up to %lld\n", c.name.c_str(), level.c_str(), (long long)most);
          CHECK(same);
          ++runs;
          in_blocks += inputs[0].dims.size() == 3 && expected.size() > 5 * 1500;
        }
      }
    }
  }
  const int count = static_cast<int>(levels.size());
  CHECK(runs > 200 * count && in_blocks > 10 * count && count > 0);
  CHECK(alive == 0);
}

// So many rows that lists are made in several waves.
void ManyRows() {
  const Library library(PITC_TEST_LIBRARY);
  const PlanCase& c = Cases()[0];
  constexpr int64_t kRows = (int64_t{1} << 24) / 520 + 1000;
  Random random(29);
  std::vector<float> a(static_cast<size_t>(kRows * 520));
  for (size_t i = 0; i < a.size(); i += 1 + random.Next() % 200)
    a[i] = static_cast<float>(random.Below(100));
  const std::vector<OrtValue> inputs{OrtValue::Of(pitc::test::kFloatType, {kRows, 520}, a),
                                     pitc::test::RandomPanels(random, 520, 2, 1)};
  const std::vector<double> expected = Expected(c.plan, inputs);
  for (const char* variant : {"dense", "row", "tile8", "block16"})
    CHECK(Same(c.Make(library, {{"variant", variant}})->Run(inputs)[0], expected));
}

std::vector<OrtValue> Rows(int64_t rows, float filling, int64_t each) {
  std::vector<float> a(static_cast<size_t>(rows * 520));
  for (size_t i = 0; i < a.size(); i += static_cast<size_t>(each)) a[i] = filling;
  return {OrtValue::Of(pitc::test::kFloatType, {rows, 520}, a),
          OrtValue::Of(pitc::test::kFloatType, {2, 520, 1}, std::vector<float>(1040, 1.0f))};
}

void TellsWhatItChose() {
  const Library library(PITC_TEST_LIBRARY);
  const TraceFile trace;
  const PlanCase& c = Cases()[0];
  for (const std::string& level : Levels(library, Cases()[0])) {
    const Options options{{"cpu_level", level}, {"trace", trace.Path()}, {"threads", "1"}};
    const auto session = c.Make(library, options);
    session->Run(Rows(64, 1, 1));
    session->Run(Rows(64, 1, 39));
    session->Run(Rows(0, 1, 1));  // nothing to choose
    const std::vector<std::string> lines = trace.Take();
    CHECK(lines.size() == 2 && Chosen(lines[0]) == "dense" && Chosen(lines[1]) == "row");
    CHECK(Contains(lines[1], "\"node\": \"n\", \"rows\": 64, \"k\": 520, \"panels\": 2, "));
    CHECK(Contains(lines[1], "\"elements\": 854, \"columns\": 40, "));
    for (int v = 0; v < kVariants; ++v) {
      Options forced = options;
      forced["variant"] = Name(static_cast<Variant>(v));
      c.Make(library, forced)->Run(Rows(3, 1, 7));
      const std::vector<std::string> told = trace.Take();
      CHECK(told.size() == 1 && Chosen(told[0]) == forced["variant"]);
    }
  }
}

// What has no price at a level is not chosen there, not even on demand.
void WithoutPrices() {
  const Library library(PITC_TEST_LIBRARY);
  const TraceFile trace;
  const PlanCase& c = Cases()[2];  // prices of v3 only, and no blocks
  Random random(31);
  std::vector<OrtValue> inputs;
  do inputs = pitc::test::MakeInputs(c.plan, random, 20);
  while (inputs[0].dims[0] == 0);
  for (const std::string& level : Levels(library, Cases()[0])) {
    for (const char* variant : {"tile8", "block16"}) {
      c.Make(library, {{"cpu_level", level}, {"trace", trace.Path()}, {"variant", variant}})
          ->Run(inputs);
      const std::string line = trace.Take().at(0);
      CHECK(!Contains(line, "block64\": {") && Contains(line, "\"dense\": {"));
      if (level == "v4" || variant == std::string("tile8"))
        CHECK(Chosen(line) == (level == "v4" ? "dense" : variant));
      CHECK(Contains(line, "\"row\": {") == (level != "v4"));
    }
  }
}

// Sampled counts are those of all rows where groups of rows are alike,
void Samples() {
  const Library library(PITC_TEST_LIBRARY);
  const TraceFile trace;
  std::vector<OrtValue> inputs = Rows(32 * 130, 1, 40);
  const auto session = Cases()[0].Make(library, {{"trace", trace.Path()}});
  session->Run(inputs);
  CHECK(Contains(trace.Take().at(0), "\"elements\": 54080, \"columns\": 13, "));
  // and they are taken from everywhere
  memset(inputs[0].bytes.data(), 0, inputs[0].bytes.size() / 2);
  session->Run(inputs);
  CHECK(Contains(trace.Take().at(0), "\"elements\": 27040, \"columns\": 13, "));
}

void BitsNeedWholePanels() {
  const Library library(PITC_TEST_LIBRARY);
  const PlanCase& c = Cases()[3];
  Random random(37);
  std::vector<OrtValue> inputs = pitc::test::MakeInputs(c.plan, random, 4);
  inputs[1] = pitc::test::RandomPanels(random, 3, 70, 128);
  CHECK(Contains(Thrown([&] { c.Make(library)->Run(inputs); }),
                 "pitc: node 'n' (contract): expected b1 as panels of 64 columns, got 128"));
}

}  // namespace

int main() {
  return pitc::test::RunTests({{"every variant is the product", EveryVariantIsTheProduct},
                               {"many rows", ManyRows},
                               {"tells what it chose", TellsWhatItChose},
                               {"without prices", WithoutPrices},
                               {"samples", Samples},
                               {"bits need whole panels", BitsNeedWholePanels}});
}

// Plans of attention and of the pairs that it leaves out: what scores go through, and programs.
#include <cstring>
#include <string>
#include <utility>

#include "plan/plan.h"
#include "plan_text.h"

namespace {

using pitc::Machine;
using pitc::ParsePlan;
using pitc::test::Contains;
using pitc::test::Error;
using pitc::test::kAttention;
using pitc::test::kPairs;
using pitc::test::With;

void ReadsStepsOnScores() {
  const auto attention = [](const std::string& text) {
    return std::get<pitc::AttentionPlan>(ParsePlan(text).body);
  };
  const std::string scores =
      std::string(kAttention) +
      "score_above=0\nscore_below=65535\nscore_scale=-0x1.8p-3\nscore_step=0x1p-2\n";
  const std::string weights = std::string(kAttention) + "weight_above=255\nweight_step=0x1p-126\n";
  const pitc::AttentionPlan plain = attention(kAttention), of_scores = attention(scores),
                            of_weights = attention(weights);
  CHECK(!plain.score_step && !plain.weight_step && !of_scores.weight_step);
  CHECK(*of_scores.score_step == 0.25 && *of_scores.score_scale == -0.1875);
  CHECK(*of_scores.score_below == 65535 && *of_scores.score_above == 0);
  CHECK(!of_weights.score_step && *of_weights.weight_above == 255 && *of_weights.weight_step > 0);

  for (const char* line :
       {"score_above=0", "score_below=65535", "score_scale=-0x1.8p-3", "score_step=0x1p-2"}) {
    const std::string key(line, strchr(line, '='));
    CHECK(Contains(Error(With(scores, line, "")), "plan: key '" + key + "' is missing"));
  }
  CHECK(Contains(Error(With(scores, "score_below=65535", "score_below=65536")),
                 "plan: expected score_below in 0..65535"));
  CHECK(Contains(Error(With(scores, "score_above=0", "score_above=-1")),
                 "plan: expected score_above in 0..65535"));
  CHECK(Contains(Error(weights + "weight_below=0\n"), "plan: unknown key 'weight_below'"));
  for (const char* bad : {"0x0p0", "-0x1p-2", "0x1p-127"}) {
    CHECK(Contains(Error(With(weights, "weight_step=0x1p-126", std::string("weight_step=") + bad)),
                   "plan: expected score_step and weight_step above 0"));
    CHECK(Contains(Error(With(scores, "score_step=0x1p-2", std::string("score_step=") + bad)),
                   "plan: expected score_step and weight_step above 0"));
  }
  const std::string capped = std::string(kAttention) + "score_cap=-0x1.8p1\n";
  CHECK(*attention(capped).score_cap == -3 && !plain.score_cap);
  CHECK(Contains(Error(scores + "score_cap=0x1p0\n"),
                 "plan: expected no score_step beside score_cap"));
  const std::string sunk = std::string(kAttention) + "sinks=2\n";
  CHECK(*attention(sunk).sinks == 2 && *attention(With(sunk, "sinks=2", "sinks=1")).sinks == 1);
  const std::string even = With(kAttention, "dv=3", "dv=6"), rounded = even + "rounded=bfloat16\n";
  const auto stored = attention(rounded + "stored=k,result\n").stored;
  CHECK(!stored.q && stored.k && !stored.v && stored.result);
  CHECK(attention(rounded).rounded && !attention(rounded).stored.k && !plain.rounded);
  for (const char* bad : {"", "k,q", "k,k", "k,", "a", "left"}) {
    CHECK(Contains(Error(rounded + "stored=" + bad + "\n"),
                   "plan: expected stored as some of q, k, v, result in that order"));
  }
  const std::string odd = "even d and dv beside rounded";
  const std::string others = "whole=0 and no score_step and weight_step beside rounded";
  const std::pair<std::string, std::string> refused[] = {
      {With(rounded, "d=8", "d=7"), odd},
      {With(rounded, "dv=6", "dv=5"), odd},
      {With(rounded, "whole=0", "whole=1"), others},
      {rounded + "weight_above=255\nweight_step=0x1p-126\n", others},
      {even + "stored=q\n", "no stored without rounded"},
      {With(sunk, "heads=2", "heads=3"), "one sink, or one for each head"},
      {sunk + "weight_above=255\nweight_step=0x1p-126\n", "no weight_step beside sinks"},
      {With(sunk, "no_pairs=nan", "no_pairs=mean"), "no_pairs=nan beside sinks"}};
  for (const auto& [text, reason] : refused)
    CHECK(Contains(Error(text), "plan: expected " + reason));
  const std::pair<std::string, std::string> keys[] = {
      {capped, "score_cap"}, {scores, "score_step"}, {weights, "weight_step"}, {sunk, "sinks"}};
  for (const auto& [text, key] : keys)
    CHECK(Contains(Error(text, Machine::kCuda), "plan: expected no key '" + key + "' for a GPU"));
}

void RefusesPrograms() {
  const auto refused = [](const std::string& program, const char* orders = "orders=2") {
    const std::string text = With(kPairs, "orders=2", orders);
    return Error(With(text, "program=3,4,0", "program=" + program));
  };
  const char* const tests = "plan: expected a program of its tests";
  CHECK(refused("3,4,0").empty() && refused("3").empty() && refused("4,2,2").empty());
  for (const char* bad : {"0", "2", "3,1", "3,2,0", "5", "3,5,0"})
    CHECK(Contains(refused(bad), tests));
  CHECK(Contains(refused("3,4"), "plan: expected a program that leaves one truth value"));
  std::string deep = "3", joined;
  for (int i = 1; i < 16; ++i) {
    deep += ",4";
    joined += ",1";
  }
  CHECK(refused(deep + joined).empty());
  CHECK(Contains(refused(deep + ",3,1" + joined), tests));
  CHECK(Contains(refused("3,4,0", "orders=3"), "plan: expected orders of tables"));
  CHECK(Contains(refused("3,4,0", "orders=4"), "plan: expected orders of tables"));
}

}  // namespace

int main() {
  return pitc::test::RunTests(
      {{"reads steps on scores", ReadsStepsOnScores}, {"refuses programs", RefusesPrograms}});
}

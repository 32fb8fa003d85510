// Plans of regions: products one behind the other, and what each of them reads.
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan_text.h"

namespace {

using pitc::Machine;
using pitc::ParsePlan;
using pitc::test::Contains;
using pitc::test::Error;
using pitc::test::With;

constexpr const char* kRegion =
    "pitc-plan 9\n"
    "gives=1\n"
    "identity=2/x\n"
    "kernels=counts:live_counts,points:live_points\n"
    "library=kernels.so\n"
    "op=region\n"
    "step0.activation=relu\n"
    "step0.bias=1\n"
    "step0.clocks_sm_80=512,288,416,336\n"
    "step0.clocks_sm_90=512,288,416,336\n"
    "step0.dtype=float16\n"
    "step0.factor=0\n"
    "step0.gather=1\n"
    "step0.inner_bias=0\n"
    "step0.input_relu=0\n"
    "step0.k=64\n"
    "step0.kernels=dense:gather_gemm_relu_f16\n"
    "step0.n=64\n"
    "step0.reads=1,2,3,rows,0\n"
    "step0.residual=0\n"
    "step0.right=panels\n"
    "step0.scatter=0\n"
    "step0.skips=0\n"
    "step0.tiles=0\n"
    "step1.activation=relu\n"
    "step1.bias=1\n"
    "step1.clocks_sm_80=512,288,416,336\n"
    "step1.clocks_sm_90=512,288,416,336\n"
    "step1.dtype=float16\n"
    "step1.factor=0\n"
    "step1.gather=0\n"
    "step1.inner_bias=0\n"
    "step1.input_relu=0\n"
    "step1.k=64\n"
    "step1.kernels=dense:gather_gemm_relu_res_f16\n"
    "step1.n=64\n"
    "step1.reads=s0,4,5,s0,rows,0\n"
    "step1.residual=1\n"
    "step1.right=panels\n"
    "step1.scatter=1\n"
    "step1.skips=0\n"
    "step1.tiles=0\n"
    "steps=2\n";

void ReadsRegions() {
  const pitc::Plan plan = ParsePlan(kRegion, Machine::kCuda);
  const auto& region = std::get<pitc::RegionPlan>(plan.body);
  CHECK(plan.op == "region" && plan.kernels.Of("points") == "live_points" &&
        plan.library == "kernels.so");
  CHECK(region.inputs == 6 && region.gives == std::vector<int>({1}) && region.steps.size() == 2);
  const pitc::RegionStep& last = region.steps[1];
  CHECK(last.kernels.Of("dense") == "gather_gemm_relu_res_f16");
  CHECK(last.plan.scatter && !last.plan.gather && last.plan.prices.clocks.size() == 2);
  CHECK(last.reads.size() == 6 && last.reads[0].kind == pitc::StepOperand::kStep &&
        last.reads[0].number == 0 && last.reads[1].number == 4 &&
        last.reads[4].kind == pitc::StepOperand::kRows && last.reads[5].number == 0);
}

void RefusesRegions() {
  const std::string text = kRegion;
  CHECK(Contains(Error(text), "plan: expected op as one of detect, ") &&
        Contains(Error(text), "choose_channels, got 'region'"));
  const auto refused = [&](const char* old, const char* other) {
    return Error(With(text, old, other), Machine::kCuda);
  };
  // Every key of a step is read as that of a plan, and named in full.
  CHECK(Contains(refused("step1.k=64", ""), "plan: key 'step1.k' is missing"));
  CHECK(Contains(refused("step1.k=64", "step1.k=0"), "plan: expected step1.k in 1..16777216"));
  CHECK(Contains(refused("step0.scatter=0", "step0.scatter=2"), "step0.scatter in 0..1"));
  CHECK(Contains(refused("step0.clocks_sm_80=512,288,416,336", "step0.clocks_sm_80=1,2,3"),
                 "plan: expected clocks_sm_80 as 4 numbers"));
  CHECK(Contains(refused("steps=2", "steps=2\nstep0.library=k.so"),
                 "plan: unknown key 'step0.library' for op 'region'"));
  CHECK(Contains(refused("steps=2", "steps=2\nstep2.k=64"), "plan: unknown key 'step2.k'"));
  CHECK(Contains(refused("steps=2", "steps=2\nk=64"), "plan: unknown key 'k'"));
  CHECK(Contains(refused("steps=2", "steps=9"), "plan: expected steps in 1..8, got '9'"));
  CHECK(Contains(refused("steps=2", "steps=3"), "plan: key 'step2."));
  CHECK(Contains(refused("step1.kernels=dense:gather_gemm_relu_res_f16", "step1.kernels=dense"),
                 "plan: expected step1.kernels as ROLE:KERNEL"));
  CHECK(Contains(refused("step1.bias=1", "step1.bias=0"), "expected step1.bias=1 for a GPU"));
  for (const char* bad : {"", "2", "-1", "01", "1,"})
    CHECK(Contains(refused("gives=1", (std::string("gives=") + bad).c_str()),
                   "plan: expected gives as numbers in 0..1, got "));
  for (const char* bad : {"1,1", "1,0"})
    CHECK(Contains(refused("gives=1", (std::string("gives=") + bad).c_str()),
                   "plan: expected gives to ascend"));
  CHECK(
      Contains(refused("gives=1", "gives=0,1"), "expected gives without packed rows, got step 0"));

  const auto reads = [&](const char* first, const char* second) {
    std::string other = With(text, "step0.reads=1,2,3,rows,0", std::string("step0.reads=") + first);
    other = With(other, "step1.reads=s0,4,5,s0,rows,0", std::string("step1.reads=") + second);
    return Error(other, Machine::kCuda);
  };
  const char *const first = "1,2,3,rows,0", *const second = "s0,4,5,s0,rows,0";
  CHECK(reads(first, second).empty());
  CHECK(Contains(reads("255,2,3,rows,0", second), "got input 1 for nobody"));
  for (const char* bad : {"", "1,2,3,row,0", "1,2,3,,0", "s0,2,3,rows,0", "1,2,3,rows,256",
                          "1,2,3,rows,-1", "1,02,3,rows,0", "s,2,3,rows,0"}) {
    CHECK(
        Contains(reads(bad, second), "plan: expected step0.reads as numbers of inputs, rows and "));
  }
  CHECK(Contains(reads("rows,2,3,rows,0", second), "a of step 0 as an input or a whole result"));
  CHECK(Contains(reads("1,rows,3,rows,0", second), "a matrix of step 0 as an input"));
  CHECK(Contains(reads("1,2,3,4,0", second), "rows of step 0 as rows"));
  CHECK(Contains(reads("1,2,3,rows,1", second), "live of step 0 as input 0"));
  CHECK(Contains(reads("1,2,3,rows", second), "expected 5 operands of step 0, got 4"));
  CHECK(Contains(reads("1,2,3,rows,0,0", second), "expected 5 operands of step 0, got 6"));
  CHECK(Contains(reads(first, "1,4,5,s0,rows,0"), "a of step 1 as packed rows"));
  CHECK(Contains(reads(first, "s0,4,5,1,rows,0"), "residual of step 1 as packed rows"));
  CHECK(Contains(reads(first, "s0,4,s0,s0,rows,0"), "a bias of step 1 as an input"));
  CHECK(Contains(reads(first, "s1,4,5,s0,rows,0"), "plan: expected step1.reads as numbers"));
  CHECK(Contains(reads("1,2,4,rows,0", "s0,4,5,s0,rows,0"), "got input 3 for nobody"));
  // A packed result is no whole operand, and one that nobody reads is no step.
  const std::string alone = With(
      With(With(text, "step1.gather=0", "step1.gather=1"), "step1.residual=1", "step1.residual=0"),
      "step1.reads=s0,4,5,s0,rows,0", "step1.reads=1,4,5,rows,0");
  CHECK(Contains(Error(alone, Machine::kCuda), "got step 0 for nobody"));
  CHECK(Contains(
      Error(With(alone, "step1.reads=1,4,5,rows,0", "step1.reads=s0,4,5,rows,0"), Machine::kCuda),
      "a of step 1 as an input or a whole result"));
}

}  // namespace

int main() {
  return pitc::test::RunTests(
      {{"reads regions", ReadsRegions}, {"refuses regions", RefusesRegions}});
}

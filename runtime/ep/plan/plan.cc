#include "plan/plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/failure.h"

namespace pitc {
namespace {

constexpr size_t kLongestPlan = 1 << 16;
constexpr int kMostSteps = 8;
constexpr size_t kMostConvolutions = 16;
constexpr int64_t kMostWork = int64_t{1} << 62;

// What fields say together.
void Require(bool good, const char* what) {
  if (!good) Fail("plan: expected ", what);
}

ContractPlan ReadContract(Fields& in) {
  ContractPlan p = ContractPlan::Read(in);
  const bool panels = p.right == ContractPlan::kPanels, on_gpu = in.machine() == Machine::kCuda;
  Require(p.inner || !p.inner_bias, "inner_bias=0 without inner");
  Require(!p.inner || p.inner_bias || !on_gpu, "inner_bias=1 for a GPU, got '0'");
  Require(!p.inner || (p.skips && !p.input_relu), "skips=1 and input_relu=0 beside inner");
  Require(p.skips || !p.input_relu, "input_relu=0 without skips");
  Require(!panels || p.factor == 0, "factor=0 beside panels");
  Require(panels || (p.skips && !p.gather && !p.scatter && !p.inner && !p.input_relu),
          "skips=1, gather=0, scatter=0, input_relu=0 and no inner without panels");
  const bool plain = p.activation == ContractPlan::kNone && !p.bias && !p.residual && !p.factor;
  Require(!p.tiles || (!panels && plain),
          "right=kn or right=nk, activation=none, bias=0, residual=0 and factor=0 beside tiles");
  Require(!p.rounded || (panels && !p.inner && !on_gpu),
          "no rounded on a GPU, beside inner and without panels");
  Require(p.rounded || !(p.stored.a || p.stored.result), "no stored without rounded");
  Require(!p.skips || !p.stored.result, "no stored result beside skips");
  Require(!p.stored.a || !p.input_relu, "input_relu=0 beside a stored a");
  Require(!p.stored.a || p.k % 2 == 0, "an even k beside a stored a");
  p.prices = Prices::Read(in, p.dtype, p.skips);
  return p;
}

AddRowsPlan ReadAddRows(Fields& in) {
  AddRowsPlan p = AddRowsPlan::Read(in);
  Require(p.n.has_value() + p.sized + p.started == 1, "one of n, sized=1 and started=1");
  return p;
}

GroupedPlan ReadGrouped(Fields& in) {
  GroupedPlan p = GroupedPlan::Read(in);
  p.prices = Prices::Read(in, p.dtype, p.skips);
  return p;
}

// A program of so many tests, of which some compare numbers of tables, leaves one truth value.
void ExpectProgram(const std::vector<int64_t>& program, int64_t tests, int64_t tables,
                   int64_t orders) {
  int64_t depth = 0;
  for (const int64_t step : program) {
    const int64_t taken = step == kProgramNegate ? 1 : step < kProgramFirstLeaf ? 2 : 0;
    depth += 1 - taken;
    Require(step < kProgramFirstLeaf + tests && depth >= 1 && depth <= kProgramDeepest,
            "a program of its tests");
  }
  Require(depth == 1, "a program that leaves one truth value");
  for (int64_t i = 0; orders >> 2 * i != 0; ++i)
    Require(i < tables && (orders >> 2 * i & 3) <= PairsPlan::kLessOrEqual, "orders of tables");
}

// The same of a plan whose kernels take what its program looks at.
template <class Plan>
void ExpectProgramOfKernels(const Plan& p) {
  if (!p.program) return;
  const int64_t tests = *p.positions + *p.tables + *p.key_tests + *p.query_tests + *p.pair_tests;
  ExpectProgram(*p.program, tests, *p.tables, *p.orders);
  for (int64_t test = 0; test < tests; ++test)
    Require(std::count(p.program->begin(), p.program->end(), kProgramFirstLeaf + test) > 0,
            "a program with all of its tests");
}

AttentionPlan ReadAttention(Fields& in) {
  AttentionPlan p = AttentionPlan::Read(in);
  for (const auto& step : {p.score_step, p.weight_step}) {
    Require(!step || static_cast<float>(*step) >= std::numeric_limits<float>::min(),
            "score_step and weight_step above 0");
  }
  Require(!p.group || p.heads % *p.group == 0, "heads in groups of the same size");
  Require(!p.score_cap || !p.score_step, "no score_step beside score_cap");
  Require(!p.sinks || *p.sinks == 1 || *p.sinks == p.heads, "one sink, or one for each head");
  Require(!p.sinks || !p.weight_step, "no weight_step beside sinks");
  Require(!p.sinks || p.no_pairs == AttentionPlan::kNan, "no_pairs=nan beside sinks");
  const bool stores = p.stored.q || p.stored.k || p.stored.v || p.stored.result;
  Require(p.rounded || !stores, "no stored without rounded");
  Require(!p.rounded || (p.d % 2 == 0 && p.dv % 2 == 0), "even d and dv beside rounded");
  Require(!p.rounded || !(p.whole || p.score_step || p.weight_step),
          "whole=0 and no score_step and weight_step beside rounded");
  const bool on_gpu = in.machine() == Machine::kCuda;
  Require(p.program || p.no_pairs == AttentionPlan::kNan || !on_gpu,
          "no_pairs=nan without a program");
  ExpectProgramOfKernels(p);
  return p;
}

AttentionGradPlan ReadAttentionGrad(Fields& in) {
  AttentionGradPlan p = AttentionGradPlan::Read(in);
  ExpectProgramOfKernels(p);
  return p;
}

PairsPlan ReadPairs(Fields& in) {
  PairsPlan p = PairsPlan::Read(in);
  ExpectProgram(p.program, p.positions + p.tables + p.keys + p.queries + p.pairs, p.tables,
                p.orders);
  return p;
}

ChannelsPlan ReadChannels(Fields& in) {
  ChooseChannelsPlan read = ChooseChannelsPlan::Read(in);
  const size_t count = read.nodes.size();
  if (count > kMostConvolutions) Fail("plan: expected at most ", kMostConvolutions, " nodes");
  if (read.channels.size() != count + 1 || read.places.size() != count + 1 ||
      read.weights.size() != count) {
    Fail("plan: expected ", count + 1, " channels and places and ", count, " weights, got ",
         read.channels.size(), ", ", read.places.size(), " and ", read.weights.size());
  }
  ChannelsPlan p{{}, {}, 0, read.budget, 0};
  for (size_t k = 0; k <= count; ++k) {
    p.ends.push_back({read.channels[k], read.places[k]});
    if (read.places[k] >= 0) p.flags = std::max(p.flags, read.places[k] + read.channels[k]);
  }
  bool fits = true;
  for (size_t k = 0; k < count && fits; ++k) {
    int64_t own;
    fits =
        !__builtin_mul_overflow(read.weights[k], read.channels[k] * read.channels[k + 1], &own) &&
        own <= kMostWork - p.work;
    if (fits) p.work += own;
    p.convolutions.push_back({std::move(read.nodes[k]), read.weights[k]});
  }
  if (!fits) Fail("plan: expected weights for less work than ", kMostWork, ", got more");
  if (p.budget > p.work) Fail("plan: expected budget in 0..", p.work, ", got '", p.budget, "'");
  return p;
}

template <class Read>
MovePlan MoveOf(Read&& read, bool unpack) {
  return {unpack, std::move(read.dims), read.dtype == read.kInt32 ? 4 : 1};
}

// The operands of a product in a region are what they must be. `packed`: of each step so far,
// whether its result has a row for each live point.
void ExpectOperands(const RegionStep& step, int number, const std::vector<bool>& packed) {
  using Kind = StepOperand::Kind;
  const ContractPlan& plan = step.plan;
  const ContractPlan::Inputs in = plan.Places();
  if (static_cast<size_t>(in.count) != step.reads.size())
    Fail("plan: expected ", in.count, " operands of step ", number, ", got ", step.reads.size());
  const auto expect = [&](int place, const char* role, const char* what, auto&& good) {
    if (place >= 0 && !good(step.reads[static_cast<size_t>(place)]))
      Fail("plan: expected ", role, " of step ", number, " as ", what, ", got another operand");
  };
  const auto is_packed = [&](const StepOperand& x) {
    return x.kind == Kind::kStep && packed[static_cast<size_t>(x.number)];
  };
  const auto is_whole = [&](const StepOperand& x) {
    return x.kind != Kind::kRows && !is_packed(x);
  };
  const auto is_input = [](const StepOperand& x) { return x.kind == Kind::kInput; };
  if (plan.gather) {
    expect(in.a, "a", "an input or a whole result", is_whole);
  } else {
    expect(in.a, "a", "packed rows", is_packed);
  }
  for (const int place : {in.b1, in.b}) expect(place, "a matrix", "an input", is_input);
  for (const int place : {in.bias1, in.bias}) expect(place, "a bias", "an input", is_input);
  expect(in.residual, "residual", "packed rows", is_packed);
  expect(in.rows, "rows", "rows", [](const StepOperand& x) { return x.kind == Kind::kRows; });
  expect(in.live, "live", "input 0",
         [&](const StepOperand& x) { return is_input(x) && x.number == 0; });
}

// The inputs are numbered without a gap. Results that are given are whole; whole ones are given or
// read.
void ExpectAllRead(const RegionPlan& region, const std::vector<bool>& packed) {
  std::vector<bool> inputs, steps(region.steps.size());
  for (const RegionStep& step : region.steps) {
    for (const StepOperand& x : step.reads) {
      const auto at = static_cast<size_t>(x.number);
      if (x.kind == StepOperand::kStep) steps[at] = true;
      if (x.kind != StepOperand::kInput) continue;
      if (inputs.size() <= at) inputs.resize(at + 1);
      inputs[at] = true;
    }
  }
  for (const int given : region.gives) {
    if (packed[static_cast<size_t>(given)])
      Fail("plan: expected gives without packed rows, got step ", given);
    steps[static_cast<size_t>(given)] = true;
  }
  for (const auto& [read, what] : {std::pair(&inputs, "input "), std::pair(&steps, "step ")}) {
    const auto unread = std::find(read->begin(), read->end(), false);
    if (unread != read->end())
      Fail("plan: expected every operand to be read, got ", what, unread - read->begin(),
           " for nobody");
  }
}

RegionPlan ReadRegion(Fields& in) {
  RegionPlan region{};
  std::vector<bool> packed;
  const auto count = static_cast<int>(in.Int("steps", 1, kMostSteps));
  for (int number = 0; number < count; ++number) {
    in.EnterStep(number);
    ContractPlan plan = ReadContract(in);
    region.steps.push_back({std::move(plan), in.Kernels("kernels"), in.Operands("reads", number)});
    ExpectOperands(region.steps.back(), number, packed);
    packed.push_back(!region.steps.back().plan.scatter);
    for (const StepOperand& x : region.steps.back().reads) {
      if (x.kind == StepOperand::kInput) region.inputs = std::max(region.inputs, x.number + 1);
    }
  }
  in.EnterStep(-1);
  for (const int64_t given : in.Ints("gives", 0, count - 1)) {
    Require(region.gives.empty() || given > region.gives.back(), "gives to ascend");
    region.gives.push_back(static_cast<int>(given));
  }
  ExpectAllRead(region, packed);
  return region;
}

}  // namespace

Plan ParsePlan(std::string_view text, Machine machine) {
  if (text.size() > kLongestPlan)
    Fail("plan: expected at most ", kLongestPlan, " bytes, got ", text.size());
  const std::string_view first = text.substr(0, text.find('\n'));
  if (first != kPlanFormat) {
    Fail("plan: expected the line '", kPlanFormat, "', got ", Quoted(first),
         "; compile the model again for this version of pitc");
  }
  text.remove_prefix(std::min(text.size(), first.size() + 1));
  Fields in(text, machine);
  Plan plan;
  std::vector<std::string_view> names;
  for (const OpMachines& each : kOps) {
    if (machine == Machine::kCpu ? each.cpu : each.cuda) names.push_back(each.op);
  }
  plan.op = names[in.Word("op", names)];
  if (plan.op == "detect") {
    plan.body = DetectPlan::Read(in);
  } else if (plan.op == "choose_channels") {
    plan.body = ReadChannels(in);
  } else if (plan.op == "add_rows") {
    plan.body = ReadAddRows(in);
  } else if (plan.op == "sparse_product") {
    plan.body = SparseProductPlan::Read(in);
  } else if (plan.op == "pairs") {
    plan.body = ReadPairs(in);
  } else {
    plan.kernels = in.Kernels("kernels");
    plan.library = in.FileName("library");
    plan.identity = in.Identity("identity");
    if (plan.op == "pack") {
      plan.body = MoveOf(PackPlan::Read(in), false);
    } else if (plan.op == "unpack") {
      plan.body = MoveOf(UnpackPlan::Read(in), true);
    } else if (plan.op == "attention") {
      plan.body = ReadAttention(in);
    } else if (plan.op == "attention_grad") {
      plan.body = ReadAttentionGrad(in);
    } else if (plan.op == "outer_products") {
      plan.body = OuterProductsPlan::Read(in);
    } else if (plan.op == "grouped") {
      plan.body = ReadGrouped(in);
    } else if (plan.op == "elementwise") {
      plan.body = ElementwisePlan::Read(in);
    } else if (plan.op == "norm") {
      plan.body = NormPlan::Read(in);
    } else if (plan.op == "region") {
      plan.body = ReadRegion(in);
    } else {
      plan.body = ReadContract(in);
    }
  }
  in.ExpectNoOthers(plan.op);
  return plan;
}

}  // namespace pitc

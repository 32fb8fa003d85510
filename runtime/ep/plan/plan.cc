#include "plan/plan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/failure.h"
#include "plan/fields.h"

namespace pitc {
namespace {

constexpr int kMostSteps = 8;
constexpr int64_t kLargestExtent = 1 << 24;
constexpr int64_t kLargestHead = 1 << 16;
constexpr int64_t kHighestPrice = int64_t{1} << 50;  // femtoseconds: 18 minutes
constexpr int64_t kMostWork = int64_t{1} << 62;
constexpr int64_t kMostClocks = 1 << 30;
constexpr int64_t kHighestArch = 999;
constexpr int64_t kChunkBytes = 16;              // that a GPU's thread copies at a time
constexpr int64_t kMostRounded = (1 << 16) - 1;  // steps of 16 bits

// One reader per operation: it sets the body and returns the symbol of its kernel, "" without one.

std::string ReadDetect(Fields& in, Machine, Plan* plan) {
  DetectPlan p{static_cast<int>(in.Int("rank", 1, kMostCoordinates)), {}};
  if (in.Has("padding")) p.padding = in.Name("padding");
  plan->body = std::move(p);
  return {};
}

std::string ReadMove(Fields& in, Machine, Plan* plan) {
  const int word_bytes = in.Word("dtype", {"int32", "int8"}) == "int32" ? 4 : 1;
  plan->body = MovePlan{plan->op == "unpack", in.Dims("dims"), word_bytes};
  return Text(plan->op, "_b", word_bytes);
}

// The lines `cost_VARIANT_LEVEL`: the price of each feature. Dense is always offered. What has
// prices may have `shape_VARIANT_LEVEL`: factors by the shape of what lives.
CostTable ReadCosts(Fields& in, std::string_view level) {
  CostTable table;
  for (int v = 0; v < kVariants; ++v) {
    const std::string key = Text("cost_", Name(static_cast<Variant>(v)), "_", level);
    if (!in.Has(key)) continue;
    CostTable::Line& line = table.lines[v];
    const std::vector<int64_t> prices = in.Ints(key, kFeatures, kHighestPrice);
    std::copy(prices.begin(), prices.end(), line.prices);
    line.offered = true;
    const std::string shape = Text("shape_", Name(static_cast<Variant>(v)), "_", level);
    if (!in.Has(shape)) continue;
    const std::vector<int64_t> factors = in.Ints(shape, kFactors, kHighestFactor);
    std::copy(factors.begin(), factors.end(), line.factors);
    line.shaped = true;
  }
  table.lines[static_cast<int>(Variant::kDense)].offered = true;
  return table;
}

std::string ProductSuffix(const ProductPlan& product, std::string_view epilogue) {
  return Text("_k", product.k, "_n", product.n, "_", epilogue);
}

Element ReadElement(Fields& in, Machine machine) {
  std::vector<std::string_view> names;
  for (const ElementRecord& record : kElements) names.push_back(record.name);
  if (machine == Machine::kCpu) names = {RecordOf(Element::kFloat32).name};
  const std::string name = in.Word("dtype", names);
  return static_cast<Element>(std::find(names.begin(), names.end(), name) - names.begin());
}

// How a symbol ends on a GPU, where rows of so many numbers are read.
std::string CudaSuffix(Element type, std::initializer_list<int64_t> widths) {
  const int64_t bytes = RecordOf(type).bytes;
  const bool loose = std::any_of(widths.begin(), widths.end(),
                                 [&](int64_t width) { return width * bytes % kChunkBytes != 0; });
  return Text(loose ? "_loose_" : "_", RecordOf(type).tag);
}

// The lines `clocks_sm_ARCH`.
std::vector<TileClocks> ReadClocks(Fields& in, Element type) {
  std::vector<TileClocks> all;
  for (const int64_t arch : in.NumbersBehind("clocks_sm_", kHighestArch)) {
    const std::string key = Text("clocks_sm_", arch);
    all.push_back({static_cast<int>(arch), in.Ints(key, TilesOf(type).size(), kMostClocks)});
  }
  if (all.empty()) Fail("plan: key 'clocks_sm_..' is missing");
  return all;
}

// The lines `price_VARIANT_TILE_sm_ARCH` of each architecture that has clocks.
std::vector<OfferPrices> ReadPrices(Fields& in, const ContractPlan& plan) {
  std::vector<OfferPrices> all;
  for (const TileClocks& each : plan.clocks) {
    OfferPrices& of_arch = all.emplace_back(OfferPrices{each.arch, {}});
    for (const CudaOffer* offer : OffersOf(plan.type)) {
      const std::string key = Text("price_", offer->variant, "_", offer->tile, "_sm_", each.arch);
      const std::vector<int64_t> prices = in.Ints(key, kCudaFeatures, kHighestPrice);
      std::copy(prices.begin(), prices.end(), of_arch.prices.emplace_back().begin());
    }
  }
  return all;
}

void ReadInner(Fields& in, Machine machine, ContractPlan* p) {
  p->inner = ProductPlan{in.Int("inner", 1, kLargestExtent), p->product.k, in.Flag("inner_bias")};
  const std::string activation = in.Word("inner_activation", {"relu"});
  p->inner_kernel = "gather_gemm" + ProductSuffix(*p->inner, activation) + "_bits";
  if (machine == Machine::kCpu) return;
  if (!p->inner->bias) Fail("plan: expected inner_bias=1 for a GPU, got '0'");
  p->inner_kernel =
      Text("gather_gemm_", activation, "_bits", CudaSuffix(p->type, {p->inner->k, p->inner->n}));
}

// What is special on a GPU; returns the symbol of the dense kernel.
std::string ReadCuda(Fields& in, const std::string& epilogue, bool skips, ContractPlan* p) {
  if (!p->product.bias) Fail("plan: expected bias=1 for a GPU, got '0'");
  if (p->relu) Fail("plan: expected input_relu=0 for a GPU, got '1'");
  p->clocks = ReadClocks(in, p->type);
  const int64_t k = p->product.k, n = p->product.n;
  const auto symbol = [&](const char* family, std::initializer_list<int64_t> widths) {
    return Text(family, "_", epilogue, CudaSuffix(p->type, widths));
  };
  if (skips) {
    p->prices = ReadPrices(in, *p);
    p->listed = {
        p->inner ? "detect_bits" + CudaSuffix(p->type, {}) : "detect" + CudaSuffix(p->type, {k}),
        "choose" + CudaSuffix(p->type, {}),
        "lists" + CudaSuffix(p->type, {k}),
        {symbol("gather_gemm", {k, n}), symbol("contract_tile", {n}), symbol("contract_block", {n}),
         symbol("contract_square", {k, n})}};
  }
  return symbol("gather_gemm", {k, n});
}

std::string ReadContract(Fields& in, Machine machine, Plan* plan) {
  ContractPlan p{};
  const bool right = plan->op == "contract_right";
  p.type = ReadElement(in, machine);
  std::string epilogue =
      in.Word("activation", {"none", "relu", "gelu", "gelu_tanh", "gelu_quick", "silu"});
  p.product = {in.Int("k", 1, kLargestExtent), in.Int("n", 1, kLargestExtent), in.Flag("bias")};
  p.residual = in.Flag("residual");
  if (p.residual) epilogue += "_res";
  p.swrite_suffix = Text("_n", p.product.n, "_", epilogue);
  p.relu = plan->op == "contract" && in.Flag("input_relu");
  if (p.relu) epilogue += "_input_relu";
  p.listed_suffix = ProductSuffix(p.product, epilogue);
  std::string kernel = "gather_gemm" + p.listed_suffix;
  if (right) {
    p.order = in.Word("stored", {"kn", "nk"}) == "nk" ? Order::kNK : Order::kKN;
    const int64_t factor = in.Int("factor", 0, 2);
    p.factor = factor > 0;
    p.mask = factor == 2;
    p.listed_suffix = ProductSuffix({p.product.k, kTurnedColumns, false}, "none");
    const std::string order = p.order == Order::kNK ? "_nk" : "_kn";
    kernel += order + (p.factor ? "_factor" : "");
    if (p.order == Order::kKN || p.factor)
      p.rows_kernel = Text("stored_rows_k", p.product.k, "_n", p.product.n, order,
                           p.mask     ? "_mask"
                           : p.factor ? "_factor"
                                      : "");
  } else {
    p.gather = in.Flag("gather");
    p.scatter = in.Flag("scatter");
  }
  if (plan->op == "ffn") ReadInner(in, machine, &p);
  p.skips = plan->op != "gather_gemm";
  if (machine == Machine::kCuda) {
    kernel = ReadCuda(in, epilogue, p.skips, &p);
  } else if (p.skips) {
    p.costs_v3 = ReadCosts(in, "v3");
    p.costs_v4 = ReadCosts(in, "v4");
  }
  plan->body = std::move(p);
  return kernel;
}

double ReadStep(Fields& in, std::string_view key) {
  const double step = in.Hex(key);
  if (!(static_cast<float>(step) >= std::numeric_limits<float>::min()))
    Fail("plan: expected ", key, " above 0, got ", Quoted(in.Raw(key)));
  return step;
}

// What scores and weights are rounded to; returns how the symbol of the kernel goes on.
std::string ReadSteps(Fields& in, Machine machine, AttentionPlan* p) {
  std::string suffix;
  if (machine != Machine::kCpu) return suffix;
  if (in.Has("score_step")) {
    p->score_steps = {ReadStep(in, "score_step"), in.Int("score_below", 0, kMostRounded),
                      in.Int("score_above", 0, kMostRounded)};
    p->score_scale = in.Hex("score_scale");
    suffix += "_score_steps";
  }
  if (in.Has("weight_step")) {
    p->weight_steps = {ReadStep(in, "weight_step"), 0, in.Int("weight_above", 0, kMostRounded)};
    suffix += "_weight_steps";
  }
  return suffix;
}

std::string ReadAttention(Fields& in, Machine machine, Plan* plan) {
  AttentionPlan p{};
  p.type = ReadElement(in, machine);
  p.d = in.Int("d", 1, kLargestExtent);
  p.dv = in.Int("dv", 1, kLargestExtent);
  p.heads = in.Int("heads", 1, kLargestHead);
  p.q_head = in.Int("q_head", 0, kLargestHead);
  p.k_head = in.Int("k_head", 0, kLargestHead);
  p.v_head = in.Int("v_head", 0, kLargestHead);
  p.bias = in.Flag("bias");
  p.nan_to_zero = in.Flag("nan_to_zero");
  p.no_keys_to_zero = in.Flag("no_keys_to_zero");
  p.scale = in.Hex("scale");
  p.whole = machine == Machine::kCpu && in.Has("whole") && in.Flag("whole");
  const std::string steps = ReadSteps(in, machine, &p);
  plan->body = p;
  const std::string suffix = machine == Machine::kCuda ? CudaSuffix(p.type, {p.d, p.dv}) : steps;
  return Text("attention_d", p.d, "_v", p.dv, p.bias ? "_bias" : "", suffix);
}

std::string ReadChooseChannels(Fields& in, Machine, Plan* plan) {
  ChooseChannelsPlan p{};
  std::vector<std::string> nodes = in.Nodes("nodes");
  const size_t count = nodes.size();
  const std::vector<int64_t> extents = in.Ints("channels", count + 1, kLargestExtent),
                             places = in.Places("places", count + 1, kLargestExtent),
                             weights = in.Ints("weights", count, kMostWork);
  for (size_t k = 0; k <= count; ++k) {
    p.ends.push_back({extents[k], places[k]});
    if (places[k] >= 0) p.flags = std::max(p.flags, places[k] + extents[k]);
  }
  bool fits = true;
  for (size_t k = 0; k < count && fits; ++k) {
    int64_t own;
    fits = !__builtin_mul_overflow(weights[k], extents[k] * extents[k + 1], &own) &&
           own <= kMostWork - p.work;
    if (fits) p.work += own;
    p.convolutions.push_back({std::move(nodes[k]), weights[k]});
  }
  if (!fits) Fail("plan: expected weights for less work than ", kMostWork, ", got more");
  p.budget = in.Int("budget", 0, p.work);
  plan->body = std::move(p);
  return {};
}

// Whether an operand of a product in a region is what it must be. `packed`: of each step so far,
// whether its result has a row for each live point.
void ExpectOperands(const RegionStep& step, int number, const std::vector<bool>& packed) {
  using Kind = StepOperand::Kind;
  const ContractPlan& plan = step.plan;
  size_t next = 0;
  const auto expect = [&](const char* role, const char* what, auto&& good) {
    if (next >= step.reads.size() || !good(step.reads[next]))
      Fail("plan: expected ", role, " of step ", number, " as ", what, ", got another operand");
    ++next;
  };
  const auto is_packed = [&](const StepOperand& x) {
    return x.kind == Kind::kStep && packed[static_cast<size_t>(x.number)];
  };
  const auto is_input = [](const StepOperand& x) { return x.kind == Kind::kInput; };
  if (plan.gather) {
    expect("a", "an input or a whole result",
           [&](const StepOperand& x) { return x.kind != Kind::kRows && !is_packed(x); });
  } else {
    expect("a", "packed rows", is_packed);
  }
  for (int matrix = 0; matrix < (plan.inner ? 2 : 1); ++matrix) {
    expect("a matrix", "an input", is_input);
    expect("a bias", "an input", is_input);
  }
  if (plan.residual) expect("residual", "packed rows", is_packed);
  if (plan.gather || plan.scatter) {
    expect("rows", "rows", [](const StepOperand& x) { return x.kind == Kind::kRows; });
    expect("live", "input 0", [&](const StepOperand& x) { return is_input(x) && x.number == 0; });
  }
  if (next != step.reads.size())
    Fail("plan: expected ", next, " operands of step ", number, ", got ", step.reads.size());
}

// The inputs are numbered without a gap. Results that are given are whole; whole ones are given or
// read.
void ExpectAllRead(const RegionPlan& region, const std::vector<bool>& packed) {
  std::vector<bool> inputs(1, true), steps(region.steps.size());
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

std::string ReadRegion(Fields& in, Machine machine, Plan* plan) {
  RegionPlan region{};
  std::vector<bool> packed;
  const auto count = static_cast<int>(in.Int("steps", 1, kMostSteps));
  for (int number = 0; number < count; ++number) {
    in.EnterStep(number);
    Plan step;
    step.op = in.Word("op", {"gather_gemm", "contract", "ffn"});
    const std::string kernel = ReadContract(in, machine, &step);
    if (const std::string_view given = in.Raw("kernel"); given != kernel)
      Fail("plan: expected kernel=", kernel, " for the fields of step ", number, ", got ",
           Quoted(given));
    region.steps.push_back({step.op, kernel, std::get<ContractPlan>(std::move(step.body)),
                            in.Operands("reads", number)});
    ExpectOperands(region.steps.back(), number, packed);
    packed.push_back(!region.steps.back().plan.scatter);
    for (const StepOperand& x : region.steps.back().reads) {
      if (x.kind == StepOperand::kInput) region.inputs = std::max(region.inputs, x.number + 1);
    }
  }
  in.EnterStep(-1);
  for (const int64_t given : in.Steps("gives", count))
    region.gives.push_back(static_cast<int>(given));
  ExpectAllRead(region, packed);
  plan->body = std::move(region);
  return "live_points";
}

constexpr struct {
  std::string_view op;
  std::string (*read)(Fields&, Machine, Plan*);
  bool on_gpus = false;
  bool on_cpus = true;
} kOps[] = {{"detect", ReadDetect},
            {"pack", ReadMove, true},
            {"unpack", ReadMove, true},
            {"gather_gemm", ReadContract, true},
            {"contract", ReadContract, true},
            {"ffn", ReadContract, true},
            {"contract_right", ReadContract},
            {"attention", ReadAttention, true},
            {"choose_channels", ReadChooseChannels},
            {"region", ReadRegion, true, false}};

}  // namespace

std::vector<const CudaTile*> TilesOf(Element type) {
  std::vector<const CudaTile*> tiles;
  for (const CudaTile& tile : kCudaTiles) {
    if (tile.mma || type == Element::kFloat32) tiles.push_back(&tile);
  }
  return tiles;
}

std::vector<const CudaOffer*> OffersOf(Element type) {
  std::vector<const CudaOffer*> offers;
  for (const CudaOffer& offer : kCudaOffers) {
    if (offer.item_bytes == RecordOf(type).bytes) offers.push_back(&offer);
  }
  return offers;
}

Plan ParsePlan(std::string_view text, Machine machine) {
  Fields in(text);
  Plan plan;
  std::vector<std::string_view> names;
  for (const auto& entry : kOps) {
    if (machine == Machine::kCpu ? entry.on_cpus : entry.on_gpus) names.push_back(entry.op);
  }
  plan.op = in.Word("op", names);
  const auto* const entry = std::find_if(std::begin(kOps), std::end(kOps),
                                         [&](const auto& each) { return each.op == plan.op; });
  plan.kernel = entry->read(in, machine, &plan);
  if (!plan.kernel.empty()) {
    const std::string_view kernel = in.Raw("kernel");
    if (kernel != plan.kernel)
      Fail("plan: expected kernel=", plan.kernel, " for these fields, got ", Quoted(kernel));
    plan.library = in.FileName("library");
    plan.identity = in.Identity("identity");
  }
  in.ExpectNoOthers(plan.op);
  return plan;
}

}  // namespace pitc

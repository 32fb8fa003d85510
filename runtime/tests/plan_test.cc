#include "plan/plan.h"

#include <cmath>
#include <cstring>

#include "base/failure.h"
#include "plan_text.h"

using pitc::Machine;
using pitc::ParsePlan;
using pitc::test::Contains;
using pitc::test::Error;
using pitc::test::kAttention;
using pitc::test::Thrown;
using pitc::test::With;

namespace {

// Fields of a contraction that does nothing else.
const std::string kUsual =
    "identity=2/x\nfactor=0\ngather=0\ninner_bias=0\ninput_relu=0\nlibrary=kernels.so\n"
    "right=panels\nscatter=0\ntiles=0\n";
constexpr const char* kGemm =
    "pitc-plan 9\nactivation=relu\nbias=1\ndtype=float32\nfactor=0\ngather=1\nidentity=2/x\n"
    "inner_bias=0\ninput_relu=0\nk=64\nkernels=dense:gather_gemm_k64_n130_relu\n"
    "library=kernels.so\nn=130\nop=contract\nresidual=0\nright=panels\nscatter=0\nskips=0\n"
    "tiles=0\n";
constexpr const char* kPack =
    "pitc-plan 9\ndims=c0,r,c1,0,r\ndtype=int32\nidentity=2/x\nkernels=move:pack_b4\n"
    "library=k.so\nop=pack\n";
// 7 prices and 8 prices.
const std::string kRising = "0,1,2,3,4,5,6";
const std::string kFalling = "7,6,5,4,3,2,1,0";
const std::string kContract =
    With("pitc-plan 9\nactivation=none\nbias=0\ncost_dense_v3=" + kRising +
             ",1125899906842624\ncost_tile8_v3=" + kFalling +
             "\ndtype=float32\nk=64\nkernels=dense:gather_gemm_k64_n130_none_res_input_relu\n"
             "n=130\nop=contract\nresidual=1\nskips=1\n" +
             With(kUsual, "scatter=0", "scatter=1"),
         "input_relu=0", "input_relu=1");
const std::string kFfn =
    With("pitc-plan 9\nactivation=none\nbias=1\ncost_row_v4=" + kFalling +
             "\ndtype=float32\ninner=7\nk=64\nkernels=dense:d,inner:i\nn=130\nop=contract\n"
             "residual=0\nskips=1\n" +
             With(kUsual, "gather=0", "gather=1"),
         "inner_bias=0", "inner_bias=1");
const std::string kRight = With("pitc-plan 9\nactivation=relu\nbias=1\ncost_row_v4=" + kFalling +
                                    "\ndtype=float32\nk=64\nkernels=dense:d,panels:p\nn=130\n"
                                    "op=contract\nresidual=1\nskips=1\n" +
                                    With(kUsual, "factor=0", "factor=1"),
                                "right=panels", "right=kn");
const std::string kTiles =
    With(With(With(With(With(kRight, "factor=1", "factor=0"), "tiles=0", "tiles=1"),
                   "activation=relu", "activation=none"),
              "bias=1", "bias=0"),
         "residual=1", "residual=0");
const std::string kCudaGemm =
    "pitc-plan 9\nactivation=relu\nbias=1\nclocks_sm_100=5,6,7,8\nclocks_sm_80=1,2,3,4\n"
    "dtype=float16\nk=64\nkernels=dense:gather_gemm_relu_res_f16\nn=136\nop=contract\n"
    "residual=1\nskips=0\n" +
    kUsual;
constexpr const char* kChoose =
    "pitc-plan 9\nbudget=500\nchannels=3,64,8\nnodes=a%2Cb%0A%C3%A4,/conv-1._~\n"
    "op=choose_channels\nplaces=all,8,0\nweights=2,1\n";
constexpr const char* kGradient =
    "pitc-plan 9\nbias=1\nd=64\ndtype=float32\ndv=60\nheads=2\nidentity=2/x\n"
    "kernels=attention_grad:a\nlibrary=kernels.so\nno_pairs=zero\nop=attention_grad\npairs="
    "0\nscale=0x1.0p-3\n";
constexpr const char* kDetect = "pitc-plan 9\nop=detect\nrank=2\n";

void ReadsEveryOperation() {
  const pitc::Plan gemm = ParsePlan(kGemm);
  const auto& g = std::get<pitc::ContractPlan>(gemm.body);
  CHECK(gemm.op == "contract" && gemm.library == "kernels.so" && gemm.identity == "2/x");
  CHECK(gemm.kernels.Of("dense") == "gather_gemm_k64_n130_relu" && !gemm.kernels.Has("row"));
  CHECK(
      Contains(Thrown([&] { gemm.kernels.Of("row"); }), "expected a kernel for 'row' in kernels"));
  CHECK(g.k == 64 && g.n == 130 && g.bias && g.activation == pitc::ContractPlan::kRelu);
  CHECK(g.gather && !g.residual && !g.scatter && !g.input_relu && !g.inner && !g.skips);
  CHECK(g.right == pitc::ContractPlan::kPanels && g.factor == 0);
  const pitc::ContractPlan::Inputs in = g.Places();
  CHECK(in.count == 5 && in.a == 0 && in.b == 1 && in.bias == 2 && in.rows == 3 && in.live == 4);
  CHECK(in.b1 == -1 && in.bias1 == -1 && in.factor == -1 && in.residual == -1);
  const auto a = std::get<pitc::AttentionPlan>(ParsePlan(kAttention).body);
  CHECK(a.d == 8 && a.dv == 3 && a.heads == 2 && a.k_head == 2 && a.v_head == 4 && a.nan_to_zero &&
        !a.no_keys_to_zero && !a.bias && !a.whole);
  const std::string whole = With(kAttention, "whole=0", "whole=1");
  CHECK(std::get<pitc::AttentionPlan>(ParsePlan(whole).body).whole);
  CHECK(!a.group);
  const std::string grouped = With(kAttention, "heads=2", "group=2\nheads=4");
  CHECK(*std::get<pitc::AttentionPlan>(ParsePlan(grouped).body).group == 2);
  CHECK(Contains(Error(With(grouped, "group=2", "group=3")), "heads in groups of the same size"));
  CHECK(Contains(Error(With(grouped, "group=2", "group=1")), "group"));
  CHECK(a.scale == -0.1875);
  const auto p = std::get<pitc::MovePlan>(ParsePlan(kPack).body);
  CHECK(!p.unpack && p.word_bytes == 4 && p.dims.size() == 5 && p.dims[2].coordinate == 1);
  CHECK(p.dims[3].kind == pitc::DimUse::kOne && p.dims[4].kind == pitc::DimUse::kRest);
  const auto u = std::get<pitc::MovePlan>(
      ParsePlan(
          "pitc-plan 9\ndims=l,r\ndtype=int8\nkernels=move:unpack_b1\nidentity=2/x\nlibrary=k\n"
          "op=unpack")
          .body);
  CHECK(u.unpack && u.word_bytes == 1 && u.dims[0].kind == pitc::DimUse::kLinear);
  CHECK(std::get<pitc::DetectPlan>(ParsePlan(kDetect).body).rank == 2);
  CHECK(std::get<pitc::DetectPlan>(ParsePlan(kDetect).body).Places().count == 1);
  const auto plain = ParsePlan("pitc-plan 9\nop=detect\npadding=azAZ09-._~/\nrank=2\n");
  CHECK(std::get<pitc::DetectPlan>(plain.body).padding == "azAZ09-._~/");
  const auto odd = ParsePlan("pitc-plan 9\nop=detect\npadding=%99%FA\nrank=2\n");
  CHECK(std::get<pitc::DetectPlan>(odd.body).padding == "\x99\xfa");
  const auto detect = ParsePlan("pitc-plan 9\nop=detect\npadding=the%20mask\nrank=2\n");
  CHECK(std::get<pitc::DetectPlan>(detect.body).padding == "the mask");
}

void ReadsPlansForGpus() {
  const pitc::Plan gemm = ParsePlan(kCudaGemm, Machine::kCuda);
  const auto& g = std::get<pitc::ContractPlan>(gemm.body);
  const auto& clocks = g.prices.clocks;
  CHECK(g.dtype == pitc::Element::kFloat16 && clocks.size() == 2);
  CHECK(clocks[0].arch == 80 && clocks[1].arch == 100 && clocks[1].clocks[3] == 8);
  CHECK(clocks[0].clocks == std::vector<int64_t>({1, 2, 3, 4}));
  const auto type_of = [](const std::string& text) {
    return std::get<pitc::ContractPlan>(ParsePlan(text, Machine::kCuda).body).dtype;
  };
  CHECK(type_of(With(kCudaGemm, "dtype=float16", "dtype=bfloat16")) == pitc::Element::kBfloat16);
  std::string full = With(kCudaGemm, "clocks_sm_100=5,6,7,8", "");
  full = With(full, "clocks_sm_80=1,2,3,4", "clocks_sm_80=1,2,3,4,5,6");
  CHECK(type_of(With(full, "dtype=float16", "dtype=float32")) == pitc::Element::kFloat32);
  CHECK(Error(kAttention, Machine::kCuda).empty() && Error(kPack, Machine::kCuda).empty());
  CHECK(Contains(Error(With(kAttention, "whole=0", "whole=1"), Machine::kCuda),
                 "plan: expected whole=0 for a GPU, got '1'"));
  CHECK(Contains(Error(With(kAttention, "heads=2", "group=2\nheads=2"), Machine::kCuda),
                 "plan: expected no key 'group' for a GPU"));

  CHECK(Error(kGradient).empty() && Error(kGradient, Machine::kCuda).empty());
  const std::string listed = With(kGradient, "pairs=0", "pairs=1");
  CHECK(Error(listed).empty());
  CHECK(Contains(Error(listed, Machine::kCuda), "plan: expected pairs=0 for a GPU, got '1'"));
  const auto programmed = [](const std::string& program) {
    const std::string counts = "orders=0\npair_tests=0\npairs=0\npositions=1\n" + program;
    return With(With(kGradient, "no_pairs=zero", "key_tests=0\nno_pairs=zero"), "pairs=0",
                counts + "\nquery_tests=0\ntables=1");
  };
  CHECK(Error(programmed("program=3,4,0"), Machine::kCuda).empty());
  CHECK(Contains(Error(programmed("program=3,4,0")), "expected no key 'program' for a CPU"));
  CHECK(Contains(Error(programmed("program=3"), Machine::kCuda),
                 "plan: expected a program with all of its tests"));

  CHECK(Contains(Error(kCudaGemm), "plan: expected dtype=float32 for a CPU, got 'float16'"));
  CHECK(Contains(Error(kGemm, Machine::kCuda), "plan: key 'clocks_sm_..' is missing"));
  const auto refused = [](const std::string& old_line, const std::string& new_line) {
    return Error(With(kCudaGemm, old_line, new_line), Machine::kCuda);
  };
  CHECK(Contains(refused("bias=1", "bias=0"), "plan: expected bias=1 for a GPU"));
  CHECK(Contains(refused("right=panels", "right=kn"), "plan: expected right=panels for a GPU"));
  CHECK(Contains(refused("clocks_sm_80=1,2,3,4", "clocks_sm_80=1,2,3"),
                 "plan: expected clocks_sm_80 as 4 numbers"));
  CHECK(refused("clocks_sm_80=1,2,3,4", "clocks_sm_1=1,2,3,4").empty());
  CHECK(Contains(refused("clocks_sm_80=1,2,3,4", "clocks_sm_0=1,2,3,4"),
                 "plan: unknown key 'clocks_sm_0'"));
  CHECK(Contains(refused("clocks_sm_80=1,2,3,4", "clocks_sm_1000=1,2,3,4"),
                 "plan: unknown key 'clocks_sm_1000'"));
  CHECK(Contains(refused("clocks_sm_80=1,2,3,4", "clocks_sm_080=1,2,3,4"),
                 "plan: unknown key 'clocks_sm_080'"));
  CHECK(Contains(Error(With(kGemm, "bias=1", "bias=1\nclocks_sm_80=1,2,3,4")),
                 "plan: unknown key 'clocks_sm_80'"));
  for (const char* text : {kDetect, kChoose})
    CHECK(Contains(
        Error(text, Machine::kCuda),
        "plan: expected op as one of pack, unpack, contract, attention, attention_grad, grouped, "
        "elementwise, region, got"));
}

// A plan with prices for sm_80: the place of an offer, and three other numbers.
std::string CudaListed(pitc::Element type) {
  const std::vector<const pitc::CudaOffer*> offers = pitc::OffersOf(type);
  std::string text = With(With(kCudaGemm, "skips=0", "skips=1"), "clocks_sm_100=5,6,7,8", "");
  for (size_t i = 0; i < offers.size(); ++i)
    text +=
        pitc::Text("price_", offers[i]->variant, "_", offers[i]->tile, "_sm_80=", i, ",0,7,9\n");
  return text;
}

void ReadsContractionsOverZerosForGpus() {
  const auto plan_of = [](const std::string& text) {
    return std::get<pitc::ContractPlan>(ParsePlan(text, Machine::kCuda).body);
  };
  const std::string text = CudaListed(pitc::Element::kFloat16);
  const pitc::ContractPlan contract = plan_of(text);
  const auto& offers = contract.prices.offers;
  CHECK(contract.skips && !contract.inner && offers.size() == 1);
  CHECK(offers[0].arch == 80 && offers[0].prices.size() == 8);
  CHECK((offers[0].prices[5] == std::array<int64_t, 4>{5, 0, 7, 9}));

  const std::string ffn = With(text, "inner_bias=0", "inner=24\ninner_bias=1");
  CHECK(plan_of(ffn).inner == 24 && pitc::LeftColumns(plan_of(ffn)) == 24);
  const auto refused = [](const std::string& given, const std::string& old, const char* other) {
    return Error(With(given, old, other), Machine::kCuda);
  };
  CHECK(Contains(refused(ffn, "inner_bias=1", "inner_bias=0"),
                 "plan: expected inner_bias=1 for a GPU"));
  CHECK(Contains(refused(text, "input_relu=0", "input_relu=1"),
                 "plan: expected input_relu=0 for a GPU"));
  CHECK(Contains(refused(text, "price_tile16_mma16x128_sm_80=4,0,7,9", ""),
                 "plan: key 'price_tile16_mma16x128_sm_80' is missing"));
  CHECK(Contains(
      refused(text, "price_tile16_mma16x128_sm_80=4,0,7,9", "price_tile16_mma16x128_sm_80=4,0,7"),
      "_sm_80 as 4 numbers"));
  CHECK(Contains(refused(text, "input_relu=0", "input_relu=0\ncost_dense_v4=0,0,0,0,0,0,0,0"),
                 "plan: unknown key 'cost_dense_v4'"));
  const std::string gemm = With(kCudaGemm, "n=136", "n=136\nprice_dense_mma16x128_sm_80=0,0,0,0");
  CHECK(Contains(Error(gemm, Machine::kCuda), "plan: unknown key"));
}

void ReadsPrices() {
  const auto c = std::get<pitc::ContractPlan>(ParsePlan(kContract).body);
  CHECK(c.k == 64 && c.n == 130 && c.residual && c.scatter && !c.gather);
  CHECK(c.input_relu && c.skips && !c.inner);
  for (int v = 0; v < pitc::kVariants; ++v) {
    const auto variant = static_cast<pitc::Variant>(v);
    CHECK(c.prices.v3.lines[v].offered ==
          (variant == pitc::Variant::kDense || variant == pitc::Variant::kTile8));
    CHECK(c.prices.v4.lines[v].offered == (variant == pitc::Variant::kDense));
  }
  const auto& dense = c.prices.v3.lines[0];
  const auto& tile = c.prices.v3.lines[static_cast<int>(pitc::Variant::kTile8)];
  for (int f = 0; f < pitc::kFeatures; ++f) {
    CHECK(dense.prices[f] == (f == 7 ? int64_t{1} << 50 : f));
    CHECK(tile.prices[f] == 7 - f);
    CHECK(c.prices.v4.lines[0].prices[f] == 0);
  }

  const pitc::Plan plan = ParsePlan(kFfn);
  const auto& ffn = std::get<pitc::ContractPlan>(plan.body);
  const pitc::ProductPlan inner = pitc::InnerOf(ffn), outer = pitc::ProductOf(ffn);
  CHECK(ffn.inner && inner.k == 7 && inner.n == 64 && inner.bias && ffn.gather);
  CHECK(outer.k == 64 && outer.n == 130 && outer.bias && !ffn.residual);
  CHECK(plan.kernels.Of("inner") == "i" && !ffn.input_relu && ffn.skips);
  CHECK(ffn.prices.v4.lines[static_cast<int>(pitc::Variant::kRow)].prices[1] == 6);
  const pitc::ContractPlan::Inputs in = ffn.Places();
  CHECK(in.b1 == 1 && in.bias1 == 2 && in.b == 3 && in.bias == 4 && in.count == 7);
}

void ReadsRightOperands() {
  const auto right = std::get<pitc::ContractPlan>(ParsePlan(kRight).body);
  CHECK(right.right == pitc::ContractPlan::kKn && right.factor == 1 && right.skips);
  CHECK(right.k == 64 && right.n == 130 && right.bias && right.residual && !right.gather);
  const auto& lines = right.prices.v4.lines;
  CHECK(lines[static_cast<int>(pitc::Variant::kRow)].prices[1] == 6);
  CHECK(lines[0].offered && !lines[static_cast<int>(pitc::Variant::kTile8)].offered);
  const pitc::ContractPlan::Inputs in = right.Places();
  CHECK(in.b == 1 && in.factor == 2 && in.bias == 3 && in.residual == 4 && in.count == 5);
  const std::string text = With(With(kRight, "factor=1", "factor=0"), "right=kn", "right=nk");
  CHECK(std::get<pitc::ContractPlan>(ParsePlan(text).body).right == pitc::ContractPlan::kNk);
}

void ReadsTiles() {
  const auto tiles = std::get<pitc::ContractPlan>(ParsePlan(kTiles).body);
  CHECK(tiles.tiles && tiles.right == pitc::ContractPlan::kKn && tiles.skips && !tiles.factor);
  const pitc::ContractPlan::Inputs in = tiles.Places();
  CHECK(in.a == 0 && in.b == 1 && in.mask == 2 && in.bias == -1 && in.count == 3);
  CHECK(!std::get<pitc::ContractPlan>(ParsePlan(kRight).body).tiles);
  CHECK(Thrown([] { ParsePlan(With(kTiles, "right=kn", "right=nk")); }).empty());
}

void RefusesTilesWithAnythingElse() {
  const char* const plain =
      "plan: expected right=kn or right=nk, activation=none, bias=0, residual=0 and factor=0 "
      "beside tiles";
  const auto refused = [](const char* old_line, const char* new_line) {
    return Error(With(kTiles, old_line, new_line));
  };
  CHECK(Contains(refused("activation=none", "activation=relu"), plain));
  CHECK(Contains(refused("bias=0", "bias=1"), plain));
  CHECK(Contains(refused("residual=0", "residual=1"), plain));
  CHECK(Contains(refused("factor=0", "factor=1"), plain));
  CHECK(Contains(refused("right=kn", "right=panels"), plain));
  CHECK(Contains(refused("gather=0", "gather=1"), "gather=0, scatter=0, input_relu=0"));
  CHECK(Contains(refused("scatter=0", "scatter=1"), "gather=0, scatter=0, input_relu=0"));
  CHECK(Contains(refused("k=64", "k=64\ninner=7"), "no inner without panels"));
  CHECK(Contains(refused("tiles=1", "tiles=2"), "expected tiles in 0..1"));
  CHECK(Contains(refused("tiles=1", ""), "key 'tiles' is missing"));
  CHECK(Contains(Error(With(With(kTiles, "skips=1", "skips=0"), "cost_row_v4=" + kFalling, "")),
                 "expected skips=1"));
  CHECK(Contains(Error(With(kCudaGemm, "tiles=0", "tiles=1"), Machine::kCuda),
                 "plan: expected tiles=0 for a GPU"));
}

void RefusesFieldsThatDoNotFit() {
  const char* const right =
      "plan: expected skips=1, gather=0, scatter=0, input_relu=0 and no inner without panels";
  for (const char* key : {"gather", "scatter", "input_relu"}) {
    const std::string line(key);
    CHECK(Contains(Error(With(kRight, line + "=0", line + "=1")), right));
  }
  CHECK(Contains(Error(With(With(kRight, "skips=1", "skips=0"), "cost_row_v4=" + kFalling, "")),
                 right));
  CHECK(Contains(Error(With(kRight, "k=64", "k=64\ninner=7")), right));
  CHECK(
      Contains(Error(With(kContract, "factor=0", "factor=1")), "expected factor=0 beside panels"));
  CHECK(Contains(Error(With(kContract, "inner_bias=0", "inner_bias=1")),
                 "expected inner_bias=0 without inner"));
  CHECK(Contains(Error(With(kFfn, "input_relu=0", "input_relu=1")),
                 "expected skips=1 and input_relu=0 beside inner"));
  CHECK(Contains(Error(With(With(kFfn, "skips=1", "skips=0"), "cost_row_v4=" + kFalling, "")),
                 "expected skips=1 and input_relu=0 beside inner"));
  CHECK(Contains(Error(With(kGemm, "input_relu=0", "input_relu=1")),
                 "expected input_relu=0 without skips"));
  for (const char* bad : {"", "k", "xx", "KN", "kn "}) {
    CHECK(Contains(Error(With(kRight, "right=kn", std::string("right=") + bad)),
                   std::string("expected right as one of panels, kn, nk, got '") + bad + "'"));
  }
  CHECK(Contains(Error(With(kRight, "factor=1", "factor=3")), "expected factor in 0..2"));
  CHECK(Contains(Error(With(kFfn, "inner=7", "inner=0")), "expected inner in 1..16777216"));
}

void RefusesPrices() {
  const std::string key = "cost_tile8_v3=", line = key + kFalling;
  const auto refuses = [&](const std::string& bad) {
    CHECK(Contains(Error(With(kContract, line, key + bad)), "expected cost_tile8_v3 as "));
  };
  for (const char* bad : {"", ",", "1"}) refuses(bad);
  refuses(kRising);
  refuses(kRising + ",");
  refuses("," + kRising);
  refuses(kRising + ",7,8");
  for (const char* last : {"", "-6", "6.0", " 6", "06", "1125899906842625", "99999999999999999999"})
    refuses(kRising + "," + last);
  const std::string good = "=" + kFalling;
  CHECK(Error(With(kContract, line, "cost_block64_v4" + good)).empty());
  for (const char* bad :
       {"cost_tile16_v3", "cost_tile8_v5", "cost_tile8", "cost_Tile8_v3", "cost_"})
    CHECK(Contains(Error(With(kContract, line, bad + good)),
                   std::string("unknown key '") + bad + "' for op 'contract'"));
  CHECK(Contains(Error(With(kGemm, "k=64", "k=64\ncost_row_v4" + good)),
                 "unknown key 'cost_row_v4' for op 'contract'"));
}

// The dense kernel says by which prices it is compared: AMX has its own, where the plan has them.
void TakesPricesOfItsKernel() {
  using pitc::CpuLevel;
  const std::string line = "cost_tile8_v3=" + kFalling;
  const auto prices_of = [](const std::string& text) {
    return std::get<pitc::ContractPlan>(ParsePlan(text).body).prices;
  };
  const pitc::Prices plain = prices_of(kContract);
  CHECK(&plain.Of(CpuLevel::kV3, CpuLevel::kV3) == &plain.v3);
  for (const CpuLevel dense : {CpuLevel::kV4, CpuLevel::kV4Bf16, CpuLevel::kV4Amx})
    CHECK(&plain.Of(CpuLevel::kV4Amx, dense) == &plain.v4);
  const pitc::Prices tiles = prices_of(With(
      kContract, line, line + "\ncost_dense_v4_amx=" + kFalling + "\ncost_row_v4_amx=" + kFalling));
  const pitc::CostTable& amx = tiles.Of(CpuLevel::kV4Amx, CpuLevel::kV4Amx);
  CHECK(&amx != &tiles.v4 && &tiles.Of(CpuLevel::kV4Amx, CpuLevel::kV4) == &tiles.v4);
  CHECK(amx.least_gain == 1 && tiles.v4.least_gain == pitc::kLeastGain);
  const auto offers = [&](pitc::Variant v) {
    const pitc::CostTable::Line& found = amx.lines[static_cast<int>(v)];
    return found.offered && found.prices[0] == 7;
  };
  CHECK(offers(pitc::Variant::kDense) && offers(pitc::Variant::kRow));
  CHECK(!offers(pitc::Variant::kTile8));
}

// 35 factors.
std::string Factors(const char* each) {
  std::string text = each;
  for (int i = 1; i < pitc::kFactors; ++i) text += std::string(",") + each;
  return text;
}

void ReadsFactors() {
  const std::string prices = "cost_tile8_v3=" + kFalling;
  const std::string text =
      With(kContract, prices, prices + "\nshape_tile8_v3=10000," + Factors("1").substr(2));
  const auto contract = std::get<pitc::ContractPlan>(ParsePlan(text).body);
  for (const pitc::CostTable* table : {&contract.prices.v3, &contract.prices.v4}) {
    for (int v = 0; v < pitc::kVariants; ++v) {
      const auto& line = table->lines[v];
      const bool tile =
          table == &contract.prices.v3 && v == static_cast<int>(pitc::Variant::kTile8);
      CHECK(line.shaped == tile && line.factors[0] == (tile ? 10000 : 0));
      for (int f = 1; f < pitc::kFactors; ++f) CHECK(line.factors[f] == tile);
    }
  }
}

void RefusesFactors() {
  const std::string prices = "cost_tile8_v3=" + kFalling, key = "shape_tile8_v3=";
  const auto error = [&](const std::string& line) {
    return Error(With(kContract, prices, prices + "\n" + line));
  };
  CHECK(error(key + Factors("0")).empty());
  for (const std::string& bad :
       {std::string(), std::string("1"), Factors("10001"), Factors("-1"), Factors("1") + ",1"}) {
    CHECK(Contains(error(key + bad), "expected shape_tile8_v3 as "));
  }
  for (const char* bad : {"shape_row_v3", "shape_tile8_v4", "shape_tile8_v5", "shape_tile8"}) {
    CHECK(Contains(error(std::string(bad) + "=" + Factors("1")),
                   std::string("unknown key '") + bad + "' for op 'contract'"));
  }
}

void ReadsChannels() {
  const pitc::Plan plan = ParsePlan(kChoose);
  const auto& choose = std::get<pitc::ChannelsPlan>(plan.body);
  CHECK(!plan.kernels.Has("dense") && plan.library.empty());
  CHECK(choose.convolutions.size() == 2 && choose.ends.size() == 3);
  CHECK(choose.convolutions[0].node == "a,b\n\xc3\xa4" && choose.convolutions[0].weight == 2);
  CHECK(choose.convolutions[1].node == "/conv-1._~" && choose.convolutions[1].weight == 1);
  const int64_t extents[] = {3, 64, 8}, places[] = {-1, 8, 0};
  for (size_t k = 0; k < 3; ++k)
    CHECK(choose.ends[k].extent == extents[k] && choose.ends[k].place == places[k]);
  const auto all = std::get<pitc::ChannelsPlan>(
      ParsePlan(With(kChoose, "places=all,8,0", "places=all,all,all")).body);
  CHECK(all.flags == 0 && all.work == choose.work);
  CHECK(choose.flags == 72 && choose.budget == 500 && choose.work == 2 * 3 * 64 + 64 * 8);

  const std::string longest = std::string(999, 'n') + "%FF";
  const auto other = std::get<pitc::ChannelsPlan>(
      ParsePlan(With(kChoose, "nodes=a%2Cb%0A%C3%A4,/conv-1._~", "nodes=" + longest + ",b")).body);
  CHECK(other.convolutions[0].node == std::string(999, 'n') + "\xff");
}

void RefusesChannels() {
  const auto error = [](const char* old_line, const std::string& line) {
    return Error(With(kChoose, old_line, line));
  };
  const char* nodes = "nodes=a%2Cb%0A%C3%A4,/conv-1._~";
  for (const char* line : {"budget=500", "channels=3,64,8", nodes, "places=all,8,0", "weights=2,1"})
    CHECK(
        Contains(error(line, ""), "key '" + std::string(line, strchr(line, '=')) + "' is missing"));
  const std::string long_one(1001, 'n');
  for (const std::string& bad :
       {std::string(), std::string(","), std::string("a,"), std::string(",a"), std::string("a,,b"),
        std::string("a b"), std::string("a%2"), std::string("a%"), std::string("%2c,a"),
        std::string("%gg"), std::string("%GG"), std::string("%@@"), std::string("a 2C"),
        std::string("%41,a"), std::string("%2F,a"), std::string("a,\xc3\xa4"), long_one,
        long_one + ",a", std::string(1000, 'n') + "%FF"}) {
    CHECK(Contains(error(nodes, "nodes=" + bad),
                   "expected nodes as names of 1..1000 bytes, other bytes than letters, "
                   "digits and -._~/ as %XX, got '"));
  }
  std::string many = "nodes=n";
  for (int i = 1; i < 17; ++i) many += ",n";
  CHECK(Contains(error(nodes, many), "expected at most 16 nodes"));
  CHECK(Contains(error(nodes, many.substr(0, many.size() - 2)),
                 "expected 17 channels and places and 16 weights, got 3, 3 and 2"));
  for (const char* bad : {"", "all", "all,8", "all,8,0,", "all,8,0,all", "All,8,0", "-1,8,0",
                          "all,08,0", "all,,0", ",8,0", "all,8,16777217"}) {
    CHECK(Contains(error("places=all,8,0", std::string("places=") + bad), "places"));
  }
  for (const char* bad :
       {"", "3,64", "3,64,8,1", "3,64,-1", "3,64,0", "3,64,16777217", "3,64,all"}) {
    CHECK(Contains(error("channels=3,64,8", std::string("channels=") + bad), "channels"));
  }
  for (const char* bad : {"", "2", "2,1,1", "2,-1", "2,4611686018427387905"}) {
    CHECK(Contains(error("weights=2,1", std::string("weights=") + bad), "weights"));
  }
  // 2^62, of which the first half and the second; then one more
  const char* extents = "channels=3,64,8";
  const std::string text = With(kChoose, extents, "channels=16777216,16777216,16777216");
  CHECK(Error(With(text, "weights=2,1", "weights=8192,8192")).empty());
  CHECK(Error(With(text, "weights=2,1", "weights=0,16384")).empty());
  for (const char* bad : {"weights=8193,8192", "weights=8192,8193", "weights=16385,0",
                          "weights=0,4611686018427387904"})
    CHECK(Contains(Error(With(text, "weights=2,1", bad)), "less work than 4611686018427387904"));
  for (const char* bad : {"", "-1", "897", "5e2"})
    CHECK(Contains(error("budget=500", std::string("budget=") + bad), "expected budget in 0.."));
  CHECK(error("budget=500", "budget=896").empty());
  CHECK(Contains(error("budget=500", "budget=500\nkernels=k:k"), "unknown key 'kernels' for op"));
}

void RefusesOtherText() {
  CHECK(Contains(Error(""), "expected the line 'pitc-plan 9'"));
  CHECK(Contains(Error("pitc-plan 2\nop=detect\nrank=2\n"),
                 "got 'pitc-plan 2'; compile the model again"));
  CHECK(Contains(Error(std::string("pitc-plan 9\nop=detect\nrank=2\n\0", 31)), "key=value"));
  CHECK(Contains(Error("pitc-plan 9\r\nop=detect\nrank=2\n"), "got 'pitc-plan 9?'"));
  CHECK(Contains(Error("pitc-plan 9\n\nop=detect\nrank=2\n"), "key=value"));
  CHECK(Contains(Error("pitc-plan 9\n=x\nop=detect\nrank=2\n"), "key=value"));
  CHECK(Contains(Error("pitc-plan 9\nop=dance\n"), "'dance'"));
  CHECK(Contains(Error(With(kGemm, "dtype=float32", "dtype=float16")),
                 "expected dtype=float32 for a CPU, got 'float16'"));
  CHECK(Contains(Error(With(kGemm, "dtype=float32", "dtype=float64")), "dtype=float32 for a CPU"));
  CHECK(Contains(Error(With(kPack, "dtype=int32", "dtype=int16")), "dtype as one of int32, int8"));
  CHECK(Contains(Error(std::string(kDetect) + std::string(70000, 'x')), "at most 65536 bytes"));
  CHECK(Contains(Error(std::string(65536, 'x')), "expected the line"));
}

void RefusesKeys() {
  CHECK(Contains(Error(With(kGemm, "scatter=0", "")), "key 'scatter' is missing"));
  CHECK(Contains(Error(With(kGemm, "scatter=0", "scatter=0\nscatter=0")),
                 "key 'scatter' stands twice"));
  CHECK(Contains(Error(std::string(kDetect) + "colour=red\n"),
                 "unknown key 'colour' for op 'detect'"));
  CHECK(Contains(Error(With(kDetect, "op=detect", "")), "key 'op' is missing"));
}

void RefusesValues() {
  for (const char* bad : {"", "0", "-1", "+1", "1 ", " 1", "01", "1x", "0x1", "1.0",
                          "99999999999999999999", "16777217"}) {
    CHECK(
        Contains(Error(With(kGemm, "k=64", std::string("k=") + bad)), "expected k in 1..16777216"));
  }
  for (const char* bad : {"", "2", "true", "-0"}) {
    CHECK(Contains(Error(With(kGemm, "bias=1", std::string("bias=") + bad)),
                   "expected bias in 0..1"));
  }
  for (const char* bad : {"", "0.5", "0x", "0x1.8p", "0x1.8p-3 ", "nan", "inf", "--0x1p0", "0x-1p0",
                          "0x1p99999", "1p3", "0x1", "0x"}) {
    CHECK(Contains(Error(With(kAttention, "scale=-0x1.8p-3", std::string("scale=") + bad)),
                   "hexadecimal float"));
  }
  for (const char* bad : {"", "r", "0,r", "c0,c0", "l,l", "c8", "c", "c00", "x", "c0,", ",c0",
                          "c0,,r", "c0 ,r", "c0,r,r,r,r,r,r,r,r,r,r,r,r"}) {
    CHECK(Contains(Error(With(kPack, "dims=c0,r,c1,0,r", std::string("dims=") + bad)),
                   "expected dims as at most 12 of c0..c7, l"));
  }
  for (const char* bad :
       {"", ".", "..", ".hidden", "a/b", "/etc/x", "../x", "a b", "a\x01", "\xc3\xa4"}) {
    CHECK(Contains(Error(With(kPack, "library=k.so", std::string("library=") + bad)),
                   "bare file name"));
  }
  for (const char* bad : {"", "2", "x/2", "/2", "1/x", "3/x", "02/x", "2/x y", "2/x\\y"}) {
    const std::string error = Error(With(kPack, "identity=2/x", std::string("identity=") + bad));
    CHECK(Contains(error, "expected identity as 2/.., got '") &&
          Contains(error, "compile the model again"));
  }
  CHECK(Error(With(kPack, "identity=2/x", "identity=2/pitc-0.1.0/tvm-0.2+a_b/00ff")).empty());
  const std::string build(198, 'a');  // 200 with what stands in front
  CHECK(Error(With(kPack, "identity=2/x", "identity=2/" + build)).empty());
  CHECK(Contains(Error(With(kPack, "identity=2/x", "identity=2/a" + build)), "as 2/.., got '"));
  CHECK(Error(With(kPack, "dims=c0,r,c1,0,r", "dims=c7,r,r,r,r,r,r,r,r,r,r,r")).empty());
  CHECK(Contains(Error(With(kPack, "identity=2/x", "")), "key 'identity' is missing"));
  CHECK(Contains(Error(With(kGemm, "activation=relu", "activation=swish")),
                 "one of none, relu, gelu, gelu_tanh, gelu_quick, silu, got 'swish'"));
  CHECK(Contains(Error(With(kDetect, "rank=2", "rank=9")), "expected rank in 1..8"));
  const std::string longest(200, 'a');
  CHECK(Error(With(kPack, "library=k.so", "library=" + longest)).empty());
  CHECK(Contains(Error(With(kPack, "library=k.so", "library=a" + longest)), "bare file name"));
  CHECK(Contains(Error(kDetect + std::string("padding=a,b\n")), "expected padding as one name"));
  const std::string longer(1001, 'a');
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("a%2"), std::string("a%61"), longer})
    CHECK(Contains(Error(kDetect + ("padding=" + name + "\n")), "expected padding as names of"));
}

void RefusesKernels() {
  for (const char* bad : {"", "dense", "dense:", ":x", "dense:a,", "dense:a,dense:b", "dense:a b",
                          "dense:a.b", "d e:a", "dense:a:b"}) {
    CHECK(Contains(Error(With(kPack, "kernels=move:pack_b4", std::string("kernels=") + bad)),
                   "expected kernels as ROLE:KERNEL, each role once, got '"));
  }
  CHECK(Contains(Error(With(kPack, "kernels=move:pack_b4", "")), "key 'kernels' is missing"));
  const std::string longest(200, 'k');
  CHECK(Error(With(kPack, "kernels=move:pack_b4", "kernels=move:" + longest)).empty());
  CHECK(Contains(Error(With(kPack, "kernels=move:pack_b4", "kernels=move:k" + longest)),
                 "expected kernels as ROLE:KERNEL"));
}

}  // namespace

int main() {
  return pitc::test::RunTests(
      {{"reads every operation", ReadsEveryOperation},
       {"reads plans for GPUs", ReadsPlansForGpus},
       {"reads contractions over zeros for GPUs", ReadsContractionsOverZerosForGpus},
       {"reads prices", ReadsPrices},
       {"reads right operands", ReadsRightOperands},
       {"reads tiles", ReadsTiles},
       {"refuses tiles with anything else", RefusesTilesWithAnythingElse},
       {"refuses fields that do not fit", RefusesFieldsThatDoNotFit},
       {"refuses prices", RefusesPrices},
       {"takes prices of its kernel", TakesPricesOfItsKernel},
       {"reads factors", ReadsFactors},
       {"refuses factors", RefusesFactors},
       {"reads channels", ReadsChannels},
       {"refuses channels", RefusesChannels},
       {"refuses other text", RefusesOtherText},
       {"refuses unknown, missing and double keys", RefusesKeys},
       {"refuses bad values", RefusesValues},
       {"refuses kernels", RefusesKernels}});
}

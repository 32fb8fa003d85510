#include "plan/plan.h"

#include <cmath>
#include <cstring>

#include "base/failure.h"
#include "plan_text.h"

using pitc::Machine;
using pitc::ParsePlan;
using pitc::test::Contains;
using pitc::test::Error;
using pitc::test::With;

namespace {

constexpr const char* kGemm =
    "pitc-plan "
    "4\nactivation=relu\nbias=1\ngather=1\nk=64\ndtype=float32\nkernel=gather_gemm_k64_n130_"
    "relu\nidentity=1/"
    "x\nlibrary=kernels.so\nn=130\n"
    "op=gather_gemm\nresidual=0\nscatter=0\n";
constexpr const char* kAttention =
    "pitc-plan "
    "4\nbias=0\nd=8\ndv=3\nheads=2\nk_head=2\ndtype=float32\nkernel=attention_d8_v3\nidentity=1/"
    "x\nlibrary=kernels.so\nnan_to_"
    "zero=1\nno_keys_to_zero=0\n"
    "op=attention\nq_head=0\nscale=-0x1.8p-3\nv_head=4\n";
constexpr const char* kPack =
    "pitc-plan "
    "4\ndims=c0,r,c1,0,r\ndtype=int32\nkernel=pack_b4\nidentity=1/x\nlibrary=k.so\nop=pack\n";
// 7 prices and 8 prices.
const std::string kRising = "0,1,2,3,4,5,6";
const std::string kFalling = "7,6,5,4,3,2,1,0";
const std::string kContract =
    "pitc-plan 4\nactivation=none\nbias=0\n"
    "cost_dense_v3=" +
    kRising +
    ",1125899906842624\n"
    "cost_tile8_v3=" +
    kFalling +
    "\n"
    "gather=0\ninput_relu=1\nk=64\ndtype=float32\nkernel=gather_gemm_k64_n130_none_res_input_relu\n"
    "identity=1/x\nlibrary=kernels.so\nn="
    "130\n"
    "op=contract\nresidual=1\nscatter=1\n";
const std::string kFfn =
    "pitc-plan 4\nactivation=none\nbias=1\ncost_row_v4=" + kFalling +
    "\n"
    "gather=1\ninner=7\ninner_activation=relu\ninner_bias=1\nk=64\n"
    "dtype=float32\nkernel=gather_gemm_k64_n130_none\nidentity=1/x\nlibrary=kernels.so\nn=130\n"
    "op=ffn\nresidual=0\nscatter=0\n";
const std::string kRight =
    "pitc-plan 4\nactivation=relu\nbias=1\ncost_row_v4=" + kFalling +
    "\nfactor=1\nk=64\ndtype=float32\nkernel=gather_gemm_k64_n130_relu_res_kn_factor\nidentity=1/"
    "x\nlibrary=kernels.so\nn=130\n"
    "op=contract_right\nresidual=1\nstored=kn\n";
constexpr const char* kCudaGemm =
    "pitc-plan 4\nactivation=relu\nbias=1\nclocks_sm_100=5,6,7,8\nclocks_sm_80=1,2,3,4\n"
    "dtype=float16\ngather=0\nidentity=1/x\nk=64\nkernel=gather_gemm_relu_res_f16\n"
    "library=kernels.so\nn=136\nop=gather_gemm\nresidual=1\nscatter=0\n";
constexpr const char* kChoose =
    "pitc-plan 4\nbudget=500\nchannels=3,64,8\nnodes=a%2Cb%0A%C3%A4,/conv-1._~\n"
    "op=choose_channels\nplaces=all,8,0\nweights=2,1\n";
constexpr const char* kDetect = "pitc-plan 4\nop=detect\nrank=2\n";

void ReadsEveryOperation() {
  const pitc::Plan gemm = ParsePlan(kGemm);
  const auto& g = std::get<pitc::ContractPlan>(gemm.body);
  CHECK(gemm.op == "gather_gemm" && gemm.kernel == "gather_gemm_k64_n130_relu" &&
        gemm.library == "kernels.so" && gemm.identity == "1/x");
  CHECK(g.product.k == 64 && g.product.n == 130 && g.product.bias);
  CHECK(g.gather && !g.residual && !g.scatter && !g.relu && !g.inner && !g.skips);
  const auto a = std::get<pitc::AttentionPlan>(ParsePlan(kAttention).body);
  CHECK(a.d == 8 && a.dv == 3 && a.heads == 2 && a.k_head == 2 && a.v_head == 4 && a.nan_to_zero &&
        !a.no_keys_to_zero && !a.bias && !a.whole);
  const std::string whole = With(kAttention, "v_head=4", "v_head=4\nwhole=1");
  CHECK(std::get<pitc::AttentionPlan>(ParsePlan(whole).body).whole);
  CHECK(a.scale == -0.1875);
  const auto p = std::get<pitc::MovePlan>(ParsePlan(kPack).body);
  CHECK(!p.unpack && p.word_bytes == 4 && p.dims.size() == 5 && p.dims[2].coordinate == 1);
  CHECK(p.dims[3].kind == pitc::DimUse::kOne && p.dims[4].kind == pitc::DimUse::kRest);
  const auto u = std::get<pitc::MovePlan>(
      ParsePlan(
          "pitc-plan 4\ndims=l,r\ndtype=int8\nkernel=unpack_b1\nidentity=1/x\nlibrary=k\nop=unpack")
          .body);
  CHECK(u.unpack && u.word_bytes == 1 && u.dims[0].kind == pitc::DimUse::kLinear);
  CHECK(std::get<pitc::DetectPlan>(ParsePlan(kDetect).body).rank == 2);
  CHECK(std::get<pitc::DetectPlan>(ParsePlan(kDetect).body).padding.empty());
  const auto detect = ParsePlan("pitc-plan 4\nop=detect\npadding=the%20mask\nrank=2\n");
  CHECK(std::get<pitc::DetectPlan>(detect.body).padding == "the mask");
}

void ReadsPlansForGpus() {
  const pitc::Plan gemm = ParsePlan(kCudaGemm, Machine::kCuda);
  const auto& g = std::get<pitc::ContractPlan>(gemm.body);
  CHECK(gemm.kernel == "gather_gemm_relu_res_f16" && g.type == pitc::Element::kFloat16);
  CHECK(g.clocks.size() == 2 && g.clocks[0].arch == 80 && g.clocks[1].arch == 100);
  CHECK(g.clocks[0].clocks == std::vector<int64_t>({1, 2, 3, 4}) && g.clocks[1].clocks[3] == 8);
  const auto kernel_of = [](const std::string& text) {
    return ParsePlan(text, Machine::kCuda).kernel;
  };
  const auto renamed = [](const std::string& text, const std::string& name) {
    return With(text, "kernel=gather_gemm_relu_res_f16", "kernel=gather_gemm_relu_res_" + name);
  };
  // Rows that begin anywhere: 132 numbers of 2 bytes.
  CHECK(kernel_of(renamed(With(kCudaGemm, "n=136", "n=132"), "loose_f16")) ==
        "gather_gemm_relu_res_loose_f16");
  CHECK(kernel_of(renamed(With(kCudaGemm, "dtype=float16", "dtype=bfloat16"), "bf16")) ==
        "gather_gemm_relu_res_bf16");
  std::string full = With(kCudaGemm, "clocks_sm_100=5,6,7,8", "");
  full = With(full, "clocks_sm_80=1,2,3,4", "clocks_sm_80=1,2,3,4,5,6");
  CHECK(kernel_of(renamed(With(With(full, "dtype=float16", "dtype=float32"), "n=136", "n=132"),
                          "f32")) == "gather_gemm_relu_res_f32");
  const std::string attention =
      With(kAttention, "kernel=attention_d8_v3", "kernel=attention_d8_v3_loose_f32");
  CHECK(kernel_of(attention) == "attention_d8_v3_loose_f32");
  CHECK(Contains(Error(With(attention, "v_head=4", "v_head=4\nwhole=1"), Machine::kCuda),
                 "plan: unknown key 'whole'"));
  CHECK(kernel_of(kPack) == "pack_b4");

  CHECK(Contains(Error(kCudaGemm), "plan: expected dtype as one of float32, got 'float16'"));
  CHECK(Contains(Error(kGemm, Machine::kCuda), "plan: key 'clocks_sm_..' is missing"));
  const auto refused = [](const std::string& old_line, const std::string& new_line) {
    return Error(With(kCudaGemm, old_line, new_line), Machine::kCuda);
  };
  CHECK(Contains(refused("bias=1", "bias=0"), "plan: expected bias=1 for a GPU"));
  CHECK(Contains(refused("clocks_sm_80=1,2,3,4", "clocks_sm_80=1,2,3"),
                 "plan: expected clocks_sm_80 as 4 numbers"));
  CHECK(Contains(refused("clocks_sm_80=1,2,3,4", "clocks_sm_080=1,2,3,4"),
                 "plan: unknown key 'clocks_sm_080'"));
  CHECK(
      Contains(refused("kernel=gather_gemm_relu_res_f16", "kernel=gather_gemm_relu_res_loose_f16"),
               "plan: expected kernel=gather_gemm_relu_res_f16 for these fields"));
  CHECK(Contains(Error(With(kGemm, "bias=1", "bias=1\nclocks_sm_80=1,2,3,4")),
                 "plan: unknown key 'clocks_sm_80'"));
  for (const std::string& text : {std::string(kDetect), kRight})
    CHECK(Contains(Error(text, Machine::kCuda),
                   "plan: expected op as one of pack, unpack, gather_gemm, contract, ffn, "
                   "attention, region, got"));
}

void ReadsWhatAttentionRoundsTo() {
  const auto attention = [](const std::string& text) {
    return std::get<pitc::AttentionPlan>(ParsePlan(text).body);
  };
  const std::string scores =
      With(kAttention, "kernel=attention_d8_v3", "kernel=attention_d8_v3_score_steps") +
      "score_above=0\nscore_below=65535\nscore_scale=-0x1.8p-3\nscore_step=0x1p-2\n";
  const std::string weights =
      With(kAttention, "kernel=attention_d8_v3", "kernel=attention_d8_v3_weight_steps") +
      "weight_above=255\nweight_step=0x1p-126\n";
  const pitc::AttentionPlan plain = attention(kAttention), of_scores = attention(scores),
                            of_weights = attention(weights);
  CHECK(!plain.score_steps && !plain.weight_steps && !of_scores.weight_steps);
  CHECK(of_scores.score_steps->step == 0.25 && of_scores.score_scale == -0.1875);
  CHECK(of_scores.score_steps->below == 65535 && of_scores.score_steps->above == 0);
  CHECK(!of_weights.score_steps && of_weights.weight_steps->above == 255);
  CHECK(of_weights.weight_steps->step > 0);

  CHECK(
      Contains(Error(With(scores, "kernel=attention_d8_v3_score_steps", "kernel=attention_d8_v3")),
               "_score_steps for these fields"));
  CHECK(Contains(Error(With(scores, "score_above=0", "")), "plan: key 'score_above' is missing"));
  CHECK(Contains(Error(With(scores, "score_below=65535", "score_below=65536")),
                 "plan: expected score_below in 0..65535"));
  CHECK(Contains(Error(With(scores, "score_above=0", "score_above=-1")),
                 "plan: expected score_above in 0..65535"));
  CHECK(Contains(Error(With(kAttention, "bias=0", "bias=0\nscore_above=1")),
                 "plan: unknown key 'score_above'"));
  CHECK(Contains(Error(weights + "weight_below=0\n"), "plan: unknown key 'weight_below'"));
  for (const char* bad : {"0x0p0", "-0x1p-2", "0x1p-127"}) {
    CHECK(Contains(Error(With(weights, "weight_step=0x1p-126", std::string("weight_step=") + bad)),
                   "plan: expected weight_step above 0, got"));
  }
  const std::string gpu =
      With(scores, "kernel=attention_d8_v3_score_steps", "kernel=attention_d8_v3_loose_f32");
  CHECK(Contains(Error(gpu, Machine::kCuda), "plan: unknown key 'score_above'"));
}

// A plan with prices for sm_80: the place of an offer, and three other numbers.
std::string CudaListed(const std::string& op, const std::string& fields, pitc::Element type) {
  const std::vector<const pitc::CudaOffer*> offers = pitc::OffersOf(type);
  std::string text =
      With(With(kCudaGemm, "op=gather_gemm", "op=" + op), "clocks_sm_100=5,6,7,8", "");
  for (size_t i = 0; i < offers.size(); ++i)
    text +=
        pitc::Text("price_", offers[i]->variant, "_", offers[i]->tile, "_sm_80=", i, ",0,7,9\n");
  return text + fields;
}

void ReadsContractionsOverZerosForGpus() {
  const auto plan_of = [](const std::string& text) {
    return std::get<pitc::ContractPlan>(ParsePlan(text, Machine::kCuda).body);
  };
  const std::string text = CudaListed("contract", "input_relu=0\n", pitc::Element::kFloat16);
  const pitc::ContractPlan contract = plan_of(text);
  CHECK(contract.skips && !contract.inner && contract.prices.size() == 1);
  CHECK(contract.prices[0].arch == 80 && contract.prices[0].prices.size() == 8);
  CHECK((contract.prices[0].prices[5] == std::array<int64_t, 4>{5, 0, 7, 9}));
  const pitc::ListedSymbols& symbols = contract.listed;
  CHECK(symbols.detect == "detect_f16" && symbols.choose == "choose_f16");
  CHECK(symbols.lists == "lists_f16" && symbols.products[1] == "contract_tile_relu_res_f16");
  // Lists hold what is read of A: its rows may begin anywhere.
  const pitc::ListedSymbols loose =
      plan_of(With(With(text, "k=64", "k=60"), "kernel=gather_gemm_relu_res_f16",
                   "kernel=gather_gemm_relu_res_loose_f16"))
          .listed;
  CHECK(loose.detect == "detect_loose_f16" && loose.lists == "lists_loose_f16");
  CHECK(loose.choose == "choose_f16" && loose.products[1] == "contract_tile_relu_res_f16" &&
        loose.products[2] == "contract_block_relu_res_f16" &&
        loose.products[3] == "contract_square_relu_res_loose_f16");
  const pitc::ListedSymbols wide =
      plan_of(With(With(text, "n=136", "n=132"), "kernel=gather_gemm_relu_res_f16",
                   "kernel=gather_gemm_relu_res_loose_f16"))
          .listed;
  CHECK(wide.detect == "detect_f16" && wide.products[2] == "contract_block_relu_res_loose_f16");

  const std::string ffn =
      CudaListed("ffn", "inner=24\ninner_activation=relu\ninner_bias=1\n", pitc::Element::kFloat16);
  CHECK(plan_of(ffn).inner_kernel == "gather_gemm_relu_bits_f16");
  CHECK(plan_of(ffn).listed.detect == "detect_bits_f16" && plan_of(ffn).inner->k == 24);
  CHECK(plan_of(With(ffn, "inner=24", "inner=20")).inner_kernel ==
        "gather_gemm_relu_bits_loose_f16");

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
  CHECK(ParsePlan(kContract).kernel == "gather_gemm_k64_n130_none_res_input_relu");
  CHECK(c.product.k == 64 && c.product.n == 130 && c.residual && c.scatter && !c.gather);
  CHECK(c.listed_suffix == "_k64_n130_none_res_input_relu" && c.relu && c.skips && !c.inner);
  for (int v = 0; v < pitc::kVariants; ++v) {
    const auto variant = static_cast<pitc::Variant>(v);
    CHECK(c.costs_v3.lines[v].offered ==
          (variant == pitc::Variant::kDense || variant == pitc::Variant::kTile8));
    CHECK(c.costs_v4.lines[v].offered == (variant == pitc::Variant::kDense));
  }
  const auto& dense = c.costs_v3.lines[0];
  const auto& tile = c.costs_v3.lines[static_cast<int>(pitc::Variant::kTile8)];
  for (int f = 0; f < pitc::kFeatures; ++f) {
    CHECK(dense.prices[f] == (f == 7 ? int64_t{1} << 50 : f));
    CHECK(tile.prices[f] == 7 - f);
    CHECK(c.costs_v4.lines[0].prices[f] == 0);
  }

  const auto ffn = std::get<pitc::ContractPlan>(ParsePlan(kFfn).body);
  CHECK(ffn.inner && ffn.inner->k == 7 && ffn.inner->n == 64 && ffn.inner->bias && ffn.gather);
  CHECK(ffn.inner_kernel == "gather_gemm_k7_n64_relu_bits" && !ffn.relu && ffn.skips);
  CHECK(ffn.listed_suffix == "_k64_n130_none");
  CHECK(ffn.product.k == 64 && ffn.product.n == 130 && ffn.product.bias && !ffn.residual);
  CHECK(ffn.costs_v4.lines[static_cast<int>(pitc::Variant::kRow)].prices[1] == 6);
}

void ReadsRightOperands() {
  const pitc::Plan plan = ParsePlan(kRight);
  const auto& right = std::get<pitc::ContractPlan>(plan.body);
  CHECK(plan.kernel == "gather_gemm_k64_n130_relu_res_kn_factor" && right.factor);
  CHECK(right.order == pitc::Order::kKN && !right.relu && !right.inner && right.skips);
  CHECK(right.listed_suffix == "_k64_n128_none" && right.swrite_suffix == "_n130_relu_res");
  CHECK(right.product.k == 64 && right.product.n == 130 && right.product.bias);
  CHECK(right.residual && !right.gather && !right.scatter);
  const auto& lines = right.costs_v4.lines;
  CHECK(lines[static_cast<int>(pitc::Variant::kRow)].prices[1] == 6);
  CHECK(lines[0].offered && !lines[static_cast<int>(pitc::Variant::kTile8)].offered);

  CHECK(right.rows_kernel == "stored_rows_k64_n130_kn_factor" && !right.mask);
  const auto mask =
      std::get<pitc::ContractPlan>(ParsePlan(With(kRight, "factor=1", "factor=2")).body);
  CHECK(mask.rows_kernel == "stored_rows_k64_n130_kn_mask" && mask.factor && mask.mask);

  std::string text = With(kRight, "factor=1", "factor=0");
  text = With(text, "stored=kn", "stored=nk");
  text = With(With(text, "residual=1", "residual=0"), "activation=relu", "activation=gelu_tanh");
  text = With(text, "kernel=gather_gemm_k64_n130_relu_res_kn_factor",
              "kernel=gather_gemm_k64_n130_gelu_tanh_nk");
  const auto other = std::get<pitc::ContractPlan>(ParsePlan(text).body);
  CHECK(!other.factor && other.order == pitc::Order::kNK &&
        other.swrite_suffix == "_n130_gelu_tanh");
}

void RefusesRightOperands() {
  for (const char* line :
       {"activation=relu", "bias=1", "factor=1", "k=64", "library=kernels.so", "n=130",
        "residual=1", "stored=kn", "kernel=gather_gemm_k64_n130_relu_res_kn_factor"}) {
    const std::string key(line, strchr(line, '='));
    CHECK(Contains(Error(With(kRight, line, "")), "key '" + key + "' is missing"));
  }
  for (const char* key : {"gather", "scatter", "input_relu", "inner", "cost_dense"}) {
    CHECK(Contains(Error(With(kRight, "k=64", std::string("k=64\n") + key + "=0")),
                   std::string("unknown key '") + key + "' for op 'contract_right'"));
  }
  for (const char* bad : {"", "k", "xx", "KN", "kn "}) {
    CHECK(Contains(Error(With(kRight, "stored=kn", std::string("stored=") + bad)),
                   std::string("expected stored as one of kn, nk, got '") + bad + "'"));
  }
  CHECK(Contains(Error(With(kRight, "factor=1", "factor=3")), "expected factor in 0..2"));
  for (const char* kernel :
       {"contract_row_k64_n128_none", "swrite_columns_n130_relu_res", "gather_gemm_k64_n130_relu",
        "gather_gemm_k64_n130_relu_res", "gather_gemm_k64_n128_relu_res_kn_factor",
        "gather_gemm_k64_n130_relu_res_nk_factor", "gather_gemm_k64_n130_relu_res_kn",
        "gather_gemm_k64_n130_relu_res_kn_factor_bits"}) {
    CHECK(Contains(
        Error(With(kRight, "kernel=gather_gemm_k64_n130_relu_res_kn_factor",
                   std::string("kernel=") + kernel)),
        "expected kernel=gather_gemm_k64_n130_relu_res_kn_factor for these fields, got '"));
  }
  for (const char* of_right : {"factor=1", "stored=kn"}) {
    CHECK(Contains(Error(With(kContract, "k=64", std::string("k=64\n") + of_right)),
                   "for op 'contract'"));
  }
}

void RefusesPrices() {
  const std::string key = "cost_tile8_v3=", line = key + kFalling;
  const auto refuses = [&](const std::string& bad) {
    CHECK(Contains(Error(With(kContract, line, key + bad)),
                   "expected cost_tile8_v3 as 8 numbers in 0..1125899906842624, got '"));
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
                 "unknown key 'cost_row_v4' for op 'gather_gemm'"));
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
  for (const pitc::CostTable* table : {&contract.costs_v3, &contract.costs_v4}) {
    for (int v = 0; v < pitc::kVariants; ++v) {
      const auto& line = table->lines[v];
      const bool tile = table == &contract.costs_v3 && v == static_cast<int>(pitc::Variant::kTile8);
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
    CHECK(Contains(error(key + bad), "expected shape_tile8_v3 as 35 numbers in 0..10000, got '"));
  }
  for (const char* bad : {"shape_row_v3", "shape_tile8_v4", "shape_tile8_v5", "shape_tile8"}) {
    CHECK(Contains(error(std::string(bad) + "=" + Factors("1")),
                   std::string("unknown key '") + bad + "' for op 'contract'"));
  }
}

void ReadsChannels() {
  const pitc::Plan plan = ParsePlan(kChoose);
  const auto& choose = std::get<pitc::ChooseChannelsPlan>(plan.body);
  CHECK(plan.kernel.empty() && plan.library.empty());
  CHECK(choose.convolutions.size() == 2 && choose.ends.size() == 3);
  CHECK(choose.convolutions[0].node == "a,b\n\xc3\xa4" && choose.convolutions[0].weight == 2);
  CHECK(choose.convolutions[1].node == "/conv-1._~" && choose.convolutions[1].weight == 1);
  const int64_t extents[] = {3, 64, 8}, places[] = {-1, 8, 0};
  for (size_t k = 0; k < 3; ++k)
    CHECK(choose.ends[k].extent == extents[k] && choose.ends[k].place == places[k]);
  CHECK(choose.flags == 72 && choose.budget == 500 && choose.work == 2 * 3 * 64 + 64 * 8);

  const std::string longest = std::string(999, 'n') + "%FF";
  const auto other = std::get<pitc::ChooseChannelsPlan>(
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
        std::string("%gg"), std::string("%41,a"), std::string("%2F,a"), std::string("a,\xc3\xa4"),
        long_one, long_one + ",a", std::string(1000, 'n') + "%FF"}) {
    CHECK(Contains(error(nodes, "nodes=" + bad),
                   "expected nodes as at most 16 names of 1..1000 bytes, other bytes than letters, "
                   "digits and -._~/ as %XX, got '"));
  }
  std::string many = "nodes=n";
  for (int i = 1; i < 17; ++i) many += ",n";
  CHECK(Contains(error(nodes, many), "expected nodes as at most 16 names"));
  CHECK(Contains(error(nodes, many.substr(0, many.size() - 2)), "expected channels as 17 numbers"));
  for (const char* bad : {"", "all", "all,8", "all,8,0,", "all,8,0,all", "All,8,0", "-1,8,0",
                          "all,08,0", "all,,0", ",8,0", "all,8,16777217"}) {
    CHECK(Contains(error("places=all,8,0", std::string("places=") + bad),
                   "expected places as 3 of all and numbers in 0..16777216, got '"));
  }
  for (const char* bad : {"", "3,64", "3,64,8,1", "3,64,-1", "3,64,16777217", "3,64,all"}) {
    CHECK(Contains(error("channels=3,64,8", std::string("channels=") + bad),
                   "expected channels as 3 numbers in 0..16777216, got '"));
  }
  for (const char* bad : {"", "2", "2,1,1", "2,-1", "2,4611686018427387905"}) {
    CHECK(Contains(error("weights=2,1", std::string("weights=") + bad),
                   "expected weights as 2 numbers in 0..4611686018427387904, got '"));
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
    CHECK(Contains(error("budget=500", std::string("budget=") + bad), "expected budget in 0..896"));
  CHECK(error("budget=500", "budget=896").empty());
  CHECK(Contains(error("budget=500", "budget=500\nkernel=k"), "unknown key 'kernel' for op"));
}

void RefusesOtherText() {
  CHECK(Contains(Error(""), "expected the line 'pitc-plan 4'"));
  CHECK(Contains(Error("pitc-plan 2\nop=detect\nrank=2\n"),
                 "got 'pitc-plan 2'; compile the model again"));
  CHECK(Contains(Error(std::string("pitc-plan 4\nop=detect\nrank=2\n\0", 31)), "key=value"));
  CHECK(Contains(Error("pitc-plan 4\r\nop=detect\nrank=2\n"), "got 'pitc-plan 4?'"));
  CHECK(Contains(Error("pitc-plan 4\n\nop=detect\nrank=2\n"), "key=value"));
  CHECK(Contains(Error("pitc-plan 4\n=x\nop=detect\nrank=2\n"), "key=value"));
  CHECK(Contains(Error("pitc-plan 4\nop=dance\n"), "'dance'"));
  CHECK(Contains(Error(With(kGemm, "dtype=float32", "dtype=float16")),
                 "expected dtype as one of float32, got 'float16'"));
  CHECK(Contains(Error(With(kPack, "dtype=int32", "dtype=int8")), "expected kernel=pack_b1"));
  CHECK(Contains(Error(std::string(kDetect) + std::string(70000, 'x')), "at most 65536 bytes"));
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
                          "0x1p99999", "1p3"}) {
    CHECK(Contains(Error(With(kAttention, "scale=-0x1.8p-3", std::string("scale=") + bad)),
                   "hexadecimal float"));
  }
  for (const char* bad : {"", "r", "0,r", "c0,c0", "l,l", "c8", "c", "c00", "x", "c0,", ",c0",
                          "c0,,r", "c0 ,r", "c0,r,r,r,r,r,r,r,r,r,r,r,r"}) {
    CHECK(Contains(Error(With(kPack, "dims=c0,r,c1,0,r", std::string("dims=") + bad)),
                   "expected dims as"));
  }
  for (const char* bad :
       {"", ".", "..", ".hidden", "a/b", "/etc/x", "../x", "a b", "a\x01", "\xc3\xa4"}) {
    CHECK(Contains(Error(With(kPack, "library=k.so", std::string("library=") + bad)),
                   "bare file name"));
  }
  for (const char* bad : {"", "1", "x/1", "/1", "0/x", "2/x", "01/x", "1/x y", "1/x\\y"}) {
    const std::string error = Error(With(kPack, "identity=1/x", std::string("identity=") + bad));
    CHECK(Contains(error, "expected identity as 1/.., got '") &&
          Contains(error, "compile the model again"));
  }
  CHECK(Error(With(kPack, "identity=1/x", "identity=1/pitc-0.1.0/tvm-0.2+a_b/00ff")).empty());
  CHECK(Contains(Error(With(kPack, "identity=1/x", "")), "key 'identity' is missing"));
  CHECK(Contains(Error(With(kGemm, "activation=relu", "activation=swish")),
                 "one of none, relu, gelu, gelu_tanh, gelu_quick, silu, got 'swish'"));
  CHECK(Contains(Error(With(kDetect, "rank=2", "rank=9")), "expected rank in 1..8"));
  const std::string longer(1001, 'a');
  for (const std::string& name :
       {std::string(), std::string("a b"), std::string("a%2"), std::string("a%61"), longer})
    CHECK(Contains(Error(kDetect + ("padding=" + name + "\n")), "expected padding as a name of"));
}

void RefusesAnotherKernel() {
  CHECK(Contains(
      Error(With(kGemm, "kernel=gather_gemm_k64_n130_relu", "kernel=gather_gemm_k64_n130_none")),
      "expected kernel=gather_gemm_k64_n130_relu"));
  // The kernels of lists have the same suffix; it is the dense one that a plan names.
  CHECK(Contains(Error(With(kContract, "kernel=gather_gemm_k64_n130_none_res_input_relu",
                            "kernel=contract_row_k64_n130_none_res_input_relu")),
                 "expected kernel=gather_gemm_k64_n130_none_res_input_relu"));
  CHECK(Contains(Error(With(kFfn, "inner_activation=relu", "inner_activation=gelu")),
                 "expected inner_activation as one of relu, got 'gelu'"));
  CHECK(Contains(Error(With(kContract, "input_relu=1", "")), "key 'input_relu' is missing"));
  CHECK(Contains(Error(With(kContract, "input_relu=1", "input_relu=0")),
                 "expected kernel=gather_gemm_k64_n130_none_res for"));
  CHECK(Contains(Error(With(kFfn, "inner=7", "inner=7\ninput_relu=0")),
                 "unknown key 'input_relu' for op 'ffn'"));
  CHECK(Contains(Error(With(kFfn, "inner=7", "")), "key 'inner' is missing"));
  CHECK(Contains(Error(With(kFfn, "inner=7", "inner=0")), "expected inner in 1..16777216"));
  CHECK(Contains(Error(With(kFfn, "inner_bias=1", "inner_bias=2")), "expected inner_bias in 0..1"));
  CHECK(Contains(Error(With(kContract, "k=64", "k=64\ninner=7")),
                 "unknown key 'inner' for op 'contract'"));
  CHECK(Contains(Error(With(kGemm, "residual=0", "residual=1")),
                 "expected kernel=gather_gemm_k64_n130_relu_res"));
  CHECK(Contains(Error(With(kPack, "kernel=pack_b4", "kernel=unpack_b4")),
                 "expected kernel=pack_b4"));
}

}  // namespace

int main() {
  return pitc::test::RunTests(
      {{"reads every operation", ReadsEveryOperation},
       {"reads plans for GPUs", ReadsPlansForGpus},
       {"reads what attention rounds to", ReadsWhatAttentionRoundsTo},
       {"reads contractions over zeros for GPUs", ReadsContractionsOverZerosForGpus},
       {"reads prices", ReadsPrices},
       {"reads right operands", ReadsRightOperands},
       {"refuses right operands", RefusesRightOperands},
       {"refuses prices", RefusesPrices},
       {"reads factors", ReadsFactors},
       {"refuses factors", RefusesFactors},
       {"reads channels", ReadsChannels},
       {"refuses channels", RefusesChannels},
       {"refuses other text", RefusesOtherText},
       {"refuses unknown, missing and double keys", RefusesKeys},
       {"refuses bad values", RefusesValues},
       {"refuses a kernel of other fields", RefusesAnotherKernel}});
}

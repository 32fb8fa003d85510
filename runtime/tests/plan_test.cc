#include "plan.h"

#include <cmath>

#include "check.h"
#include "failure.h"

using pitc::ParsePlan;
using pitc::test::Contains;
using pitc::test::Thrown;

namespace {

constexpr const char* kGemm =
    "pitc-plan "
    "1\nactivation=relu\nbias=1\ngather=1\nk=64\nkernel=gather_gemm_k64_n130_relu\nlibrary=kernels."
    "so\nn=130\n"
    "op=gather_gemm\nresidual=0\nscatter=0\n";
constexpr const char* kAttention =
    "pitc-plan "
    "1\nbias=0\nd=8\ndv=3\nheads=2\nk_head=2\nkernel=attention_d8_v3\nlibrary=kernels.so\nnan_to_"
    "zero=1\n"
    "op=attention\nq_head=0\nscale=-0x1.8p-3\nv_head=4\n";
constexpr const char* kPack =
    "pitc-plan 1\ndims=c0,r,c1,0,r\nkernel=pack_b4\nlibrary=k.so\nop=pack\n";
constexpr const char* kDetect = "pitc-plan 1\nop=detect\nrank=2\n";

std::string With(const std::string& text, const std::string& old_line,
                 const std::string& new_line) {
  const size_t at = text.find("\n" + old_line + "\n");
  CHECK(at != text.npos);
  return text.substr(0, at + 1) + new_line +
         text.substr(at + 1 + old_line.size() + (new_line.empty() ? 1 : 0));
}

std::string Error(const std::string& text) {
  return Thrown([&] { ParsePlan(text); });
}

void ReadsEveryOperation() {
  const pitc::Plan gemm = ParsePlan(kGemm);
  const auto& g = std::get<pitc::GatherGemmPlan>(gemm.body);
  CHECK(gemm.op == "gather_gemm" && gemm.kernel == "gather_gemm_k64_n130_relu" &&
        gemm.library == "kernels.so");
  CHECK(g.k == 64 && g.n == 130 && g.bias && g.gather && !g.residual && !g.scatter);
  const auto a = std::get<pitc::AttentionPlan>(ParsePlan(kAttention).body);
  CHECK(a.d == 8 && a.dv == 3 && a.heads == 2 && a.k_head == 2 && a.v_head == 4 && a.nan_to_zero &&
        !a.bias);
  CHECK(a.scale == -0.1875);
  const auto p = std::get<pitc::MovePlan>(ParsePlan(kPack).body);
  CHECK(!p.unpack && p.word_bytes == 4 && p.dims.size() == 5 && p.dims[2].coordinate == 1);
  CHECK(p.dims[3].kind == pitc::DimUse::kOne && p.dims[4].kind == pitc::DimUse::kRest);
  const auto u = std::get<pitc::MovePlan>(
      ParsePlan("pitc-plan 1\ndims=l,r\nkernel=unpack_b1\nlibrary=k\nop=unpack").body);
  CHECK(u.unpack && u.word_bytes == 1 && u.dims[0].kind == pitc::DimUse::kLinear);
  CHECK(std::get<pitc::DetectPlan>(ParsePlan(kDetect).body).rank == 2);
}

void RefusesOtherText() {
  CHECK(Contains(Error(""), "expected the line 'pitc-plan 1'"));
  CHECK(Contains(Error("pitc-plan 2\nop=detect\nrank=2\n"), "got 'pitc-plan 2'"));
  CHECK(Contains(Error(std::string("pitc-plan 1\nop=detect\nrank=2\n\0", 31)), "key=value"));
  CHECK(Contains(Error("pitc-plan 1\r\nop=detect\nrank=2\n"), "got 'pitc-plan 1?'"));
  CHECK(Contains(Error("pitc-plan 1\n\nop=detect\nrank=2\n"), "key=value"));
  CHECK(Contains(Error("pitc-plan 1\n=x\nop=detect\nrank=2\n"), "key=value"));
  CHECK(Contains(Error("pitc-plan 1\nop=dance\n"), "'dance'"));
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
  CHECK(Contains(Error(With(kGemm, "activation=relu", "activation=swish")),
                 "one of none, relu, gelu, gelu_tanh, gelu_quick, silu, got 'swish'"));
  CHECK(Contains(Error(With(kDetect, "rank=2", "rank=9")), "expected rank in 1..8"));
}

void RefusesAnotherKernel() {
  CHECK(Contains(
      Error(With(kGemm, "kernel=gather_gemm_k64_n130_relu", "kernel=gather_gemm_k64_n130_none")),
      "expected kernel=gather_gemm_k64_n130_relu"));
  CHECK(Contains(Error(With(kGemm, "residual=0", "residual=1")),
                 "expected kernel=gather_gemm_k64_n130_relu_res"));
  CHECK(Contains(Error(With(kPack, "kernel=pack_b4", "kernel=unpack_b4")),
                 "expected kernel=pack_b4"));
}

}  // namespace

int main() {
  return pitc::test::RunTests({{"reads every operation", ReadsEveryOperation},
                               {"refuses other text", RefusesOtherText},
                               {"refuses unknown, missing and double keys", RefusesKeys},
                               {"refuses bad values", RefusesValues},
                               {"refuses a kernel of other fields", RefusesAnotherKernel}});
}

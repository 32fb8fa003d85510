#include "plan/plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include "base/failure.h"

namespace pitc {
namespace {

using namespace std::string_view_literals;

constexpr size_t kLongestPlan = 1 << 16;
constexpr size_t kLongestName = 200;
constexpr size_t kMostDims = 12;
constexpr int kMostCoordinates = 8;
constexpr int64_t kLargestExtent = 1 << 24;
constexpr int64_t kLargestHead = 1 << 16;
constexpr int64_t kHighestPrice = int64_t{1} << 50;  // femtoseconds: 18 minutes
constexpr int64_t kMostWork = int64_t{1} << 62;
constexpr size_t kMostConvolutions = 16;
constexpr size_t kLongestNode = 1000;  // bytes
constexpr int64_t kMostClocks = 1 << 30;
constexpr int64_t kHighestArch = 999;
constexpr int64_t kChunkBytes = 16;  // that a GPU's thread copies at a time

bool IsLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// The fields of one plan. Every read marks its key as known, so that what is left over is unknown.
class Fields {
 public:
  explicit Fields(std::string_view text) {
    if (text.size() > kLongestPlan)
      Fail("plan: expected at most ", kLongestPlan, " bytes, got ", text.size());
    if (!text.empty() && text.back() == '\n') text.remove_suffix(1);
    std::string_view first = NextLine(&text);
    if (first != kPlanFormat) {
      Fail("plan: expected the line '", kPlanFormat, "', got ", Quoted(first),
           "; compile the model again for this version of pitc");
    }
    while (!text.empty()) {
      std::string_view line = NextLine(&text);
      size_t equals = line.find('=');
      if (equals == 0 || equals == line.npos) Fail("plan: expected key=value, got ", Quoted(line));
      auto [at, fresh] = fields_.emplace(line.substr(0, equals), Field{line.substr(equals + 1)});
      if (!fresh) Fail("plan: key ", Quoted(at->first), " stands twice");
    }
  }

  std::string_view Raw(std::string_view key) {
    auto at = fields_.find(key);
    if (at == fields_.end()) Fail("plan: key '", key, "' is missing");
    at->second.known = true;
    return at->second.value;
  }

  bool Has(std::string_view key) const { return fields_.count(key) != 0; }

  // Of the keys BEGINNING<n> the numbers, ascending.
  std::vector<int64_t> NumbersBehind(std::string_view beginning, int64_t most) const {
    std::vector<int64_t> found;
    for (const auto& [key, field] : fields_) {
      int64_t number = 0;
      const bool begins = key.substr(0, beginning.size()) == beginning;
      if (begins && ReadInt(key.substr(beginning.size()), 0, most, &number))
        found.push_back(number);
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  int64_t Int(std::string_view key, int64_t least, int64_t most) {
    std::string_view text = Raw(key);
    int64_t value = 0;
    if (!ReadInt(text, least, most, &value))
      Fail("plan: expected ", key, " in ", least, "..", most, ", got ", Quoted(text));
    return value;
  }

  // `count` numbers in 0..most, with commas between them.
  std::vector<int64_t> Ints(std::string_view key, size_t count, int64_t most) {
    return Numbers(key, count, most, false);
  }
  // The same, or `all`, which is -1.
  std::vector<int64_t> Places(std::string_view key, size_t count, int64_t most) {
    return Numbers(key, count, most, true);
  }

  bool Flag(std::string_view key) { return Int(key, 0, 1) != 0; }

  // C hexadecimal form with a sign, `0x` and an exponent, as Python's float.hex() writes it.
  double Hex(std::string_view key) {
    std::string_view text = Raw(key), digits = text;
    bool negative = !digits.empty() && digits[0] == '-';
    if (negative) digits.remove_prefix(1);
    double value = 0;
    bool whole = digits.size() > 2 && digits[0] == '0' && digits[1] == 'x' && digits[2] != '-';
    if (whole) {
      const char* last = digits.data() + digits.size();
      auto [end, error] = std::from_chars(digits.data() + 2, last, value, std::chars_format::hex);
      whole = error == std::errc() && end == last && std::isfinite(value);
    }
    if (!whole) Fail("plan: expected ", key, " as a hexadecimal float, got ", Quoted(text));
    return negative ? -value : value;
  }

  std::string Word(std::string_view key, const std::vector<std::string_view>& choices) {
    std::string_view text = Raw(key);
    std::string all;
    for (std::string_view choice : choices) {
      if (text == choice) return std::string(text);
      all += (all.empty() ? "" : ", ") + std::string(choice);
    }
    Fail("plan: expected ", key, " as one of ", all, ", got ", Quoted(text));
  }

  // A bare file name: letters, digits, '_', '-' and '.', not hidden.
  std::string FileName(std::string_view key) {
    std::string_view text = Raw(key);
    bool good = !text.empty() && text.size() <= kLongestName && text[0] != '.';
    for (char c : text) good = good && (IsLetterOrDigit(c) || c == '_' || c == '-' || c == '.');
    if (!good) Fail("plan: expected ", key, " as a bare file name, got ", Quoted(text));
    return std::string(text);
  }

  // The identity of a kernel library: `ABI/..`, letters, digits and ".+-_/".
  std::string Identity(std::string_view key) {
    std::string_view text = Raw(key);
    bool good = text.size() <= kLongestName;
    for (char c : text) good = good && (IsLetterOrDigit(c) || ".+-_/"sv.find(c) != text.npos);
    const size_t slash = text.find('/');
    int64_t abi = 0;
    good = good && slash != text.npos && ReadInt(text.substr(0, slash), 0, kKernelAbi, &abi);
    if (!good || abi != kKernelAbi) {
      Fail("plan: expected ", key, " as ", kKernelAbi, "/.., got ", Quoted(text),
           "; compile the model again for this version of pitc");
    }
    return std::string(text);
  }

  // Names of nodes, with commas between them. Bytes that are no letters, digits or one of "-._~/"
  // stand as %XX.
  std::vector<std::string> Nodes(std::string_view key) {
    const std::string_view text = Raw(key);
    std::vector<std::string> names;
    const bool good = ReadList(text, [&](std::string_view part) {
      return names.size() < kMostConvolutions && ReadNode(part, &names.emplace_back());
    });
    if (!good) {
      Fail("plan: expected ", key, " as at most ", kMostConvolutions, " names of 1..", kLongestNode,
           " bytes, other bytes than letters, digits and -._~/ as %XX, got ", Quoted(text));
    }
    return names;
  }

  std::vector<DimUse> Dims(std::string_view key) {
    const std::string_view text = Raw(key);
    std::vector<DimUse> dims;
    unsigned seen = 0;  // bit per coordinate, and one for the linear number
    const bool good = ReadList(text, [&](std::string_view part) {
      unsigned bit = 0;
      if (part == "r" || part == "0") {
        dims.push_back({part == "r" ? DimUse::kRest : DimUse::kOne});
      } else if (part == "l") {
        dims.push_back({DimUse::kLinear});
        bit = 1u << kMostCoordinates;
      } else {
        const int c = part.size() == 2 && part[0] == 'c' ? part[1] - '0' : -1;
        if (c < 0 || c >= kMostCoordinates) return false;
        dims.push_back({DimUse::kCoordinate, c});
        bit = 1u << c;
      }
      const bool fresh = !(seen & bit);
      seen |= bit;
      return fresh && dims.size() <= kMostDims;
    });
    if (!good || !seen) {
      Fail("plan: expected ", key, " as at most ", kMostDims, " of c0..c", kMostCoordinates - 1,
           ", l (each at most once, one at least), 0 and r, got ", Quoted(text));
    }
    return dims;
  }

  void ExpectNoOthers(std::string_view op) const {
    for (const auto& [key, field] : fields_) {
      if (!field.known) Fail("plan: unknown key ", Quoted(key), " for op '", op, "'");
    }
  }

 private:
  struct Field {
    std::string_view value;
    bool known = false;
  };

  // Calls read(part) for each part of a text with commas between them, until it says no; whether it
  // never did.
  template <class Read>
  static bool ReadList(std::string_view text, const Read& read) {
    for (size_t comma = 0; comma != text.npos;) {
      comma = text.find(',');
      if (!read(text.substr(0, comma))) return false;
      if (comma != text.npos) text.remove_prefix(comma + 1);
    }
    return true;
  }

  std::vector<int64_t> Numbers(std::string_view key, size_t count, int64_t most, bool all) {
    const std::string_view text = Raw(key);
    std::vector<int64_t> numbers;
    const bool good = ReadList(text, [&](std::string_view part) {
      int64_t& number = numbers.emplace_back(-1);
      return numbers.size() <= count && ((all && part == "all") || ReadInt(part, 0, most, &number));
    });
    if (!good || numbers.size() != count) {
      Fail("plan: expected ", key, " as ", count, all ? " of all and" : "", " numbers in 0..", most,
           ", got ", Quoted(text));
    }
    return numbers;
  }

  // Decimal digits and nothing else, no leading 0.
  static bool ReadInt(std::string_view text, int64_t least, int64_t most, int64_t* value) {
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
    bool whole = error == std::errc() && end == text.data() + text.size() && text[0] != '-';
    return whole && *value >= least && *value <= most && (text.size() == 1 || text[0] != '0');
  }

  static int HexDigit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  }

  // Only what has to stands as %XX, so that a name has one text.
  static bool ReadNode(std::string_view text, std::string* name) {
    const auto is_plain = [](char c) {
      return IsLetterOrDigit(c) || std::string_view("-._~/").find(c) != std::string_view::npos;
    };
    while (!text.empty() && name->size() < kLongestNode) {
      char c = text[0];
      size_t taken = 1;
      if (!is_plain(c)) {
        const bool escaped = c == '%' && text.size() >= 3;
        const int high = escaped ? HexDigit(text[1]) : -1, low = escaped ? HexDigit(text[2]) : -1;
        if (high < 0 || low < 0) return false;
        c = static_cast<char>(16 * high + low);
        if (is_plain(c)) return false;
        taken = 3;
      }
      *name += c;
      text.remove_prefix(taken);
    }
    return text.empty() && !name->empty();
  }

  static std::string_view NextLine(std::string_view* text) {
    size_t end = text->find('\n');
    std::string_view line = text->substr(0, end);
    text->remove_prefix(end == text->npos ? text->size() : end + 1);
    return line;
  }

  std::map<std::string_view, Field> fields_;
};

// One reader per operation: it sets the body and returns the symbol of its kernel, "" without one.

std::string ReadDetect(Fields& in, Machine, Plan* plan) {
  plan->body = DetectPlan{static_cast<int>(in.Int("rank", 1, kMostCoordinates))};
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
  plan->body = p;
  const std::string suffix = machine == Machine::kCuda ? CudaSuffix(p.type, {p.d, p.dv}) : "";
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

constexpr struct {
  std::string_view op;
  std::string (*read)(Fields&, Machine, Plan*);
  bool on_gpus = false;
} kOps[] = {{"detect", ReadDetect},
            {"pack", ReadMove, true},
            {"unpack", ReadMove, true},
            {"gather_gemm", ReadContract, true},
            {"contract", ReadContract, true},
            {"ffn", ReadContract, true},
            {"contract_right", ReadContract},
            {"attention", ReadAttention, true},
            {"choose_channels", ReadChooseChannels}};

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
    if (machine == Machine::kCpu || entry.on_gpus) names.push_back(entry.op);
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

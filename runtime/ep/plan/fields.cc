#include "plan/fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/failure.h"
#include "machines.h"

namespace pitc {
namespace {

constexpr size_t kLongestName = 200;
constexpr size_t kLongestNode = 1000;  // bytes
constexpr size_t kMostDims = 12;

bool IsLetterOrDigit(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

// True where a text is made of letters, digits and others.
bool IsMadeOf(std::string_view text, std::string_view others) {
  return std::all_of(text.begin(), text.end(),
                     [&](char c) { return IsLetterOrDigit(c) || others.find(c) != others.npos; });
}

std::string_view NextLine(std::string_view* text) {
  size_t end = text->find('\n');
  std::string_view line = text->substr(0, end);
  text->remove_prefix(end == text->npos ? text->size() : end + 1);
  return line;
}

// Calls read(part) for each part of a text with commas between them, until it says no; whether it
// never did.
template <class Read>
bool ReadList(std::string_view text, const Read& read) {
  for (size_t comma = 0; comma != text.npos;) {
    comma = text.find(',');
    if (!read(text.substr(0, comma))) return false;
    if (comma != text.npos) text.remove_prefix(comma + 1);
  }
  return true;
}

// Decimal digits and nothing else, no leading 0.
bool ReadInt(std::string_view text, int64_t least, int64_t most, int64_t* value) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  bool whole = error == std::errc() && end == text.data() + text.size() && text[0] != '-';
  return whole && *value >= least && *value <= most && (text.size() == 1 || text[0] != '0');
}

int HexDigit(char c) {
  return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Only what has to stands as %XX, so that a name has one text.
bool ReadName(std::string_view text, std::string* name) {
  constexpr std::string_view kPlain = "-._~/";
  while (!text.empty() && name->size() < kLongestNode) {
    char c = text[0];
    size_t taken = 1;
    if (!IsMadeOf(text.substr(0, 1), kPlain)) {
      const bool escaped = c == '%' && text.size() >= 3;
      const int high = escaped ? HexDigit(text[1]) : -1, low = escaped ? HexDigit(text[2]) : -1;
      if (high < 0 || low < 0) return false;
      c = static_cast<char>(16 * high + low);
      if (IsMadeOf({&c, 1}, kPlain)) return false;
      taken = 3;
    }
    *name += c;
    text.remove_prefix(taken);
  }
  return text.empty() && !name->empty();
}

const char* Told(Machine machine) { return machine == Machine::kCuda ? "a GPU" : "a CPU"; }

}  // namespace

const std::string& KernelNames::Of(std::string_view role) const {
  const auto at = names_.find(role);
  if (at == names_.end()) Fail("plan: expected a kernel for '", role, "' in kernels, got none");
  return at->second;
}

Fields::Fields(std::string_view text, Machine machine) : machine_(machine) {
  while (!text.empty()) {
    std::string_view line = NextLine(&text);
    size_t equals = line.find('=');
    if (equals == 0 || equals == line.npos) Fail("plan: expected key=value, got ", Quoted(line));
    auto [at, fresh] = fields_.emplace(line.substr(0, equals), Field{line.substr(equals + 1)});
    if (!fresh) Fail("plan: key ", Quoted(at->first), " stands twice");
  }
}

void Fields::EnterStep(int step) { step_ = step < 0 ? "" : Text("step", step, "."); }

std::string_view Fields::Raw(std::string_view key) {
  auto at = fields_.find(Full(key));
  if (at == fields_.end()) Fail("plan: key '", Full(key), "' is missing");
  at->second.known = true;
  return at->second.value;
}

std::vector<int64_t> Fields::NumbersBehind(std::string_view beginning, int64_t most) const {
  std::vector<int64_t> found;
  const std::string full = Full(beginning);
  for (const auto& [key, field] : fields_) {
    int64_t number = 0;
    const bool begins = key.substr(0, full.size()) == full;
    if (begins && ReadInt(key.substr(full.size()), 1, most, &number)) found.push_back(number);
  }
  std::sort(found.begin(), found.end());
  return found;
}

int64_t Fields::Int(std::string_view key, int64_t least, int64_t most) {
  std::string_view text = Raw(key);
  int64_t value = 0;
  if (!ReadInt(text, least, most, &value))
    Fail("plan: expected ", Full(key), " in ", least, "..", most, ", got ", Quoted(text));
  return value;
}

std::vector<int64_t> Fields::Ints(std::string_view key, int64_t least, int64_t most) {
  return Numbers(key, least, most, false);
}

std::vector<int64_t> Fields::Places(std::string_view key, int64_t most) {
  return Numbers(key, 0, most, true);
}

std::vector<int64_t> Fields::Numbers(std::string_view key, int64_t least, int64_t most, bool all) {
  const std::string_view text = Raw(key);
  std::vector<int64_t> numbers;
  if (!ReadList(text, [&](std::string_view part) {
        int64_t& number = numbers.emplace_back(-1);
        return (all && part == "all") || ReadInt(part, least, most, &number);
      })) {
    Fail("plan: expected ", Full(key), " as ", all ? "all and " : "", "numbers in ", least, "..",
         most, ", got ", Quoted(text));
  }
  return numbers;
}

double Fields::Hex(std::string_view key) {
  std::string_view text = Raw(key), digits = text;
  bool negative = !digits.empty() && digits[0] == '-';
  if (negative) digits.remove_prefix(1);
  double value = 0;
  bool whole =
      digits.substr(0, 2) == "0x" && digits.substr(2, 1) != "-" && digits.find('p') != digits.npos;
  if (whole) {
    const char* last = digits.data() + digits.size();
    auto [end, error] = std::from_chars(digits.data() + 2, last, value, std::chars_format::hex);
    whole = error == std::errc() && end == last && std::isfinite(value);
  }
  if (!whole) Fail("plan: expected ", Full(key), " as a hexadecimal float, got ", Quoted(text));
  return negative ? -value : value;
}

size_t Fields::Word(std::string_view key, const std::vector<std::string_view>& choices) {
  const std::vector<size_t> found = EachWord(key, choices);
  if (found.size() == 1) return found.front();
  Fail("plan: expected ", Full(key), " as one word, got ", found.size());
}

std::vector<size_t> Fields::EachWord(std::string_view key,
                                     const std::vector<std::string_view>& choices) {
  const std::string_view text = Raw(key);
  std::vector<size_t> found;
  const bool good = ReadList(text, [&](std::string_view part) {
    const auto at = std::find(choices.begin(), choices.end(), part);
    found.push_back(static_cast<size_t>(at - choices.begin()));
    return at != choices.end();
  });
  if (good) return found;
  std::string all;
  for (std::string_view choice : choices) all += (all.empty() ? "" : ", ") + std::string(choice);
  Fail("plan: expected ", Full(key), " as one of ", all, ", got ", Quoted(text));
}

void Fields::Words(std::string_view key,
                   std::initializer_list<std::pair<std::string_view, bool*>> choices) {
  const std::string_view text = Raw(key);
  auto next = choices.begin();
  const bool good = ReadList(text, [&](std::string_view part) {
    while (next != choices.end() && next->first != part) ++next;
    if (next == choices.end()) return false;
    *next++->second = true;
    return true;
  });
  if (good) return;
  std::string all;
  for (const auto& choice : choices) all += (all.empty() ? "" : ", ") + std::string(choice.first);
  Fail("plan: expected ", Full(key), " as some of ", all, " in that order, got ", Quoted(text));
}

std::string Fields::FileName(std::string_view key) {
  std::string_view text = Raw(key);
  const bool good = !text.empty() && text.size() <= kLongestName && text[0] != '.';
  if (!good || !IsMadeOf(text, "_-."))
    Fail("plan: expected ", key, " as a bare file name, got ", Quoted(text));
  return std::string(text);
}

std::string Fields::Identity(std::string_view key) {
  std::string_view text = Raw(key);
  const size_t slash = text.find('/');
  int64_t abi = 0;
  if (text.size() > kLongestName || !IsMadeOf(text, ".+-_/") || slash == text.npos ||
      !ReadInt(text.substr(0, slash), kKernelAbi, kKernelAbi, &abi)) {
    Fail("plan: expected ", key, " as ", kKernelAbi, "/.., got ", Quoted(text),
         "; compile the model again for this version of pitc");
  }
  return std::string(text);
}

std::string Fields::Name(std::string_view key) {
  std::vector<std::string> names = Names(key);
  if (names.size() != 1) Fail("plan: expected ", key, " as one name, got ", Quoted(Raw(key)));
  return std::move(names[0]);
}

std::vector<std::string> Fields::Names(std::string_view key) {
  const std::string_view text = Raw(key);
  std::vector<std::string> names;
  if (!ReadList(text,
                [&](std::string_view part) { return ReadName(part, &names.emplace_back()); })) {
    Fail("plan: expected ", key, " as names of 1..", kLongestNode,
         " bytes, other bytes than letters, digits and -._~/ as %XX, got ", Quoted(text));
  }
  return names;
}

std::vector<DimUse> Fields::Dims(std::string_view key) {
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

KernelNames Fields::Kernels(std::string_view key) {
  const std::string_view text = Raw(key);
  std::map<std::string, std::string, std::less<>> names;
  if (!ReadList(text, [&](std::string_view part) {
        const size_t colon = std::min(part.find(':'), part.size());
        const std::string_view role = part.substr(0, colon);
        const std::string_view symbol = part.substr(std::min(colon + 1, part.size()));
        return !role.empty() && IsMadeOf(role, "_") && !symbol.empty() && IsMadeOf(symbol, "_") &&
               symbol.size() <= kLongestName && names.emplace(role, symbol).second;
      })) {
    Fail("plan: expected ", Full(key), " as ROLE:KERNEL, each role once, got ", Quoted(text));
  }
  return KernelNames(std::move(names));
}

std::vector<StepOperand> Fields::Operands(std::string_view key, int step) {
  const std::string_view text = Raw(key);
  std::vector<StepOperand> operands;
  const bool good = ReadList(text, [&](std::string_view part) {
    int64_t number = 0;
    if (part == "rows") {
      operands.push_back({StepOperand::kRows});
    } else if (!part.empty() && part[0] == 's') {
      if (!ReadInt(part.substr(1), 0, step - 1, &number)) return false;
      operands.push_back({StepOperand::kStep, static_cast<int>(number)});
    } else {
      if (!ReadInt(part, 0, kMostInputs - 1, &number)) return false;
      operands.push_back({StepOperand::kInput, static_cast<int>(number)});
    }
    return true;
  });
  if (!good) {
    Fail("plan: expected ", Full(key), " as numbers of inputs, rows and earlier steps, got ",
         Quoted(text));
  }
  return operands;
}

void Fields::Only(std::string_view key, std::string_view value) {
  if (!Has(key) || Raw(key) == value) return;
  Fail("plan: expected ", Full(key), "=", value, " for ", Told(machine_), ", got ",
       Quoted(Raw(key)));
}

void Fields::Without(std::string_view key) {
  if (Has(key)) Fail("plan: expected no key '", Full(key), "' for ", Told(machine_));
}

void Fields::Together(std::initializer_list<std::string_view> keys) {
  const auto* const given =
      std::find_if(keys.begin(), keys.end(), [this](std::string_view key) { return Has(key); });
  if (given == keys.end()) return;
  for (const std::string_view key : keys) Raw(key);
}

void Fields::ExpectNoOthers(std::string_view op) const {
  for (const auto& [key, field] : fields_) {
    if (!field.known) Fail("plan: unknown key ", Quoted(key), " for op '", op, "'");
  }
}

}  // namespace pitc

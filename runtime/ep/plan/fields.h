// The text of a plan, as keys and values.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/failure.h"
#include "plan/plan.h"

namespace pitc {

constexpr size_t kLongestPlan = 1 << 16;
constexpr int kMostInputs = 1 << 8;
constexpr size_t kLongestName = 200;
constexpr size_t kMostDims = 12;
constexpr int kMostCoordinates = 8;
constexpr size_t kMostConvolutions = 16;
constexpr size_t kLongestNode = 1000;  // bytes

inline bool IsLetterOrDigit(char c) {
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

  // From now on keys are those of a step, or, of step -1, of the whole plan.
  void EnterStep(int step) { step_ = step < 0 ? "" : Text("step", step, "."); }

  std::string_view Raw(std::string_view key) {
    auto at = fields_.find(Full(key));
    if (at == fields_.end()) Fail("plan: key '", Full(key), "' is missing");
    at->second.known = true;
    return at->second.value;
  }

  bool Has(std::string_view key) const { return fields_.count(Full(key)) != 0; }

  // Of the keys BEGINNING<n> the numbers, ascending.
  std::vector<int64_t> NumbersBehind(std::string_view beginning, int64_t most) const {
    std::vector<int64_t> found;
    const std::string full = Full(beginning);
    beginning = full;
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
      Fail("plan: expected ", Full(key), " in ", least, "..", most, ", got ", Quoted(text));
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

  // Numbers of some of `count` steps, ascending, one at least.
  std::vector<int64_t> Steps(std::string_view key, int count) {
    const std::string_view text = Raw(key);
    std::vector<int64_t> numbers;
    const bool good = ReadList(text, [&](std::string_view part) {
      const int64_t least = numbers.empty() ? 0 : numbers.back() + 1;
      return ReadInt(part, least, count - 1, &numbers.emplace_back());
    });
    if (!good) {
      Fail("plan: expected ", key, " as numbers in 0..", count - 1, ", ascending, got ",
           Quoted(text));
    }
    return numbers;
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
    if (!whole) Fail("plan: expected ", Full(key), " as a hexadecimal float, got ", Quoted(text));
    return negative ? -value : value;
  }

  std::string Word(std::string_view key, const std::vector<std::string_view>& choices) {
    std::string_view text = Raw(key);
    std::string all;
    for (std::string_view choice : choices) {
      if (text == choice) return std::string(text);
      all += (all.empty() ? "" : ", ") + std::string(choice);
    }
    Fail("plan: expected ", Full(key), " as one of ", all, ", got ", Quoted(text));
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
    for (char c : text)
      good = good && (IsLetterOrDigit(c) || std::string_view(".+-_/").find(c) != text.npos);
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

  // One such name, as of a node or a value.
  std::string Name(std::string_view key) {
    const std::string_view text = Raw(key);
    std::string name;
    if (!ReadNode(text, &name)) {
      Fail("plan: expected ", key, " as a name of 1..", kLongestNode,
           " bytes, other bytes than letters, digits and -._~/ as %XX, got ", Quoted(text));
    }
    return name;
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

  // Where the operands of step `step` come from: numbers of inputs, `rows`, `s0`, `s1`, .. of
  // earlier steps.
  std::vector<StepOperand> Operands(std::string_view key, int step) {
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
      return operands.size() <= kMostInputs;
    });
    if (!good) {
      Fail("plan: expected ", Full(key), " as numbers of inputs, rows and earlier steps, got ",
           Quoted(text));
    }
    return operands;
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
      Fail("plan: expected ", Full(key), " as ", count, all ? " of all and" : "", " numbers in 0..",
           most, ", got ", Quoted(text));
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

  std::string Full(std::string_view key) const { return step_ + std::string(key); }

  std::map<std::string_view, Field> fields_;
  std::string step_;  // how keys begin
};

}  // namespace pitc

// The text of a plan, as keys and values.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pitc {

constexpr int kMostCoordinates = 8;
constexpr int kMostInputs = 1 << 8;

// Whose plug-in reads a plan.
enum class Machine { kCpu, kCuda };

// What one dimension of an unpacked tensor is.
struct DimUse {
  enum Kind { kCoordinate, kLinear, kOne, kRest };
  Kind kind;
  int coordinate = 0;  // which one, for kCoordinate
};

// Where a step of a region finds an operand: an input of the node, of which 0 is the mask, the rows
// that live, or what an earlier step has made.
struct StepOperand {
  enum Kind { kInput, kRows, kStep } kind;
  int number = 0;
};

// Symbols of kernels, each under what it is for.
class KernelNames {
 public:
  KernelNames() = default;
  explicit KernelNames(std::map<std::string, std::string, std::less<>> names)
      : names_(std::move(names)) {}

  // Throws Failure where there is none.
  const std::string& Of(std::string_view role) const;
  bool Has(std::string_view role) const { return names_.find(role) != names_.end(); }

 private:
  std::map<std::string, std::string, std::less<>> names_;
};

// The fields of one plan: lines `key=value`. Every read marks its key as known, so that what is
// left over is unknown. What is no value of its type throws Failure.
class Fields {
 public:
  Fields(std::string_view text, Machine machine);

  Machine machine() const { return machine_; }
  // From now on keys are those of a step, or, of step -1, of the whole plan.
  void EnterStep(int step);
  bool Has(std::string_view key) const { return fields_.count(Full(key)) != 0; }
  // Of the keys BEGINNING<n> the numbers from 1 on, ascending.
  std::vector<int64_t> NumbersBehind(std::string_view beginning, int64_t most) const;

  int64_t Int(std::string_view key, int64_t least, int64_t most);
  bool Flag(std::string_view key) { return Int(key, 0, 1) != 0; }
  // Numbers with commas between them.
  std::vector<int64_t> Ints(std::string_view key, int64_t least, int64_t most);
  // Numbers from 0 on, or `all`, which is -1.
  std::vector<int64_t> Places(std::string_view key, int64_t most);
  // C hexadecimal form with a sign, `0x` and an exponent, as Python's float.hex() writes it.
  double Hex(std::string_view key);
  // Which of some words.
  size_t Word(std::string_view key, const std::vector<std::string_view>& choices);
  std::vector<size_t> EachWord(std::string_view key, const std::vector<std::string_view>& choices);
  // Sets the flags of the words that are there, each at most once and in their order.
  void Words(std::string_view key,
             std::initializer_list<std::pair<std::string_view, bool*>> choices);
  // A bare file name: letters, digits, '_', '-' and '.', not hidden.
  std::string FileName(std::string_view key);
  // The identity of a kernel library: `ABI/..`, letters, digits and ".+-_/".
  std::string Identity(std::string_view key);
  // A name of a node or a value. Bytes that are no letters, digits or one of "-._~/" stand as %XX.
  std::string Name(std::string_view key);
  std::vector<std::string> Names(std::string_view key);
  std::vector<DimUse> Dims(std::string_view key);
  // `ROLE:KERNEL`, with commas between them.
  KernelNames Kernels(std::string_view key);
  // Where the operands of step `step` come from: numbers of inputs, `rows`, `s0`, `s1`, .. of
  // earlier steps.
  std::vector<StepOperand> Operands(std::string_view key, int step);

  // Throws Failure where a key has another value than this machine can do.
  void Only(std::string_view key, std::string_view value);
  void Without(std::string_view key);
  // Throws Failure where some of these keys stand without the others.
  void Together(std::initializer_list<std::string_view> keys);
  void ExpectNoOthers(std::string_view op) const;

 private:
  struct Field {
    std::string_view value;
    bool known = false;
  };

  std::string_view Raw(std::string_view key);
  std::vector<int64_t> Numbers(std::string_view key, int64_t least, int64_t most, bool all);
  std::string Full(std::string_view key) const { return step_ + std::string(key); }

  const Machine machine_;
  std::map<std::string_view, Field> fields_;
  std::string step_;  // how keys begin
};

}  // namespace pitc

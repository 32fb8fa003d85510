// Any text is a plan, or is refused by one printable line. A plan says nothing that the operations
// do not expect, and its layout addresses only what is there.
#include <cmath>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/failure.h"
#include "check.h"
#include "plan/layout.h"
#include "plan/plan.h"

namespace {

using pitc::DimUse;
using pitc::test::Random;

void Demand(bool good, const char* what, std::string_view text) {
  if (good) return;
  fprintf(stderr, "%s: %.*s\n", what, static_cast<int>(text.size()), text.data());
  abort();
}

// Prices are numbers that can be added up, and dense is always offered.
void CheckCosts(const pitc::ContractPlan& contract, std::string_view text) {
  for (const pitc::CostTable* table : {&contract.prices.v3, &contract.prices.v4}) {
    Demand(table->lines[0].offered, "dense", text);
    for (const pitc::CostTable::Line& line : table->lines) {
      for (int f = 0; f < pitc::kFeatures; ++f) {
        const int64_t most = line.offered ? int64_t{1} << 50 : 0;
        Demand(line.prices[f] >= 0 && line.prices[f] <= most, "price", text);
      }
      for (int64_t factor : line.factors) {
        const int64_t most = line.shaped ? pitc::kHighestFactor : 0;
        Demand(factor >= 0 && factor <= most, "factor", text);
      }
      Demand(line.offered || !line.shaped, "factors without prices", text);
    }
    pitc::Work work{INT32_MAX, 1 << 24, 1 << 24, 32, 1 << 15, true, 1 << 24, {}, {}};
    work.counts.elements = work.counts.strips[0] = work.counts.segments[2] = INT64_MAX;
    for (bool turned : {false, true}) {
      work.turned = turned;
      work.dense_rows = INT32_MAX, work.dense_panels = 1 << 18;
      work.dense_copied = work.sparse_copied = turned ? INT64_MAX : 0;
      const pitc::Choice choice = pitc::Select(*table, work);
      Demand(table->lines[static_cast<int>(choice.variant)].offered, "choice", text);
      for (double us : choice.predicted_us) Demand(us >= 0, "prediction", text);
    }
  }
}

// What a choice adds up has room, and its flags lie among those that it asks for.
void CheckChannels(const pitc::ChannelsPlan& choose, std::string_view text) {
  const size_t count = choose.convolutions.size();
  Demand(count >= 1 && choose.ends.size() == count + 1, "ends", text);
  for (const auto& [extent, place] : choose.ends) {
    Demand(extent >= 0 && place >= -1 && (place < 0 || place + extent <= choose.flags), "end",
           text);
  }
  __int128 work = 0;
  for (size_t k = 0; k < count; ++k) {
    const auto& [node, weight] = choose.convolutions[k];
    Demand(!node.empty() && node.size() <= 1000 && weight >= 0, "convolution", text);
    work += static_cast<__int128>(weight) * choose.ends[k].extent * choose.ends[k + 1].extent;
  }
  Demand(work == choose.work && work <= int64_t{1} << 62, "work", text);
  Demand(choose.budget >= 0 && choose.budget <= work, "budget", text);
}

// A region reads what there is: inputs of the node, earlier steps. What it gives is whole.
void CheckRegion(const pitc::RegionPlan& region, std::string_view text) {
  const auto count = static_cast<int>(region.steps.size());
  Demand(count >= 1 && count <= 8 && !region.gives.empty(), "steps", text);
  for (int number = 0; number < count; ++number) {
    const pitc::RegionStep& step = region.steps[static_cast<size_t>(number)];
    Demand(!step.plan.prices.clocks.empty() && step.plan.right == pitc::ContractPlan::kPanels,
           "step", text);
    for (const auto& [kind, from] : step.reads) {
      const int most = kind == pitc::StepOperand::kInput  ? region.inputs
                       : kind == pitc::StepOperand::kStep ? number
                                                          : 1;
      Demand(from >= 0 && from < most, "operand", text);
    }
  }
  for (size_t i = 0; i < region.gives.size(); ++i) {
    const int given = region.gives[i];
    Demand(given < count && (i == 0 || given > region.gives[i - 1]), "gives", text);
    Demand(region.steps[static_cast<size_t>(given)].plan.scatter, "packed rows given", text);
  }
}

// Slots of a small tensor with extents from the input, each of which must lie in the tensor.
void TryLayout(const std::vector<DimUse>& dims, uint64_t choice) {
  Random random(choice);
  pitc::Shape domain, unpacked;
  int coordinates = 1;
  for (const DimUse& use : dims) coordinates = std::max(coordinates, use.coordinate + 1);
  for (int c = 0; c < coordinates; ++c) domain.Add(random.Below(3) + 1);
  for (const DimUse& use : dims) {
    unpacked.Add(use.kind == DimUse::kCoordinate ? domain.dims[use.coordinate]
                 : use.kind == DimUse::kLinear   ? domain.Elements()
                 : use.kind == DimUse::kOne      ? 1
                                                 : random.Below(3));
  }
  std::vector<int32_t> rows, coords;
  for (int64_t p = 0; p < domain.Elements(); ++p) {
    if (random.Below(2)) rows.push_back(static_cast<int32_t>(p));
  }
  for (int c = 0; c < coordinates; ++c) {
    for (int32_t row : rows) {
      coords.push_back(
          static_cast<int32_t>(row / domain.Elements(c + 1, coordinates) % domain.dims[c]));
    }
  }
  const auto t = static_cast<int64_t>(rows.size());
  const pitc::Layout layout = pitc::MakeLayout(dims, unpacked, coordinates);
  if (layout.outer * layout.width == 0) return;
  std::vector<int32_t> slots(static_cast<size_t>(t * layout.outer));
  layout.Slots(rows.data(), coords.data(), t, 0, t, slots.data());
  for (int32_t slot : slots) Demand(slot >= 0 && slot < layout.slots, "slot", unpacked.Text());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  uint64_t choice = 0;
  for (char c : input.substr(std::min(end, size))) choice = choice * 257 + static_cast<uint8_t>(c);
  for (const std::string_view text : {input, input.substr(0, end)}) {
    try {
      const pitc::Plan plan = pitc::ParsePlan(text, pitc::Machine::kCuda);
      const auto* contract = std::get_if<pitc::ContractPlan>(&plan.body);
      Demand(!contract || !contract->prices.clocks.empty(), "clocks", text);
      if (auto* region = std::get_if<pitc::RegionPlan>(&plan.body)) CheckRegion(*region, text);
    } catch (const pitc::Failure&) {
    }
    try {
      const pitc::Plan plan = pitc::ParsePlan(text);
      const bool bare = plan.library.find('/') == plan.library.npos;
      const bool alone = plan.op == "detect" || plan.op == "choose_channels" ||
                         plan.op == "pairs" || plan.op == "add_rows" || plan.op == "sparse_product";
      Demand(bare && plan.library[0] != '.' && plan.library.size() <= 200, "library", text);
      Demand(plan.library.empty() == alone, "library", text);
      const auto* contract = std::get_if<pitc::ContractPlan>(&plan.body);
      if (auto* choose = std::get_if<pitc::ChannelsPlan>(&plan.body)) CheckChannels(*choose, text);
      if (contract) {
        const bool computed = contract->right != pitc::ContractPlan::kPanels;
        Demand(!computed || (!contract->gather && !contract->scatter && !contract->input_relu &&
                             !contract->inner && contract->skips),
               "a right operand", text);
        Demand(computed || contract->factor == 0, "a factor", text);
        Demand(!contract->inner || contract->skips, "inner product", text);
        Demand(!contract->tiles || (computed && contract->factor == 0 && !contract->bias &&
                                    !contract->residual && contract->activation == 0),
               "tiles", text);
        const auto in = contract->Places();
        Demand(in.count >= 2 && in.count <= 9 && in.a == 0 && in.b > 0, "operands", text);
        if (contract->skips) CheckCosts(*contract, text);
      }
      if (auto* attention = std::get_if<pitc::AttentionPlan>(&plan.body))
        Demand(std::isfinite(attention->scale) && attention->heads > 0, "attention", text);
      if (auto* move = std::get_if<pitc::MovePlan>(&plan.body)) TryLayout(move->dims, choice);
    } catch (const pitc::Failure& failure) {
      const std::string_view message = failure.what();
      Demand(!message.empty() && message.size() < 400, "length of the message", message);
      for (char c : message) Demand(c >= ' ' && c <= '~', "character in the message", message);
    }
  }
  return 0;
}

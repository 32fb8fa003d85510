// choose_channels: flags of channels -> whether convolutions run on the live ones, or whole.
#include "ops/operation.h"

namespace pitc {
namespace {

// As the branch that gathers them finds them: NaN is no zero.
int64_t CountLiveFlags(const float* flags, int64_t n) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += !(flags[i] <= 0);
  return count;
}

class ChooseChannels final : public Operation {
 public:
  ChooseChannels(const ChannelsPlan& plan, std::shared_ptr<Trace> trace, bool dense)
      : plan_(plan), trace_(std::move(trace)), dense_(dense) {}
  int InputCount() const override { return 1; }
  int OutputCount() const override { return 1; }

  void Run(const RunContext& run) const override {
    Arena::Scope scratch;
    const Tensor flags = run.FloatInput(0, "flags", 1, 1);
    Expect(flags.shape.dims[0] == plan_.flags, flags, "as float32 [", plan_.flags, "]");
    // At most the plan's work, whose size was checked.
    int64_t live_work = 0, before = CountLive(flags, 0);
    for (size_t k = 0; k < plan_.convolutions.size(); ++k) {
      const int64_t live = CountLive(flags, k + 1);
      live_work += plan_.convolutions[k].weight * before * live;
      before = live;
    }
    const bool few = !dense_ && live_work <= plan_.budget;
    *static_cast<bool*>(run.Output(0, {}, sizeof(bool), scratch)) = few;
    if (trace_) Tell(flags, live_work, few);
  }

 private:
  int64_t CountLive(const Tensor& flags, size_t end) const {
    const auto& [extent, place] = plan_.ends[end];
    return place < 0 ? extent : CountLiveFlags(flags.Floats() + place, extent);
  }

  void Tell(const Tensor& flags, int64_t live_work, bool few) const {
    ChannelChoice choice{{}, plan_.work, live_work, plan_.budget, !few};
    for (size_t k = 0; k < plan_.convolutions.size(); ++k) {
      choice.convolutions.push_back({plan_.convolutions[k].node, plan_.ends[k].extent,
                                     CountLive(flags, k), plan_.ends[k + 1].extent,
                                     CountLive(flags, k + 1)});
    }
    trace_->Write(choice);
  }

  const ChannelsPlan plan_;
  const std::shared_ptr<Trace> trace_;
  const bool dense_;
};

}  // namespace

std::unique_ptr<Operation> MakeChooseChannels(const ChannelsPlan& plan,
                                              std::shared_ptr<Trace> trace, bool dense) {
  return std::make_unique<ChooseChannels>(plan, std::move(trace), dense);
}

}  // namespace pitc

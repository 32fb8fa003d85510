#include "device/listed_product.h"

#include <algorithm>

namespace pitc::cuda {
namespace {

constexpr int64_t kTotals = std::size(kCudaTotals);

}  // namespace

// What kernels write for each other, all in memory of the run. Its extents are those of the most
// that can live.
struct ListedProduct::Memory {
  Memory(const DeviceRun& run, const ProductSize& size, const Choices& choices, bool has_bits,
         const std::vector<OfferedVariant>& offered)
      : extents(size), choice(run.OnDevice(choices.words(), Choices::kWords)) {
    int64_t entries = 0, bytes = 0;
    for (int number = 0; number < choices.count(); ++number) {
      const CudaOffer& shape = *offered[choices.at(number)].shape;
      const int64_t most = extents.entries(shape.cut);
      entries = std::max(entries, most);
      if (shape.cut != CudaCut::kSquare) bytes = std::max(bytes, most * shape.entry);
    }
    value_count = bytes / RecordOf(size.type).bytes;
    index_count = entries;
    int64_t words = 0;
    const auto place = [&words](int64_t count) {
      const int64_t here = words;
      words += (count + 3) / 4 * 4;  // kernels read 16 bytes at a time
      return here;
    };
    const int64_t gate_at = place(2), starts_at = place(extents.groups + 1),
                  trace_at = place(kTotals + choices.count()), places_at = place(extents.places()),
                  counts_at = place(extents.counts()), index_at = place(index_count),
                  bits_at = place(has_bits ? 0 : size.rows * extents.words);
    auto* const numbers = static_cast<int32_t*>(run.Take(static_cast<size_t>(words) * 4));
    gate = numbers + gate_at;
    starts = numbers + starts_at;
    trace = numbers + trace_at;
    places = numbers + places_at;
    counts = numbers + counts_at;
    index = numbers + index_at;
    bits = numbers + bits_at;
    values = run.Take(static_cast<size_t>(bytes));
  }

  const ListExtents extents;
  const int32_t* choice;  // as Choices::words
  int64_t value_count, index_count;
  int32_t *gate, *starts, *trace, *places, *counts, *index, *bits;
  void* values;
};

void ListedProduct::Run(const DeviceRun& run, const ProductOperands& operands, const void* bits,
                        const DenseProduct& dense) const {
  const ProductPlan& product = dense.product();
  const ProductSize size{operands.count, product.k, product.n, dense.type()};
  const size_t tile = dense.TileFor(operands.count, run.device());
  const Choices choices(offered_, dense.shape(tile), size, run.device().multiprocessors());
  const std::optional<int> forced = forced_ ? choices.NumberOf(*forced_) : std::nullopt;
  const bool looks = forced ? *forced > 0 : choices.IsWorthALook();
  if (!looks || choices.count() == 1 || !ListExtents(size).fits()) {
    dense.Run(run, operands, tile);
    if (run.traced()) run.Note({size.rows, size.k, size.n, {}, {}, offered_[choices.at(0)].Name()});
    return;
  }
  const Memory memory(run, size, choices, bits != nullptr, offered_);
  MakeLists(run, operands, bits, dense, choices, memory);
  for (int number = 0; number < choices.count(); ++number) {
    const size_t at = choices.at(number);
    const Gate gate{memory.gate, number};
    if (number == 0) {
      dense.Run(run, operands, tile, nullptr, &gate);
    } else {
      RunVariant(run, operands, dense, offered_[at], at, memory, gate);
    }
  }
  if (run.traced()) Tell(run, size, choices, memory);
}

void ListedProduct::MakeLists(const DeviceRun& run, const ProductOperands& operands,
                              const void* bits, const DenseProduct& dense, const Choices& choices,
                              const Memory& memory) const {
  const Element type = dense.type();
  const int64_t t = operands.count, k = dense.product().k, variants = choices.count();
  const ListExtents& extents = memory.extents;
  const int64_t parts = run.Blocks(extents.groups * extents.segments, 1);
  const int32_t* const count = operands.gate ? operands.gate + 1 : memory.choice + Choices::kCount;
  const void* const found = bits ? bits : memory.bits;

  KernelCall detect = run.Call();
  if (!bits) detect.Numbers(operands.a, type, {operands.stored_a, k}).Int32s(operands.rows_a, {t});
  detect.Int32s(count, {1}).Bits(found, {t, extents.words});
  detect.Int32s(memory.counts, {extents.counts()}).Int(parts);
  run.Launch(kernels_.detect, detect);

  const std::optional<int> forced = forced_ ? choices.NumberOf(*forced_) : std::nullopt;
  KernelCall choose = run.Call();
  choose.Int32s(memory.counts, {extents.counts()}).Int32s(count, {1});
  choose.Int32s(memory.choice, {variants, kCudaColumns});
  choose.Floats(memory.choice + Choices::kPrices, {variants, kCudaFeatures});
  choose.Int32s(memory.gate, {2}).Int32s(memory.places, {extents.places()});
  choose.Int32s(memory.starts, {extents.groups + 1}).Floats(memory.trace, {kTotals + variants});
  choose.Int(t).Int(k).Int(dense.product().n).Int(forced.value_or(-1));
  run.Launch(kernels_.choose, choose);

  const std::optional<int> tile = choices.NumberOf(CudaCut::kTile);
  const int64_t height = tile ? offered_[choices.at(*tile)].rows : kCudaGroup;
  KernelCall lists = run.Call();
  lists.Numbers(operands.a, type, {operands.stored_a, k}).Int32s(operands.rows_a, {t});
  lists.Bits(found, {t, extents.words}).Int32s(memory.gate, {2});
  lists.Int32s(memory.choice, {variants, kCudaColumns}).Int32s(memory.places, {extents.places()});
  lists.Numbers(memory.values, type, {memory.value_count});
  lists.Int32s(memory.index, {memory.index_count}).Int(parts);
  run.Launch(kernels_.lists.at(height), lists);
}

void ListedProduct::RunVariant(const DeviceRun& run, const ProductOperands& operands,
                               const DenseProduct& dense, const OfferedVariant& variant, size_t at,
                               const Memory& memory, const Gate& gate) const {
  const ProductPlan& product = dense.product();
  const Element type = dense.type();
  const CudaCut cut = variant.shape->cut;
  const ListExtents& extents = memory.extents;
  const int64_t entries = extents.entries(cut);
  KernelCall call = run.Call();
  if (cut == CudaCut::kSquare) {
    call.Numbers(operands.a, type, {operands.stored_a, product.k});
    call.Int32s(operands.rows_a, {operands.count});
  } else {
    const int64_t each = cut == CudaCut::kTile ? variant.rows : extents.width;
    call.Numbers(memory.values, type, {entries, each});
  }
  call.Int32s(memory.index, {entries});
  if (cut == CudaCut::kBlock) {
    call.Int32s(memory.places, {extents.places()});
  } else {
    call.Int32s(memory.starts, {extents.groups + 1});
  }
  AddTail(operands, product, type, &call);
  const int64_t down = (operands.count + variant.rows - 1) / variant.rows,
                across = (product.n + variant.shape->n - 1) / variant.shape->n;
  run.AddTurns(&call, down * across, gate, variant.Together(run.device().most_shared_bytes()));
  run.Launch(kernels_.products[at], call);
}

void ListedProduct::Tell(const DeviceRun& run, const ProductSize& size, const Choices& choices,
                         const Memory& memory) const {
  int32_t gate[2];
  run.Download(gate, memory.gate, sizeof gate);
  float trace[kTotals + kCudaCuts];
  run.Download(trace, memory.trace,
               (kTotals + choices.count()) * static_cast<int64_t>(sizeof(float)));
  DeviceChoice told{gate[1], size.k, size.n, {}, {}, offered_[choices.at(gate[0])].Name()};
  for (int64_t i = 0; i < kTotals; ++i)
    told.counts.emplace_back(kCudaTotals[i], static_cast<int64_t>(trace[i]));
  for (int number = 0; number < choices.count(); ++number)
    told.predicted_us.emplace_back(offered_[choices.at(number)].Name(),
                                   double{trace[kTotals + number]} / kFemtoseconds);
  run.Note(std::move(told));
}

}  // namespace pitc::cuda

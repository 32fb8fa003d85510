#include "device/live_points.h"

#include "base/index.h"

namespace pitc::cuda {
namespace {

constexpr int64_t kTurn = 4096;            // points that a thread block looks at together
constexpr int64_t kOfOnePart = 4 * kTurn;  // another launch takes longer than four turns

}  // namespace

DeviceInput LivePoints::Find(const DeviceRun& run, const DeviceInput& live) const {
  Expect(ElementBytes(live.type) == 1, live, "as bool");
  const int64_t points = Numbered(live.shape.Elements(), "points of live");
  DeviceInput rows;
  rows.type = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
  rows.shape = {points};
  rows.on_device = true;
  if (points == 0) return rows;
  const int64_t parts = points <= kOfOnePart ? 1 : run.Blocks(points, kTurn);
  const int64_t room = (points + 3) / 4 * 4;  // what follows is at a multiple of kAlignment
  auto* const list =
      static_cast<int32_t*>(run.Take(static_cast<size_t>(room + 4 + parts) * sizeof(int32_t)));
  int32_t *const gate = list + room, *const counts = gate + 4;
  const void* const mask = run.OnDevice(live);
  if (parts > 1) {
    KernelCall count = run.Call();
    count.Words(mask, 1, {points}).Int32s(counts, {parts}).Int(parts);
    run.Launch(count_, count);
  }
  KernelCall call = run.Call();
  call.Words(mask, 1, {points}).Int32s(counts, {parts}).Int32s(list, {points});
  call.Int32s(gate, {2}).Int(parts);
  run.Launch(list_, call);
  rows.data = list;
  rows.gate = gate;
  return rows;
}

}  // namespace pitc::cuda

"""Merges two exports of a decoder into one file with a branch: a fixture in the usual merged form.

    pip install onnx
    PYTHONPATH=. python models/export/merge.py

`use_cache_branch` says which of the two runs: the decoder that reads a past, or the one without, to
which a caller gives a past of any length (0 or 1, as a rule) that it does not read.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, TensorProto, helper

FOLDER = Path(__file__).parent / "fixtures"
MAX_BYTES = 300_000
SWITCH = "use_cache_branch"
MERGED = {"opt-merged-sdpa-traced": ("opt-cache-sdpa-traced", "opt-past-sdpa-traced")}


def merge(first: ModelProto, later: ModelProto) -> ModelProto:
    """One model of two with the same outputs; weights that both have are kept once.

    Args:
        first: The decoder without a past.
        later: The decoder that reads one.
    """
    weights: dict[bytes, TensorProto] = {}
    for model in (first, later):
        _share(model.graph, weights)
    outputs = [o.name for o in later.graph.output]
    if outputs != [o.name for o in first.graph.output]:
        raise ValueError("the two models have different outputs")
    bodies = {
        "then_branch": _body(later.graph, "later"),
        "else_branch": _body(first.graph, "first"),
    }
    switch = helper.make_tensor_value_info(SWITCH, TensorProto.BOOL, [1])
    graph = helper.make_graph(
        [helper.make_node("If", [SWITCH], outputs, name="use_cache", **bodies)],
        "merged",
        [*later.graph.input, switch],
        later.graph.output,
        _named_once(weights.values()),
    )
    merged = helper.make_model(graph, opset_imports=later.opset_import)
    merged.ir_version = later.ir_version
    return merged


def _share(graph: GraphProto, weights: dict[bytes, TensorProto]) -> None:
    """Read weights by the names under which another graph already has them."""
    renamed = {}
    for weight in graph.initializer:
        bare = TensorProto()
        bare.CopyFrom(weight)
        bare.ClearField("name")
        kept = weights.setdefault(bare.SerializeToString(deterministic=True), weight)
        renamed[weight.name] = kept.name
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]


def _named_once(weights: Iterable[TensorProto]) -> list[TensorProto]:
    found = list(weights)
    if len({w.name for w in found}) < len(found):
        raise ValueError("two different weights have one name")
    return found


def _body(graph: GraphProto, name: str) -> GraphProto:
    return helper.make_graph(graph.node, name, [], graph.output)


def main() -> int:
    """Write every fixture."""
    for name, (first, later) in MERGED.items():
        model = merge(*(onnx.load(FOLDER / f"{source}.onnx") for source in (first, later)))
        onnx.checker.check_model(model, full_check=True)
        file = FOLDER / f"{name}.onnx"
        file.write_bytes(model.SerializeToString(deterministic=True))
        if file.stat().st_size > MAX_BYTES:
            raise ValueError(f"{file}: {file.stat().st_size} bytes, the limit is {MAX_BYTES}")
        print(f"{file.name}: {file.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The first value inside a compiled model that differs from the source: where to look.

Both run once more with their inner values shown. A value of one name is compared where it is read:
at dead points (`docs/theory.md`) the compiled model may hold anything. Packed rows are compared
with the rows of the whole value that live.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pitc.check.verify import differences

if TYPE_CHECKING:
    import onnx_ir as ir

    from pitc.compiled import CompiledModel

#: What the rewrite calls values: `pitc.x.packed`, `pitc.pitc.x.packed.contract.1`, `pitc.x.whole`.
_MADE = re.compile(r"(?:pitc\.)*(.+?)(?:\.(?:packed|whole|contract))+(?:\.\d+)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first value, in the order of the source graph, that is beyond the tolerance.

    Args:
        value: Its name.
        node: The node that gives it, or one of the same name in the normalised graph.
        op_type: The node's operator.
        norm: Norm-wise relative error.
        tolerance: The largest that passes.
        shared: Inner values that both graphs have, and that were compared until this one.
    """

    value: str
    node: str
    op_type: str
    norm: float
    tolerance: float
    shared: int


def first_difference(
    source: "ir.Model",
    compiled: "CompiledModel",
    padding: str | None,
    feeds: Mapping[str, np.ndarray],
    tolerance: float,
) -> FirstDifference | int:
    """Compare inner values on one set of inputs.

    Args:
        source: The imported model; it is changed in place.
        compiled: The compiled model.
        padding: The padding masks that it is compiled with, if any.
        feeds: The inputs.
        tolerance: Largest norm-wise relative error that passes.

    Returns:
        The first difference; where there is none, how many inner values both graphs have.
    """
    from pitc.ir.nodes import node_name
    from pitc.passes.analysis import analysis
    from pitc.passes.audit.points import sizes_of, where
    from pitc.passes.audit.runs import Runs
    from pitc.passes.live_scales import scale_by_live_tokens
    from pitc.passes.normalise import normalise

    if padding is not None:
        scale_by_live_tokens(source, padding)
    normalise(source)
    known = analysis(source, padding)
    graph = known.graph
    values = Runs(graph).expose(feeds)
    if values is None:
        return 0
    sizes, _ = sizes_of(graph, values)
    found = _inner_values(compiled, set(values) - set(feeds), feeds)
    live = [
        mask.read(feeds[mask.source] if mask.source else values[mask.name]) for mask in known.masks
    ]
    shared = 0
    for name in sorted(found, key=lambda name: graph[name].order):
        producer, want = graph[name].producer, values[name]
        if producer is None or graph.is_constant(name):
            continue
        dead = np.zeros(want.shape, bool)
        for region in graph[name].dead:
            dead |= where(region, want.shape, sizes, values)
        for got in found[name]:
            pair = _aligned(got, want, dead, live)
            if pair is None:
                continue
            shared += 1
            norm = differences(*pair)[2]
            if not norm <= tolerance:
                node = node_name(producer)
                return FirstDifference(name, node, producer.op_type, norm, tolerance, shared)
    return shared


def _aligned(
    got: np.ndarray, want: np.ndarray, dead: np.ndarray, live: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray] | None:
    """The elements of both that are read, in one order; None where they cannot be matched.

    Args:
        got: The value as a whole, or its packed rows.
        want: The value as a whole.
        dead: Where nobody reads it.
        live: Tokens that exist, by each padding mask.
    """
    if got.dtype != want.dtype:
        return None
    if got.shape == want.shape:
        return got[~dead], want[~dead]
    for lead in range(1, want.ndim):
        rest = want.shape[lead:]
        if int(np.prod(rest)) != int(np.prod(got.shape[1:])) or not np.prod(rest):
            continue
        rows, unread = want.reshape(-1, int(np.prod(rest))), dead.reshape(-1, int(np.prod(rest)))
        masks = [~unread.all(axis=1)]
        masks[:0] = [x.reshape(-1) for x in live if x.shape == want.shape[:lead]]
        for mask in masks:
            if int(mask.sum()) == len(got):
                read = ~unread[mask]
                return got.reshape(read.shape)[read], rows[mask][read]
    return None


def _inner_values(
    compiled: "CompiledModel", names: set[str], feeds: Mapping[str, np.ndarray]
) -> dict[str, list[np.ndarray]]:
    """What the compiled graph holds under names of the source graph, whole or packed."""
    import onnx

    from pitc.runtime.library import make_session
    from pitc.session import quiet_options

    model = onnx.load(str(compiled.graph), load_external_data=False)
    made = {o for node in model.graph.node for o in node.output if o}
    outputs = {o.name for o in model.graph.output}
    shown = {n: source for n in made if (source := _source_value(n, names)) in names}
    for name in sorted(shown.keys() - outputs):
        model.graph.output.append(onnx.ValueInfoProto(name=name))
    options = quiet_options()
    folder = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry("ep.context_file_path", str(compiled.graph))
    options.add_session_config_entry(folder, str(compiled.path))  # of weights; the graph has none
    session = make_session(model.SerializeToString(), options)
    result: dict[str, list[np.ndarray]] = {}
    for name, array in zip(shown, session.run(list(shown), dict(feeds)), strict=True):
        if isinstance(array, np.ndarray):
            result.setdefault(shown[name], []).append(array)
    return result


def _source_value(name: str, names: set[str]) -> str:
    """The value of the source graph that a value of the compiled one stands for."""
    found = None if name in names else _MADE.fullmatch(name)
    return found[1] if found else name

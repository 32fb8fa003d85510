"""A flat graph run by ONNX Runtime: its values shown, and some of them overwritten.

A flat graph computes both branches of an If, and one of them may not be defined: a decoder's branch
with a cache, when there is none. So the graph is run with its branches closed, and what stands in a
branch is shown when it is taken: the conditions are looked at, their choices are replaced by the
side that they take, from the outside inwards, and nothing of the other side runs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from pitc.ir.branch import BRANCH, GROUP, SIDES, groups, is_choice
from pitc.ir.custom_ops import add_custom_ops
from pitc.ir.graph import Array, Graph, output_names
from pitc.ir.nodes import OVERRIDABLE_SINCE
from pitc.ir.unused import remove_unused
from pitc.passes.audit.versions import raise_version
from pitc.passes.control.branches import close_branches
from pitc.passes.control.graft import substitute
from pitc.passes.rules.record import operator_of

if TYPE_CHECKING:
    import onnxruntime as ort

Feed = Mapping[str, Array]
Taken = tuple[tuple[str, str], ...]  # (If, side), outer ones first
Switches = Mapping[str, tuple[Array, Array]]  # per value: where, and what stands there instead
SELECTS_SINCE = 9  # first operator set with Where
NOISY = ("bool", "float32", "float64", "int32", "int64", "uint8")
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


class Runs:
    """Sessions over one graph with its values shown, and a switch at every target.

    Args:
        graph: The analysed graph.
        others: Values besides those with dead facts that are to be overwritten.
    """

    def __init__(self, graph: Graph, others: Iterable[str] = ()) -> None:
        self.graph = graph
        self.targets = _targets(graph)
        self.switched = list(dict.fromkeys([*self.targets, *filter(self._can_switch, others)]))
        self._choices = groups(graph.nodes)
        self._sessions: dict[Taken, tuple[list[str], ort.InferenceSession]] = {}

    def _can_switch(self, name: str) -> bool:
        return _is_noisy(self.graph, name) and bool(self.graph[name].uses)

    def expose(self, feed: Feed, switches: Switches | None = None) -> dict[str, Array] | None:
        """Every value that is computed for one feed; None when ONNX Runtime stops."""
        given = dict(feed)
        for name, (places, other) in (switches or {}).items():
            given |= self._switch(name, places, other)
        values = {name: np.asarray(x) for name, x in feed.items()}
        constants = ((name, self.graph.array(name)) for name in self.graph.constants())
        values |= {name: x for name, x in constants if x is not None}
        taken: Taken = ()
        while True:
            names, session = self._session(taken)
            found = ran(session, names, given)
            if found is None:
                return None
            values = {**found, **values}  # the closed graph has the last word
            more = tuple(self._decided(taken, values))
            if not more:
                return values
            taken += more

    def _decided(self, taken: Taken, values: Mapping[str, Array]) -> Iterator[tuple[str, str]]:
        """The sides of further Ifs that run in the branches taken so far."""
        for group, choices in self._choices.items():
            condition, path = choices[0].inputs[0], self._path(choices[0].outputs[0].name or "")
            if group in dict(taken) or condition is None or not path <= {*taken}:
                continue
            holds = values.get(condition.name or "")
            if holds is not None and holds.size == 1:
                yield group, SIDES[0 if holds.reshape(-1)[0] else 1]

    def _path(self, name: str) -> set[tuple[str, str]]:
        return set(self.graph[name].branch)

    def moved(
        self,
        feed: Feed,
        switches: Switches,
        values: Mapping[str, Array],
        keep: Mapping[str, Array],
    ) -> bool | None:
        """Whether an output moves when values are overwritten; None when ONNX Runtime stops."""
        given = dict(feed)
        for name, (places, other) in switches.items():
            given |= self._switch(name, places, other)
        got = ran(self._session(())[1], self.graph.outputs, given)
        if got is None:
            return None
        return not all(same(x, values[name], keep[name]) for name, x in got.items())

    def _switch(self, name: str, places: Array, other: Array) -> dict[str, Array]:
        if self.graph[name].dtype == np.bool_:
            return {_select(name): places}
        return {_select(name): places, _noise(name): other}

    def _session(self, taken: Taken) -> "tuple[list[str], ort.InferenceSession]":
        if taken not in self._sessions:
            names = [n for n in _exposable(self.graph) if self._path(n) <= {*taken}]
            model = _switchable_model(self.graph, self.switched)
            if taken:
                _take(model, dict(taken))
            values = {v.name: v for v in _values(model)}
            model.graph.outputs[:] = [values[name] for name in names]
            for v in values.values():
                if v.producer() is not None:
                    v.shape = None
            if self._choices:
                remove_unused(model)
                close_branches(model)
            self._sessions[taken] = names, session_of(model)
        return self._sessions[taken]


RTOL, ATOL = 1e-5, 1e-6  # unmoved outputs are recomputed by the same kernels


def same(a: Array, b: Array, keep: Array) -> bool:
    """True when two outputs agree at the kept elements."""
    if a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a[keep], b[keep]))
    return bool(np.allclose(a[keep], b[keep], rtol=RTOL, atol=ATOL, equal_nan=True))


def ran(
    session: "ort.InferenceSession", names: Sequence[str], feed: Feed
) -> dict[str, Array] | None:
    """Tensors by name; None when ONNX Runtime stops."""
    try:
        found = session.run(list(names), dict(feed))
    except Exception:  # the runtime's exception classes are not public
        return None
    return {n: x for n, x in zip(names, found, strict=True) if isinstance(x, np.ndarray)}


def session_of(model: ir.Model) -> "ort.InferenceSession":
    """ONNX Runtime on a model as it is."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    add_custom_ops(options)
    for tensor in (v.const_value for g in model.graphs() for v in g.initializers.values()):
        if isinstance(tensor, ir.ExternalTensor):  # stays in its file: a proto ends at 2 GB
            options.add_session_config_entry(WEIGHTS_FOLDER, str(tensor.base_dir))
            break
    payload = ir.serde.serialize_model(model).SerializeToString()
    return ort.InferenceSession(payload, options, providers=["CPUExecutionProvider"])


def _select(name: str) -> str:
    return f"{name}:select"


def _noise(name: str) -> str:
    return f"{name}:noise"


def _exposable(graph: Graph) -> list[str]:
    named = (o for n in graph.nodes for o in output_names(n))
    computed = [o for o in named if graph[o].shape is not None and _is_shown(graph, o)]
    conditions = [n.inputs[0] for n in graph.nodes if is_choice(n)]
    chosen = [x.name or "" for x in conditions if x is not None and x.producer() is not None]
    known = [n for n in chosen if not graph.is_constant(n)]
    return list(dict.fromkeys([*computed, *known, *graph.outputs]))


def _is_shown(graph: Graph, name: str) -> bool:
    """ONNX Runtime hands values to numpy, which has no bfloat16 and no number below 8 bits."""
    dtype = graph[name].dtype
    return dtype is None or dtype.kind in "biufcSUO"


def _targets(graph: Graph) -> list[str]:
    """Values with dead facts that can be overwritten.

    A NaN guard's own flag is not free: it keeps dead rows finite, and 0 * NaN is not 0.
    """
    out = []
    for name, x in graph.values.items():
        if not x.dead or not _is_noisy(graph, name):
            continue
        if x.uses and (x.producer is None or not operator_of(x.producer).finds_nan):
            out.append(name)
    return out


def _is_noisy(graph: Graph, name: str) -> bool:
    dtype = graph[name].dtype
    return dtype is not None and str(dtype) in NOISY and not graph[name].captured


def _values(model: ir.Model) -> Iterable[ir.Value]:
    yield from model.graph.inputs
    yield from model.graph.initializers.values()
    for node in model.graph:
        yield from node.outputs


def _take(model: ir.Model, sides: Mapping[str, str]) -> None:
    """Let choices be what the known sides of their Ifs give."""
    for node in filter(is_choice, list(model.graph)):
        side = sides.get(node.metadata_props.get(GROUP, ""))
        taken = None if side is None else node.inputs[1 + SIDES.index(side)]
        if taken is not None:
            substitute(model, node, node.outputs, [taken])


def _switchable_model(graph: Graph, targets: Sequence[str]) -> ir.Model:
    """Every target T becomes Where(T:select, T:noise, T), or Xor(T:select, T) for bools.

    A switch that is not fed is off: to feed them all takes longer than to run a small model.
    """
    model = graph.model.clone()
    if targets:
        raise_version(model, SELECTS_SINCE)
        model.ir_version = max(model.ir_version, OVERRIDABLE_SINCE)
    values = {v.name: v for v in _values(model)}
    outputs = {id(v) for v in model.graph.outputs}
    for name in targets:
        value = values[name]
        dtype = graph.dtype(name)
        select = _input(model, _select(name), np.array(False))
        if dtype == np.bool_:
            node = ir.node("Xor", [select, value])
        else:
            other = _input(model, _noise(name), np.zeros((), dtype))
            node = ir.node("Where", [select, other, value])
        mixed = node.outputs[0]
        if id(value) in outputs:
            for k, output in enumerate(model.graph.outputs):
                if output is value:
                    model.graph.outputs[k] = mixed
            value.name, mixed.name = f"{name}:raw", name
        else:
            mixed.name = f"{name}:mixed"
        for user, place in tuple(value.uses()):
            if user is not node:
                user.replace_input_with(place, mixed)
        producer = value.producer()
        if producer is None:
            first = next(iter(model.graph))
            model.graph.insert_before(first, [node])
        else:
            if BRANCH in producer.metadata_props:
                node.metadata_props[BRANCH] = producer.metadata_props[BRANCH]
            model.graph.insert_after(producer, [node])
    return model


def _input(model: ir.Model, name: str, default: Array) -> ir.Value:
    """A new input of any shape, with what it is where it is not fed."""
    value = ir.val(name, const_value=ir.tensor(default, name=name))
    value.shape = None
    model.graph.register_initializer(value)
    model.graph.inputs.append(value)
    return value

"""The auditor: every fact is checked against ONNX Runtime.

Intermediates are exposed and each fill fact is looked up. Then each value with dead facts is
overwritten with noise where it is dead, one value at a time, and no output may move. Overwriting
the *other* elements shows that the check has teeth (`tight`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from pitc.ir.constant import NZ, ZN, Constant, Range
from pitc.ir.graph import Array, Graph, output_names
from pitc.ir.region import Region
from pitc.passes.audit.points import blocks, sizes_of, where
from pitc.passes.audit.symbols import not_finite, wrong_symbols

if TYPE_CHECKING:
    import onnxruntime as ort

Feed = Mapping[str, Array]
NOISY = ("bool", "float32", "float64", "int32", "int64", "uint8")
RTOL, ATOL = 1e-5, 1e-6  # unmoved outputs are recomputed by the same kernels
NOISE_LIMIT = 1e4
WEIGHTS_FOLDER = "session.model_external_initializers_file_folder_path"


@dataclass(slots=True)
class AuditResult:
    """What the audit found.

    Args:
        fill_checks: Fill facts looked up, over all feeds.
        dead_checks: Values overwritten where dead, over all feeds.
        tight: How many of those move an output when the other elements are overwritten.
        faults: Runs that ONNX Runtime stopped (a dead index out of range, for example).
        failures: Facts that do not hold, one line each.
    """

    fill_checks: int = 0
    dead_checks: int = 0
    tight: int = 0
    faults: int = 0
    failures: list[str] = field(default_factory=list)


def audit(
    graph: Graph,
    given_up: Mapping[str, Sequence[Region]],
    feeds: Iterable[Feed],
    *,
    seed: int = 0,
    teeth: bool = True,
) -> AuditResult:
    """Check every fact of a graph on some inputs.

    Args:
        graph: The graph after `fill_facts` and `dead_facts`.
        given_up: The regions of outputs that were given to `dead_facts`.
        feeds: Input arrays by name.
        seed: Of the noise.
        teeth: Overwrite the live elements too, to count `tight`; half of the time.

    Returns:
        Counts and failures. A feed that ONNX Runtime itself refuses is left out.
    """
    result, rng = AuditResult(), np.random.default_rng(seed)
    run = _Runs(graph)
    constants_next = True  # what is said of constants is looked at once
    for number, feed in enumerate(feeds):
        values = run.expose(feed)
        if values is None:
            result.faults += 1
            continue
        at = f"feed {number}"
        sizes, clashes = sizes_of(graph, values)
        result.failures += [f"{at}: {text}" for text in clashes]
        if not clashes:
            names = [n for n in values if constants_next or not graph.is_constant(n)]
            constants_next = False
            result.failures += [f"{at}: {t}" for t in wrong_symbols(graph, values, sizes)]
            result.failures += [f"{at}: {t}" for t in not_finite(graph, names, values, sizes)]
            _check_fills(graph, names, values, sizes, at, result)
            _check_dead(run, given_up, feed, values, sizes, at, result, rng, teeth)
    return result


def _check_fills(
    graph: Graph,
    names: Iterable[str],
    values: Mapping[str, Array],
    sizes: Mapping[str, int],
    at: str,
    result: AuditResult,
) -> None:
    for name in names:
        x = values[name]
        for f in graph.fills.get(name, ()):
            result.fill_checks += 1
            for start, part in blocks(x):
                here = where(f.region, part.shape, sizes, values, start)
                if np.all(agrees(part[here], f.constant)):
                    continue
                result.failures.append(f"{at}: fill {f.constant} of {name} where {f.region}")
                break


def agrees(x: Array, c: Constant) -> Array:
    """Elementwise: is the value what the constant says?"""
    if isinstance(c, Range):
        return np.asarray((c.lo <= x) & (x <= c.hi))
    if c is ZN:
        return np.asarray((x == 0) | np.isnan(x))
    if c is NZ:
        return np.asarray(x != 0)
    with np.errstate(all="ignore"):
        return np.asarray(x == np.array(c).astype(x.dtype))


def _check_dead(
    run: "_Runs",
    given_up: Mapping[str, Sequence[Region]],
    feed: Feed,
    values: Mapping[str, Array],
    sizes: Mapping[str, int],
    at: str,
    result: AuditResult,
    rng: np.random.Generator,
    teeth: bool,
) -> None:
    graph = run.graph
    keep = {
        name: ~_any(given_up.get(name, ()), values[name].shape, sizes, values)
        for name in graph.outputs
    }
    for name in run.targets:
        x, regions = values.get(name), graph.dead.get(name, [])
        if x is None or not regions:
            continue
        dead = _any(regions, x.shape, sizes, values)
        if not dead.any():
            continue
        result.dead_checks += 1
        other = noise(x, rng)
        moved = run.moved(feed, name, dead, other, values, keep)
        result.faults += moved is None
        if moved:
            result.failures.append(f"{at}: dead {name} where {' or '.join(map(str, regions))}")
        if not teeth:
            continue
        if dead.all() or run.moved(feed, name, ~dead, other, values, keep) is not False:
            result.tight += 1


def _any(
    regions: Iterable[Region],
    shape: tuple[int, ...],
    sizes: Mapping[str, int],
    values: Mapping[str, Array],
) -> Array:
    out = np.zeros(shape, bool)
    for r in regions:
        out |= where(r, shape, sizes, values)
    return out


def noise(x: Array, rng: np.random.Generator) -> Array:
    """Other values of the tensor's own kind: they must stay in the domain of what reads them."""
    if x.dtype == np.bool_ or not x.size:
        return ~x if x.dtype == np.bool_ else x
    if x.dtype.kind != "f":
        return rng.choice(x.reshape(-1), x.shape)
    known = x[np.isfinite(x)].clip(-NOISE_LIMIT, NOISE_LIMIT)
    if not known.size:
        known = np.ones(1, x.dtype)
    low, high = known.min(), known.max()
    if low == high:  # close by, towards 0
        other = low * rng.uniform(0.9, 1, x.shape) if low else rng.uniform(0, 0.1, x.shape)
    else:
        other = (rng.choice(known, x.shape) * rng.uniform(0.5, 2, x.shape)).clip(low, high)
    return np.asarray(other, x.dtype)


def same(a: Array, b: Array, keep: Array) -> bool:
    """True when two outputs agree at the kept elements."""
    if a.shape != b.shape:
        return False
    if a.dtype.kind != "f":
        return bool(np.array_equal(a[keep], b[keep]))
    return bool(np.allclose(a[keep], b[keep], rtol=RTOL, atol=ATOL, equal_nan=True))


class _Runs:
    """A session over one graph with all values exposed, and a switch at every target."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.names = _exposable(graph)
        self.targets = _targets(graph)
        self._session = _session(_injected_model(graph, self.targets, self.names))
        self._quiet: dict[str, Array] = {}
        for name in self.targets:
            self._quiet |= self._switch(name, np.array(False), np.zeros((), graph.dtypes[name]))

    def expose(self, feed: Feed) -> dict[str, Array] | None:
        """Every value of the graph for one feed; None when ONNX Runtime stops."""
        try:
            found = self._session.run(self.names, {**feed, **self._quiet})
        except Exception:  # the runtime's exception classes are not public
            return None
        graph = self.graph
        values = {n: x for n, x in zip(self.names, found, strict=True) if isinstance(x, np.ndarray)}
        values |= {name: np.asarray(x) for name, x in feed.items()}
        constants = ((name, graph.array(name)) for name in graph.constants())
        return values | {name: x for name, x in constants if x is not None}

    def moved(
        self,
        feed: Feed,
        name: str,
        places: Array,
        other: Array,
        values: Mapping[str, Array],
        keep: Mapping[str, Array],
    ) -> bool | None:
        """Whether an output moves when a value is overwritten; None when ONNX Runtime stops."""
        switched = {**feed, **self._quiet, **self._switch(name, places, other)}
        try:
            got = self._session.run(self.graph.outputs, switched)
        except Exception:  # the runtime's exception classes are not public
            return None
        outputs = zip(self.graph.outputs, got, strict=True)
        return not all(same(np.asarray(x), values[name], keep[name]) for name, x in outputs)

    def _switch(self, name: str, places: Array, other: Array) -> dict[str, Array]:
        if self.graph.dtypes[name] == np.bool_:
            return {_select(name): places}
        return {_select(name): places, _noise(name): other}


def exposed(graph: Graph, feed: Feed) -> dict[str, Array] | None:
    """Every value of a graph for one feed; None when ONNX Runtime stops."""
    return _Runs(graph).expose(feed)


def _select(name: str) -> str:
    return f"{name}:select"


def _noise(name: str) -> str:
    return f"{name}:noise"


def _session(model: ir.Model) -> "ort.InferenceSession":
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    for tensor in (v.const_value for g in model.graphs() for v in g.initializers.values()):
        if isinstance(tensor, ir.ExternalTensor):  # stays in its file: a proto ends at 2 GB
            options.add_session_config_entry(WEIGHTS_FOLDER, str(tensor.base_dir))
            break
    payload = ir.to_proto(model).SerializeToString()
    return ort.InferenceSession(payload, options, providers=["CPUExecutionProvider"])


def _exposable(graph: Graph) -> list[str]:
    computed = [o for n in graph.nodes for o in output_names(n) if graph.shapes.get(o) is not None]
    return list(dict.fromkeys([*computed, *graph.outputs]))


def _targets(graph: Graph) -> list[str]:
    """Values with dead facts that can be overwritten.

    A NaN guard's own flag is not free: it keeps dead rows finite, and 0 * NaN is not 0.
    """
    out = []
    for name, regions in graph.dead.items():
        dtype, producer = graph.dtypes.get(name), graph.producers.get(name)
        if not regions or dtype is None or str(dtype) not in NOISY or name in graph.captured:
            continue
        if graph.uses.get(name) and (producer is None or producer.op_type != "IsNaN"):
            out.append(name)
    return out


def _values(model: ir.Model) -> Iterable[ir.Value]:
    yield from model.graph.inputs
    yield from model.graph.initializers.values()
    for node in model.graph:
        yield from node.outputs


def _injected_model(graph: Graph, targets: Sequence[str], names: Sequence[str]) -> ir.Model:
    """Every target T becomes Where(T:select, T:noise, T), or Xor(T:select, T) for bools.

    The outputs are the named values.
    """
    model = graph.model.clone()
    values = {v.name: v for v in _values(model)}
    outputs = {id(v) for v in model.graph.outputs}
    for name in targets:
        value = values[name]
        dtype = graph.dtypes[name]
        select = ir.val(_select(name), ir.DataType.BOOL)
        model.graph.inputs.append(select)
        if dtype == np.bool_:
            node = ir.node("Xor", [select, value])
        else:
            other = ir.val(_noise(name), ir.DataType.from_numpy(dtype))
            model.graph.inputs.append(other)
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
            model.graph.insert_after(producer, [node])
    values = {v.name: v for v in _values(model)}
    model.graph.outputs[:] = [values[name] for name in names]
    for v in values.values():
        if v.producer() is not None:
            v.shape = None
    return model

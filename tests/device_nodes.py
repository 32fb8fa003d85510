"""ONNX's backend node tests around our device: each model alone, in which nothing may change, and
with what it reads and gives passing through PIT nodes.

    x ---------------------------------> test -> y            alone
    x', mask -> (x' @ 1) * mask -> x --> test -> (y @ 1) * mask -> y       passed through

Rows of x' that the mask drops are noise; the rows of x are those that it keeps, in order. Products
with a unit matrix are exact, so results are compared as those of CPUs are.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.runner import Runner

from pitc.check.feeds import Case as Feeds
from tests.device_models import Model
from tests.plugin.test_backend_nodes import Case, cases

Array = Any
KINDS = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16}
OLDEST = 13  # whose Unsqueeze takes axes as an operand, as ours does
WIDEST = 64
DEAD = 3  # rows that a mask drops


class Passing:
    """Adds PIT nodes around the inputs and outputs of a model, which is changed in place."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.graph = model.graph
        self.before: list[onnx.NodeProto] = []
        self.after: list[onnx.NodeProto] = []

    def constant(self, name: str, array: Array) -> str:
        self.graph.initializer.append(numpy_helper.from_array(array, name))
        return name

    def product(self, source: str, mask: str, result: str, array: Array) -> list[onnx.NodeProto]:
        """Nodes of result = (source @ 1) * mask; source is [1, rows, width]."""
        kind, width = KINDS[array.dtype], array.shape[-1]
        unit = self.constant(f"{result}.unit", np.eye(width, dtype=array.dtype))
        last = self.constant(f"{result}.last", np.array([-1], np.int64))
        return [
            helper.make_node("Cast", [mask], [f"{result}.cast"], to=kind),
            helper.make_node("Unsqueeze", [f"{result}.cast", last], [f"{result}.wide"]),
            helper.make_node("MatMul", [source, unit], [f"{result}.all"]),
            helper.make_node("Mul", [f"{result}.all", f"{result}.wide"], [result]),
        ]

    def mask(self, name: str, rows: int) -> None:
        info = helper.make_tensor_value_info(name, TensorProto.INT64, [1, rows])
        self.graph.input.append(info)

    def reads(self, info: onnx.ValueInfoProto, x: Array, seed: int) -> dict[str, Array]:
        """An input comes from a product; returns what is read in its place."""
        rng, name = np.random.default_rng(seed), info.name
        flat = rows_of(x)
        count = flat.shape[1] + DEAD
        dead = rng.choice(count, DEAD, replace=False)
        kept = np.setdiff1d(np.arange(count), dead)
        given = rng.normal(size=(1, count, flat.shape[2])).astype(x.dtype)
        given[:, kept] = flat
        live = np.ones((1, count), np.int64)
        live[:, dead] = 0
        outside, mask = f"{name}.given", f"{name}.mask"
        kind = KINDS[x.dtype]
        info.CopyFrom(helper.make_tensor_value_info(outside, kind, given.shape))
        self.mask(mask, count)
        self.before += self.product(outside, mask, f"{name}.rows", given)
        places = self.constant(f"{name}.kept", kept)
        shape = self.constant(f"{name}.shape", np.array(x.shape, np.int64))
        self.before += [
            helper.make_node("Gather", [f"{name}.rows", places], [f"{name}.live"], axis=1),
            helper.make_node("Reshape", [f"{name}.live", shape], [name]),
        ]
        return {outside: given, mask: live}

    def gives(self, info: onnx.ValueInfoProto, y: Array) -> dict[str, Array]:
        """An output goes through a product, all of whose rows live; returns what is read."""
        name, flat = info.name, rows_of(y)
        shape = self.constant(f"{name}.flat", np.array(flat.shape, np.int64))
        whole = self.constant(f"{name}.whole", np.array(y.shape, np.int64))
        mask, result = f"{name}.mask", f"{name}.passed"
        info.CopyFrom(helper.make_tensor_value_info(result, KINDS[y.dtype], y.shape))
        self.mask(mask, flat.shape[1])
        self.after.append(helper.make_node("Reshape", [name, shape], [f"{name}.rows"]))
        self.after += self.product(f"{name}.rows", mask, f"{name}.product", flat)
        self.after.append(helper.make_node("Reshape", [f"{name}.product", whole], [result]))
        return {mask: np.ones(flat.shape[:2], np.int64)}

    def finish(self) -> onnx.ModelProto:
        """The model with all of its nodes in order."""
        nodes = [*self.before, *self.graph.node, *self.after]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        return self.model


def rows_of(x: Array) -> Array:
    """An array as [1, rows, width]."""
    width = x.shape[-1] if x.ndim and x.shape[-1] <= WIDEST else 1
    return x.reshape(1, -1 if x.size else int(np.prod(x.shape[:-1])), width)


def passes(x: Any) -> bool:
    """Whether a product with a unit matrix leaves every bit of a value."""
    if not isinstance(x, np.ndarray) or x.dtype not in KINDS or not x.size:
        return False
    return bool(np.isfinite(x).all()) and not bool((np.signbit(x) & (x == 0)).any())


def passed_through(case: Case) -> Model | None:
    """A test whose floats pass through PIT nodes; None where it has none that can."""
    opset = max((o.version for o in case.model.opset_import if o.domain == ""), default=0)
    inputs, outputs = case.data[0]
    if opset < OLDEST:
        return None
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    passing, feeds = Passing(model), {}
    own = {t.name for t in model.graph.initializer}
    infos = [i for i in model.graph.input if i.name not in own]
    for seed, (info, x) in enumerate(zip(infos, inputs, strict=False)):
        feeds |= passing.reads(info, x, seed) if passes(x) else {info.name: x}
    for info, y in zip(list(model.graph.output), outputs, strict=False):
        if passes(y) and info.name not in own | {i.name for i in infos}:
            feeds |= passing.gives(info, y)
    if not passing.before and not passing.after:
        return None
    data = functools.partial(unlike, case)
    return Model(passing.finish(), [Feeds("data", {}, feeds)], eager=True, data=data)


def unlike(case: Case, number: int, outputs: Sequence[Any]) -> str:
    """How outputs differ from what ONNX expects; empty where they do not."""
    try:
        Runner.assert_similar_outputs(case.data[number][1], outputs, case.rtol, case.atol)
    except (AssertionError, AttributeError, TypeError) as error:
        return str(error).strip().splitlines()[0] if str(error).strip() else "other values"
    return ""


def alone(case: Case) -> Model:
    """A test as it is."""
    own = {t.name for t in case.model.graph.initializer}
    names = [i.name for i in case.model.graph.input if i.name not in own]
    feeds = [dict(zip(names, inputs, strict=False)) for inputs, _ in case.data]
    data = functools.partial(unlike, case)
    return Model(case.model, [Feeds("data", {}, x) for x in feeds], data=data)


@functools.cache
def node_models() -> Mapping[str, Callable[[], Model]]:
    """All of them."""
    return {case.name: functools.partial(alone, case) for case in cases()}


@functools.cache
def passed_models() -> Mapping[str, Callable[[], Model]]:
    """Those whose values can pass through PIT nodes."""
    made = {case.name: passed_through(case) for case in cases()}
    return {name: functools.partial(_same, model) for name, model in made.items() if model}


def _same(model: Model) -> Model:
    return model


__all__: Sequence[str] = ("alone", "node_models", "passed_models", "passed_through")

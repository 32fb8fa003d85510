"""The imported model beside the normalised one: what rewrites must not change."""

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from pitc.ir.graph import Array
from pitc.passes.audit.runs import Feed, ran, session_of

#: Largest difference of a float, as a share of the output's largest number.
SHARE = {"float16": 4e-3, "float32": 1e-5, "float64": 1e-10}
JITTERS = 3  # runs that show how much an output moves by rounding alone
STEP = {"float16": 1e-3, "float32": 1e-6, "float64": 1e-12}


class Source:
    """The model as it was imported.

    Args:
        model: The model; it is not changed.
        wanted: Names of inner values that are of interest. Those of the main graph are shown.
    """

    def __init__(self, model: ir.Model, wanted: Collection[str] = ()) -> None:
        shown = model.clone()
        self.outputs = [v.name or "" for v in model.graph.outputs]
        computed = {v.name: v for n in shown.graph for v in n.outputs if v.name}
        inner = [n for n in wanted if n in computed and n not in self.outputs]
        plain = list(shown.graph.outputs)
        shown.graph.outputs.extend(computed[n] for n in inner)
        for value in computed.values():
            value.shape = None
        try:
            self._session = session_of(shown)
        except Exception:  # what it shows may be no tensor
            inner, shown.graph.outputs[:] = [], plain
            self._session = session_of(shown)
        self.names = [*self.outputs, *inner]

    def run(self, feed: Feed) -> dict[str, Array] | None:
        """Its outputs and the inner values that are shown; None when it does not take the feed."""
        return ran(self._session, self.names, feed)

    def unequal(self, feed: Feed, want: Mapping[str, Array], got: Mapping[str, Array]) -> list[str]:
        """One line for each output of the normalised model that is another one."""
        found = []
        for name in self.outputs:
            x, y = want.get(name), got.get(name)
            if x is None or y is None or x.dtype.kind in "SUO":
                continue
            if x.shape != y.shape or x.dtype != y.dtype:
                found.append(f"output {name} is {y.dtype}{y.shape}, imported {x.dtype}{x.shape}")
            elif not np.all(_near(x, y)) and not np.all(_near(x, y) | self._moving(feed, name, x)):
                found.append(f"output {name} is not that of the imported model")
        return found

    def _moving(self, feed: Feed, name: str, x: Array) -> Array:
        """Elements of an output that rounding decides, or chance."""
        moving = np.zeros(x.shape, bool)
        for trial in range(JITTERS):
            rng = np.random.default_rng(trial)
            moved = {n: _jittered(v, rng) if trial else v for n, v in feed.items()}
            again = ran(self._session, [name], moved)
            if again is None or name not in again or again[name].shape != x.shape:
                return np.ones(x.shape, bool)
            moving |= ~_near(x, again[name])
        return moving


def _near(x: Array, y: Array) -> Array:
    """Elementwise: equal, but for rounding."""
    with np.errstate(all="ignore"):
        equal = np.asarray((x == y) | ((x != x) & (y != y)))
        share = SHARE.get(x.dtype.name)
        if share is None:
            return equal
        largest = float(np.abs(x[np.isfinite(x)]).max(initial=0))
        return equal | (np.abs(x.astype(np.float64) - y) <= share * largest)


def _jittered(x: Array, rng: np.random.Generator) -> Array:
    step = STEP.get(x.dtype.name)
    if step is None:
        return x
    with np.errstate(all="ignore"):
        return np.asarray(x * (1 + step * rng.uniform(-1, 1, x.shape)), x.dtype)

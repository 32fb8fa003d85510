"""Contractions of one size, each timed with every variant by force.

Before each run so much other memory is read that nothing of the weights is left in a cache: they
come from memory, as those of the next layer of a real model do.
"""

import tempfile
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pitc.host.machine import cpu_caches
from pitc.ir.tiles import TileTable, VariantCost, Work
from pitc.ir.variants import FEATURES, VARIANTS
from pitc.measure.trace import Decision, take_trace, traced_session
from pitc.options import TABLE_LEVELS
from pitc.tiles.patterns import Array

if TYPE_CHECKING:
    import onnx

LARGEST_CACHE = 128 << 20
"""Bytes that are assumed where the system does not tell."""
LEAST_SHARE = 0.95
"""Of the time of a run, its thread has a core; else it was disturbed."""
MOST_TRIES = 3
"""Runs for each one that counts."""
IDLE_S = 0.035
"""After a run so many seconds go by until ONNX Runtime's threads sleep (measured: 0.028)."""
HOPELESS = 4.0
"""A variant that takes so many times what the best one takes is not timed again."""

#: Everything is offered, whatever it costs.
OFFER_ALL = TileTable(
    {level: dict.fromkeys(VARIANTS, VariantCost((0,) * len(FEATURES))) for level in TABLE_LEVELS}
)


@dataclass(frozen=True, slots=True)
class Timed:
    """What the variants took on one operand.

    Args:
        work: What the detector counted.
        us: Microseconds by variant.
        decision: The last one, with what was predicted.
    """

    work: Work
    us: Mapping[str, float]
    decision: Decision


class Contractions:
    """Sessions of one model, one for each variant that is forced. Made by `contractions`."""

    def __init__(self, sessions: Mapping[str, Any], traces: Path, threads: int) -> None:
        self._sessions, self._traces, self._threads = sessions, traces, threads
        self._order = np.random.default_rng(0)
        self._flood = np.ones(cache_bytes() // 4 * 2, np.float32)

    def time(
        self,
        a: Array,
        variants: Iterable[str] = VARIANTS,
        rounds: int = 5,
    ) -> Timed:
        """Time variants on an operand, interleaved; hopeless ones only once or twice.

        Args:
            a: The operand, f32 [rows, k].
            variants: Variants to time.
            rounds: Undisturbed runs of each that are wanted.
        """
        taken: dict[str, list[Sample]] = {v: [] for v in variants}
        last: Decision | None = None
        for variant in variants:  # the first run maps pages
            last, _ = self.run(a, variant)
        for _ in range(MOST_TRIES * rounds):
            best = min((min(t).us for t in taken.values() if t), default=float("inf"))
            hopeless = Sample(False, HOPELESS * best)
            for variant in self._order.permutation(list(taken)):  # neighbours share code in caches
                samples = taken[variant]
                good = [s for s in samples if not s.disturbed]
                if len(good) >= (2 if good and min(good) > hopeless else rounds):
                    continue
                last, sample = self.run(a, variant)
                samples.append(sample)
        assert last is not None, "no variant to time"
        return Timed(last.work, {v: _typical(t) for v, t in taken.items()}, last)

    def run(self, a: Array, variant: str) -> "tuple[Decision, Sample]":
        """Run the product with a variant."""
        if self._threads > 1:
            # Threads of another session wait for work at first, on a core, and ours are to do so.
            time.sleep(IDLE_S)
            self._sessions[variant].run(None, {"x": a})
            take_trace(self._traces / variant)
        self._flood.max()
        wall, cpu = time.perf_counter(), time.process_time()
        self._sessions[variant].run(None, {"x": a})
        share = (time.process_time() - cpu) / max(time.perf_counter() - wall, 1e-9) / self._threads
        (decision,) = take_trace(self._traces / variant)
        return decision, Sample(share < LEAST_SHARE, decision.measured_us)


@dataclass(frozen=True, slots=True, order=True)
class Sample:
    """The time of one run; the smaller, the better it is as a measurement.

    Args:
        disturbed: A thread had to wait for its core.
        us: Microseconds, waiting included.
    """

    disturbed: bool
    us: float


def _typical(samples: Sequence[Sample]) -> float:
    """The first quartile: of a machine without neighbours, but not of luck."""
    return sorted(samples)[len(samples) // 4].us


def cache_bytes() -> int:
    """The size of the largest cache."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    sizes = [int(s[:-1]) * units[s[-1]] for _, s in cpu_caches() if s[-1:] in units]
    return max(sizes, default=LARGEST_CACHE)


def numbers_of(level: str) -> int:
    """Numbers of A in an element of it: words of bfloat16 have two."""
    return 2 if level == "v4_amx" else 1


def product_model(k: int, n: int) -> "onnx.ModelProto":
    """`y = relu(x) @ w`, w f32 [k, n]."""
    from onnx import numpy_helper, parser

    w = np.random.default_rng(0).standard_normal((k, n), np.float32)
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17]> of_one_size (float[rows, {k}] x)'
        f" => (float[rows, {n}] y) {{ [relu] h = Relu (x) [product] y = MatMul (h, w) }}"
    )
    model.graph.initializer.append(numpy_helper.from_array(w, "w"))
    return model


@contextmanager
def contractions(
    k: int, n: int, level: str, table: TileTable = OFFER_ALL, *, threads: int = 1
) -> Iterator[Contractions]:
    """Compile a product of one size, and make a session for every variant.

    Args:
        k: Rows of the constant matrix.
        n: Its columns.
        level: CPU level of the kernels.
        table: The prices in the model.
        threads: How many work.
    """
    from pitc import api
    from pitc.errors import PitcWarning

    with tempfile.TemporaryDirectory(prefix="pitc-tune-") as folder:
        traces = Path(folder)
        rounded = numbers_of(level) > 1
        compiled = api.compile(
            product_model(k, n),
            "cpu:v4" if rounded else f"cpu:{level}",
            precision="bf16" if rounded else "float32",
            tiles=table,
            suggest=False,
        )
        with warnings.catch_warnings():  # a level below that of the CPU is what was asked for
            warnings.simplefilter("ignore", PitcWarning)
            sessions = {
                v: traced_session(compiled, traces / v, threads=threads, variant=v, cpu_level=level)
                for v in VARIANTS
            }
        yield Contractions(sessions, traces, threads)

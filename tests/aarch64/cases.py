"""Models that run on the emulated machine: those of the emulated GPU, and some more."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from models.cnn import CnnConfig, cnn, draw_gates
from models.masked import block_sparse, product
from models.opt import OptConfig, opt, opt_ffn
from models.routed import RoutedConfig, routed
from models.sparsity import Sparsity
from pitc.check.feeds import Case
from pitc.ir.variants import VARIANTS
from tests.device_models import Model
from tests.device_sources import branches, builders, exports, fused, model_of

Make = Callable[[], Model]

STEP = 9
"""Every so manieth model of a large source is in the sample."""
DENSITIES = (0.0, 0.5, 0.95, 1.0)


def sparse_product(variant: str) -> Model:
    """A product behind ReLU, all of whose zeros are skipped in one way."""
    rng = np.random.default_rng(0)
    cases = []
    for rows, zeros in itertools.product((0, 1, 7, 70), DENSITIES):
        x = block_sparse(rng, (rows, 256), (1, 1) if rows % 2 else (8, 32), zeros)
        cases.append(Case(f"zeros={zeros}", {"rows": rows}, {"x": x}))
    return Model(product(256, 96, rng), cases, given={"variant": variant})


def sparse_ffn(variant: str) -> Model:
    """Feed-forward blocks with few neurons that live, likewise."""
    rng = np.random.default_rng(1)
    config = OptConfig(layers=2, hidden=128, ffn=512, sparsity=Sparsity(0.95, 0.85))
    return replace(model_of(opt_ffn(config, rng), None, 1), given={"variant": variant})


def gated_cnn() -> Model:
    """Convolutions whose channels are closed for a batch."""
    rng, config = np.random.default_rng(2), CnnConfig((16, 32), depth=1, size=12, closed=0.5)
    cases = []
    for batch in (1, 3):
        image = rng.standard_normal((batch, 3, config.size, config.size), np.float32)
        feeds = {"image": image, **draw_gates(config, rng, batch)}
        cases.append(Case("gates", {"batch": batch}, feeds))
    return Model(cnn(config, rng), cases, eager=True)


def own() -> Mapping[str, Make]:
    """What the sources of the emulated GPU do not have."""
    made: dict[str, Make] = {"gated cnn": gated_cnn}
    for variant in VARIANTS:
        made[f"product {variant}"] = functools.partial(sparse_product, variant)
        made[f"ffn {variant}"] = functools.partial(sparse_ffn, variant)
    for dtype in (np.float32, np.float16):
        experts = RoutedConfig(dtype=dtype)
        made[f"experts {np.dtype(dtype)}"] = lambda c=experts: replace(
            model_of(routed(c, np.random.default_rng(3)), None, 3), eager=True
        )
    cached = opt(OptConfig(), np.random.default_rng(4), cached=True)
    made["opt with a cache"] = lambda: model_of(cached, "attention_mask", 4)
    return made


SOURCES: dict[str, Callable[[], Mapping[str, Make]]] = {
    "own": own,
    "fused": fused,
    "builders": builders,
    "branches": branches,
    "exports": exports,
}


def chosen(which: str) -> Iterator[tuple[str, Make]]:
    """Models by their names; the rounding of products in tf32 is of GPUs alone."""
    for source, models in SOURCES.items():
        made = models()
        names = [name for name in made if not name.endswith("tf32")]
        if which == "sample":
            names = names if source in ("own", "fused") else names[::STEP]
        elif which not in ("all", source):
            continue
        yield from ((f"{source}: {name}", made[name]) for name in names)

"""Where the models come from that run on the GPU that is not there, each by its name."""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from models.bert import MASK_DTYPES, TINY, BertConfig, bert
from models.half import half
from models.heads import HEADS
from models.masked import MlpConfig, masked_mlp
from models.masks import MASKS
from models.opt import OptConfig, opt, opt_ffn
from models.t5 import T5Config, t5_decoder, t5_encoder, t5_ffn
from pitc.api import import_model
from pitc.check.feeds import Case as Feeds
from pitc.check.feeds import InputSpec, input_specs, named_dims, random_feeds, sizes_of
from pitc.check.tolerance import FLOORS
from pitc.ir.gpu_speed import GpuPrices
from pitc.ir.report import TokenPlace
from pitc.passes.pipeline import Lowered
from tests.attention_masks import MODELS as MASKED
from tests.branch_models import MASKS as BRANCH_MASKS
from tests.branch_models import PADDING, feeds_of, model
from tests.declared_tokens import token_axes
from tests.device_kernels import emulated_library, kept_kernels, save_with
from tests.device_models import (
    DONE,
    EXACT,
    TF32_KERNELS,
    Check,
    Model,
    Outcome,
    checks,
    nodes_on_device,
)
from tests.device_nodes import node_models, passed_models
from tests.device_support import FakeDriver, session
from tests.fused_models import KINDS, X, lengths, mask_of
from tests.lowered_exports import masks_of
from tests.onnx.test_control_flow import MODELS
from tests.onnx.test_control_loops import LOOPS, refined
from tests.onnx.test_fused_lowering import FUSED, LAYERS, layer
from tests.plugin.test_exports import FILES, QUANTISED
from tests.random_check import Machine, Run, check_seed, lowering_everything

Make = Callable[[], Model]

WIDE, SHORT, LONG = (3, 17, 5, 7), (1, 1, 1, 1), (2, 33, 3, 9)
ODD = (2, 9, 5, 3)
FORMS: dict[str, dict[str, Any]] = {
    "gelu_tanh": {"activation": "gelu_tanh"},
    "relu": {"activation": "relu"},
    "gelu_op": {"activation": "gelu_op", "opset": 20},
    "gemm": {"linear": "gemm"},
    "transpose": {"linear": "transpose"},
    "decomposed": {"norm": "decomposed", "opset": 13},
    "scores mul": {"scores": "mul"},
    "scores split": {"scores": "split"},
    "odd sizes": {"hidden": 12, "heads": 3, "ffn": 5},
    "one head": {"layers": 1, "heads": 1},
    "like MiniLM": {"hidden": 96, "heads": 12, "ffn": 384, "head": "mean_normalised"},
}
# tf32 keeps as many bits of a factor as float16.
IN_TYPE: dict[str, dict[str, Any]] = {"tf32": {"given": {}, "tolerance": FLOORS["tf32"]}}
INT8_STEP = 2**-7
"""Where float16 is rounded decides between two steps of int8: in ONNX Runtime alone the static
export in float16 is 0.0069 of its norm away from float32."""
IN_TF32 = ("opt", "opt ffn", "t5 encoder", "mask sdpa", "like MiniLM")
BUILDERS: dict[str, Callable[[np.random.Generator], onnx.ModelProto]] = {
    "opt": lambda rng: opt(OptConfig(), rng),
    "opt ffn": lambda rng: opt_ffn(OptConfig(layers=2, hidden=128, ffn=512), rng),
    "t5 encoder": lambda rng: t5_encoder(T5Config(), rng),
    "t5 decoder": lambda rng: t5_decoder(T5Config(), rng),
    "t5 ffn": lambda rng: t5_ffn(T5Config(layers=2, hidden=128, ffn=512), rng),
    "masked mlp": lambda rng: masked_mlp(MlpConfig((64, 160, 96), (8, 4)), rng),
}


def feeds_for(specs: list[InputSpec], padding: str | None, seed: int) -> Iterator[Feeds]:
    """Masks of several kinds, of nothing and of everything, one live token; sizes of 0, 1 and odd
    ones.
    """
    names = named_dims(specs)
    patterns = ("right", "left", "holes", "empty")
    plans: list[tuple[str, tuple[int, ...], dict[str, int], str]] = [
        (patterns[seed % 4], WIDE, {}, ""),
        (patterns[(seed + 1) % 4], LONG, {}, ""),
        (patterns[(seed + 2) % 4], ODD, {}, ""),
        ("full", ODD, {}, ""),
        ("full", ODD, {}, "nothing"),
        ("full", ODD, {}, "one"),
        ("full", SHORT, {}, ""),
        ("full", SHORT, {}, "nothing"),
        *(("right", ODD, {name: 0}, "") for name in names[:2]),
    ]
    for number, (pattern, sizes, fixed, live) in enumerate(plans):
        rng = np.random.default_rng((seed, number))
        dims = sizes_of(names, {}, sizes) | fixed
        dims = sizes_of(names, {n: x for n, x in dims.items() if "+" not in n}, sizes)
        fed = random_feeds(specs, dims, rng, pattern, padding)
        for spec in specs:
            masked = spec.name == padding if padding else spec.mask_like
            if live and masked and not spec.name.endswith("type_ids"):
                mask = np.zeros_like(fed[spec.name])
                if live == "one":
                    mask.flat[rng.integers(mask.size)] = 1
                fed[spec.name] = mask
        yield Feeds(live or pattern, dims, fed)


def model_of(proto: onnx.ModelProto, padding: str | None, seed: int, **other: Any) -> Model:
    """A model with drawn inputs; its padding mask is 0 and 1."""
    specs = input_specs(import_model(proto)[0])
    tokens: dict[str, TokenPlace] = {}
    if padding:
        mask = declared_sizes(proto.graph.input)[padding]
        tokens = token_axes(mask, declared_sizes(proto.graph.output))
    feeds = list(feeds_for(specs, padding, seed))
    return Model(proto, feeds, padding, tokens, **other)


def declared_sizes(values: Iterable[onnx.ValueInfoProto]) -> dict[str, list[int | str]]:
    """Declared shapes by name."""
    return {
        v.name: [d.dim_value or d.dim_param for d in v.type.tensor_type.shape.dim] for v in values
    }


def of_file(file: Path, padding: str | None, seed: int, kind: str) -> Model:
    """A real export: as it is, in half precision, or with products in tf32."""
    proto = onnx.load(file)
    other = IN_TYPE.get(kind, {})
    if kind == "half":
        proto = half(proto)
        other = {"tolerance": INT8_STEP} if file in QUANTISED else other
    return model_of(proto, padding, seed, **other)


def exports() -> Mapping[str, Make]:
    """`models/export`: with padding and without, float32 and float16, some in tf32."""
    made: dict[str, Make] = {}
    for seed, file in enumerate([*FILES, *FUSED]):
        found = masks_of(file)
        named = [m for m in ("decoder_attention_mask", "attention_mask") if m in found]
        padding = named[0] if named else None
        name = file.stem + (" fused" if file in FUSED else "")
        kinds = ["", "half"] + (["tf32"] if name.startswith(("bert-sdpa", "t5-eager")) else [])
        for kind in kinds:
            made[f"{name} {kind}".strip()] = functools.partial(of_file, file, padding, seed, kind)
        if padding:
            made[f"{name} without"] = functools.partial(of_file, file, None, seed, "")
    return made


def built(make: Callable[[np.random.Generator], onnx.ModelProto], kind: str, seed: int) -> Model:
    proto = make(np.random.default_rng(seed))
    padding = next((i.name for i in proto.graph.input if i.name == "attention_mask"), None)
    proto = half(proto) if kind == "half" else proto
    return model_of(proto, padding, seed, **IN_TYPE.get(kind, {}))


def _bert(config: BertConfig) -> Callable[[np.random.Generator], onnx.ModelProto]:
    return lambda rng: bert(config, rng)


def builders() -> Mapping[str, Make]:
    """`models/`: every dialect of masks, head and form of BERT, decoders, feed-forward blocks."""
    forms = dict(BUILDERS)
    for mask in MASKS:
        forms[f"mask {mask}"] = _bert(replace(TINY, mask=mask))
    for dtype in MASK_DTYPES[1:]:
        forms[f"mask of {dtype}"] = _bert(replace(TINY, mask_dtype=dtype))
    for head in HEADS:
        forms[f"head {head}"] = _bert(replace(TINY, head=head))
    for name, form in FORMS.items():
        forms[name] = _bert(replace(TINY, **form))
    made: dict[str, Make] = {}
    for seed, (name, make) in enumerate(forms.items()):
        for kind in ("", "half", *(["tf32"] if name in IN_TF32 else [])):
            made[f"{name} {kind}".strip()] = functools.partial(built, make, kind, seed)
    return made


def in_branches(make: Any, padding: str | None) -> Model:
    proto = model(make)
    given = [feeds_of(proto, mask, seed) for seed, mask in enumerate(BRANCH_MASKS.values())]
    feeds = [Feeds(name, {}, x) for name, x in zip(BRANCH_MASKS, given, strict=True)]
    tokens = token_axes(["b", "s"], declared_sizes(proto.graph.output)) if padding else {}
    return Model(proto, feeds, padding, tokens, eager=True)


def branches() -> Mapping[str, Make]:
    """Models with If, Loop and Scan."""
    both = {**MODELS, **{f"loop {name}": make for name, (make, _) in LOOPS.items()}}
    both["loop with PIT nodes"] = refined(9)
    made: dict[str, Make] = {}
    for name, make in both.items():
        made[name] = functools.partial(in_branches, make, None)
        made[f"{name} padded"] = functools.partial(in_branches, make, PADDING)
    return made


def fused_layer(label: str) -> Model:
    padding = "m" if "causal" in label else "tokens"
    keys = lengths if "length" in label else mask_of
    feeds = []
    for own in KINDS:
        for kept in ("left", "holes", "empty"):
            live = mask_of(own if padding == "m" else kept).astype(np.int64)
            feeds.append(Feeds(f"{own} {kept}", {}, X | {"m": keys(own), "tokens": live}))
    # where a sequence keeps no key, -1e4 is added to all of its scores, which rounds them
    tokens = {"y": TokenPlace("", 0, 1)}
    return Model(layer(label), feeds, padding, tokens, tolerance=1e-3, eager=True)


def fused() -> Mapping[str, Make]:
    """Fused operators that run packed."""
    return {label: functools.partial(fused_layer, label) for label in LAYERS}


def under_mask(name: str) -> Model:
    proto, drawn = MASKED[name]()
    feeds = [Feeds("drawn", {n: len(x) for n, x in feed.items()}, feed) for feed in drawn]
    return Model(proto, feeds, eager=name.startswith("layer"))


def masks() -> Mapping[str, Make]:
    """Attention under masks of pairs."""
    return {name: functools.partial(under_mask, name) for name in MASKED}


SEEDS = 500


def random_graph(seed: int, folder: Path) -> Outcome:
    """Check what a random graph computes; its facts are those of every machine."""
    out = Outcome(counts=Counter(models=1))

    def runner(lowered: Lowered) -> Run:
        proto = ir.to_proto(lowered.model)
        plans = list(nodes_on_device(proto.graph))
        out.counts.update({"PIT nodes": len(plans), "models with PIT nodes": bool(plans)})
        out.counts.update(f"op {plan['op']}" for plan in plans)
        folder.mkdir(parents=True)
        path = folder / "model.onnx"
        if lowered.kernels:
            library = emulated_library(*lowered.kernels, without=TF32_KERNELS)
            save_with(folder, library, proto, path.name)
        else:
            onnx.save(proto, path)
        run = session(path, given=EXACT, optimise=False)

        def answer(feed: Mapping[str, Any]) -> Sequence[Any]:
            with FakeDriver().counted() as counts:
                found: Sequence[Any] = run.run(None, dict(feed))
            out.counts.update({name: counts[name] for name in DONE}, runs=1)
            return found

        return answer

    machine = Machine("cuda", GpuPrices(), runner, audits=False)
    with kept_kernels(TF32_KERNELS), lowering_everything():
        found = check_seed(seed, machine)
    out.failures += found.failures
    out.counts["refused feeds"] = found.counts.get("refused feeds", 0)
    return out


def random_graphs() -> Mapping[str, Check]:
    """Graphs by their seeds."""
    return {str(seed): functools.partial(random_graph, seed) for seed in range(SEEDS)}


SOURCES: dict[str, Callable[[], Mapping[str, Check]]] = {
    "nodes": lambda: checks(node_models()),
    "passed": lambda: checks(passed_models()),
    "exports": lambda: checks(exports()),
    "builders": lambda: checks(builders()),
    "branches": lambda: checks(branches()),
    "fused": lambda: checks(fused()),
    "masks": lambda: checks(masks()),
    "random": random_graphs,
}

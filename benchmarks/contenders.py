"""Who competes: for each kind of case a table with one row per way to run a batch.

A contender gets the batch as a user holds it, and everything that it does to it (lengths, sorting,
slicing; finding zeros, conversion) is timed. It answers with parts: which entries of the batch, and
the model's output for them. Putting the parts of one batch together again is not asked of the
peers, in their favour.
"""

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import attention_operators as operators
from benchmarks import attention_peers as attention
from benchmarks import encoder_peers as encoders
from benchmarks import experts_peers as experts
from benchmarks import peers
from benchmarks import training_peers as training
from benchmarks.attention_cases import AttentionCase, LayersCase, StepCase
from benchmarks.cases import (
    FEW_BITS_TOLERANCE,
    CachedCase,
    EncoderCase,
    MlpStepCase,
    TextCase,
    TrainingCase,
)
from benchmarks.experts_cases import ExpertsCase, MixtralCase
from benchmarks.sparse_cases import (
    BlocksCase,
    GradientCase,
    ImageCase,
    MaskedCase,
    ProductCase,
)
from benchmarks.workload import MASK, Feeds, Infer, Workload
from models.block_masks import Bars, Blocks, Given
from models.pair_masks import Causal, Documents, Window
from pitc.measure.bench import compiled_by_openvino, session_options

Rows = npt.NDArray[np.intp]
Part = tuple[Rows, npt.NDArray[Any]]
Run = Callable[[Feeds], list[Part]]
Split = Callable[[Feeds], Iterator[tuple[Rows, Feeds]]]
Engine = Callable[[Workload], Infer]


def whole(feeds: Feeds) -> Iterator[tuple[Rows, Feeds]]:
    """The batch as it is."""
    yield np.arange(len(next(iter(feeds.values())))), feeds


def singles(feeds: Feeds) -> Iterator[tuple[Rows, Feeds]]:
    """One sequence at a time, at its exact length."""
    for i, length in enumerate(feeds[MASK].sum(1)):
        tokens = _tokens(feeds, length)
        yield np.array([i]), {name: x[i : i + 1, tokens] for name, x in feeds.items()}


def buckets(feeds: Feeds, size: int = 4) -> Iterator[tuple[Rows, Feeds]]:
    """Sequences sorted by length, four at a time, padded to the longest of the four."""
    lengths = feeds[MASK].sum(1)
    order = np.argsort(-lengths, kind="stable")
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        tokens = _tokens(feeds, lengths[rows[0]])
        yield rows, {name: x[rows, tokens] for name, x in feeds.items()}


def _tokens(feeds: Feeds, length: int) -> slice:
    """The first or, under padding on the left, the last places of a sequence."""
    return slice(-length, None) if _padded_left(feeds) else slice(0, length)


def _padded_left(feeds: Feeds) -> bool:
    """True where some sequence does not begin with a token."""
    return not feeds[MASK][:, 0].all()


def onnx_runtime(workload: Workload) -> Infer:
    """ONNX Runtime as it comes, one thread."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(workload.model), session_options(), providers=["CPUExecutionProvider"]
    )
    return _first_output(session)


def pitc(workload: Workload) -> Infer:
    """The compiled model, saved and loaded as a user does, one thread."""
    import pitc

    folder = workload.model.with_suffix(".pitc")
    made = pitc.compile(workload.model, padding=workload.padding, precision=workload.precision)
    made.save(folder)
    session = pitc.load(folder).session(session_options())
    return _first_output(session)


def _first_output(session: Any) -> Infer:
    return lambda feeds: session.run(None, feeds)[0]


def openvino(workload: Workload) -> Infer:
    """OpenVINO, one thread, one stream: in f32, or beside bf16 as it comes."""
    as_it_comes = workload.precision == "bf16"
    compiled = compiled_by_openvino(workload.model, as_it_comes=as_it_comes)
    request = compiled.create_infer_request()
    return lambda feeds: request.infer(feeds)[0]


def _always(_: Workload) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to run a batch.

    Args:
        name: Name in tables and results.
        engine: Makes the function that runs one dense batch.
        split: Makes dense batches from the padded one.
        package: The package that must be importable.
        zeros: Share of run-time zeros from which it competes; with fewer it is known to lose by
            far, and would take most of the time of a run.
        says: Whether it can say what a workload asks for.
        by_hand: It is written for one kind of case, and no library.
        below: Another package that must be importable.
        tolerance: Error that its answers may have, where that of the case is less.
    """

    name: str
    engine: Engine
    split: Split
    package: str
    zeros: float = 0.0
    says: Callable[[Workload], bool] = _always
    by_hand: bool = False
    below: str | None = None
    tolerance: float = 0.0

    def competes(self, workload: Workload) -> bool:
        """Whether it is to be timed."""
        return self.available and workload.zeros >= self.zeros and self.says(workload)

    @property
    def available(self) -> bool:
        """Whether what it needs is installed."""
        needed = (self.package, self.below or self.package)
        return all(importlib.util.find_spec(name) is not None for name in needed)

    def over(self, infer: Infer) -> Run:
        """What runs one padded batch, given the engine's function for a dense one."""
        return lambda feeds: [(rows, infer(part)) for rows, part in self.split(feeds)]


OURS = "pitc"
HALF, MANY = 0.45, 0.75


def in_splits(name: str, engine: Engine, package: str, **more: Any) -> tuple[Contender, ...]:
    """An engine three times: on the batch as it is, one sequence at a time, and in buckets.

    Args:
        name: What the names begin with.
        engine: Of all three.
        package: The package that must be importable.
        more: Other fields of `Contender`.
    """
    splits = {"padded": whole, "singles": singles, "buckets": buckets}
    return tuple(
        Contender(f"{name}-{how}", engine, split, package, **more) for how, split in splits.items()
    )


_ORT = in_splits("ort", onnx_runtime, "onnxruntime")
PADDED: tuple[Contender, ...] = (
    _ORT[0],
    Contender(OURS, pitc, whole, "pitc"),
    *_ORT[1:],
    *in_splits("openvino", openvino, "openvino"),
)
TRAINING: tuple[Contender, ...] = (
    Contender("ort-padded", training.onnx_runtime, whole, "onnxruntime"),
    Contender(OURS, training.pitc, whole, "pitc"),
    *(
        Contender(f"torch-{how}", engine, whole, "torch", by_hand=by_hand)
        for how, engine, by_hand in (
            ("padded", training.torch_padded, False),
            ("compiled", training.torch_compiled, False),
            ("packed", training.torch_packed, True),
        )
    ),
)
CACHED = tuple(c for c in PADDED if c.split is whole)
ENCODERS: tuple[Contender, ...] = (
    *PADDED,
    *in_splits(
        *("ctranslate2", partial(encoders.ctranslate2, "float32"), "ctranslate2"),
        says=encoders.is_bert,
    ),
    *in_splits(
        *("ctranslate2-int8", partial(encoders.ctranslate2, "int8"), "ctranslate2"),
        says=encoders.is_rounded_bert,
        tolerance=FEW_BITS_TOLERANCE,
    ),
    *in_splits(
        *("torch-bf16", encoders.torch_bf16, "transformers"),
        says=encoders.is_rounded_bert,
        below="torch",
    ),
)
DENSE: tuple[Contender, ...] = (
    Contender("ort", onnx_runtime, whole, "onnxruntime"),
    Contender(OURS, pitc, whole, "pitc"),
    Contender("openvino", openvino, whole, "openvino"),
)
PRODUCTS: tuple[Contender, ...] = (
    *DENSE,
    Contender("scipy-csr", peers.scipy_product, whole, "scipy", MANY),
    Contender("torch-csr", peers.torch_product, whole, "torch", MANY),
    Contender("mkl-csr", peers.mkl_product, whole, "sparse_dot_mkl", MANY),
    Contender("gather", peers.gather_product, whole, "onnxruntime", HALF),
)
BLOCKS: tuple[Contender, ...] = (
    *DENSE,
    Contender("ort+gather", peers.ort_then_gather, whole, "onnxruntime"),
    Contender("ort+csr", peers.ort_then_csr, whole, "scipy", MANY),
    Contender("numpy+csr", peers.numpy_then_csr, whole, "scipy", MANY),
)
MASKED: tuple[Contender, ...] = (
    *DENSE,
    Contender("scipy-csr", peers.scipy_masked, whole, "scipy", MANY),
)
GRADIENTS: tuple[Contender, ...] = (
    *DENSE,
    Contender("torch-sampled", peers.torch_gradient, whole, "torch", MANY),
    Contender("gather", peers.gather_gradient, whole, "onnxruntime", HALF),
)

#: Blocks of flex_attention, and queries of a chunk by hand: the best of each counts.
FLEX_BLOCKS, CHUNKS = (32, 64, 128), (128, 256)
_NOT_FULL = attention.masked_by(Causal, Window, Documents, Bars, Blocks, Given)
ATTENTION: tuple[Contender, ...] = (
    *DENSE,
    Contender(
        *("openvino-sdpa", attention.openvino_sdpa, whole, "openvino"), says=attention.is_attention
    ),
    Contender("torch-sdpa", attention.torch_sdpa, whole, "torch", says=attention.is_attention),
    Contender("torch-causal", attention.torch_causal, whole, "torch", says=attention.is_causal),
    *(
        Contender(
            *(f"flex-{size}", partial(attention.torch_flex, size), whole, "torch"), says=_NOT_FULL
        )
        for size in FLEX_BLOCKS
    ),
    Contender(
        *("ort-mha", operators.multi_head, whole, "onnxruntime"), says=operators.says_multi_head
    ),
    Contender(
        *("ort-gqa", operators.group_query, whole, "onnxruntime"), says=operators.says_group_query
    ),
    Contender("torch-step", attention.torch_step, whole, "torch", says=attention.is_step),
    Contender(
        *("hand-cut", attention.torch_step_cut, whole, "torch"),
        says=attention.is_step,
        by_hand=True,
    ),
    *(
        Contender(
            *(f"hand-chunks-{size}", partial(attention.torch_chunks, size), whole, "torch"),
            says=attention.is_window,
            by_hand=True,
        )
        for size in CHUNKS
    ),
    Contender(
        *("hand-documents", attention.torch_documents, whole, "torch"),
        says=attention.masked_by(Documents),
        by_hand=True,
    ),
)

_LOOP = experts.is_other("loop")
EXPERTS: tuple[Contender, ...] = (
    *DENSE,
    Contender("ort-loop", experts.in_form("loop", onnx_runtime), whole, "onnxruntime", says=_LOOP),
    Contender("openvino-loop", experts.in_form("loop", openvino), whole, "openvino", says=_LOOP),
    Contender("ort-moe", experts.in_form("operator", onnx_runtime), whole, "onnxruntime"),
    Contender("torch-grouped", experts.torch_grouped, whole, "torch", says=experts.is_layer),
)

#: OpenVINO needs more memory for the copies of a whole batch than there is.
MIXTRAL = tuple(c for c in EXPERTS if c.name != "openvino")

#: Kind of case -> who competes; the first is the reference.
CONTENDERS: dict[type, tuple[Contender, ...]] = {
    EncoderCase: ENCODERS,
    CachedCase: CACHED,
    TextCase: ENCODERS,
    TrainingCase: TRAINING,
    MlpStepCase: tuple(c for c in TRAINING if not c.by_hand),
    ProductCase: PRODUCTS,
    BlocksCase: BLOCKS,
    MaskedCase: MASKED,
    GradientCase: GRADIENTS,
    ImageCase: DENSE,
    AttentionCase: ATTENTION,
    StepCase: ATTENTION,
    LayersCase: DENSE,
    ExpertsCase: EXPERTS,
    MixtralCase: MIXTRAL,
}


def live_rows(parts: list[Part], feeds: Feeds) -> list[npt.NDArray[Any]]:
    """The answer for each entry of the batch; of a sequence without the rows of padding where a row
    stands for a token.
    """
    if MASK not in feeds:
        return [answer for _, output in parts for answer in output]
    lengths, places = feeds[MASK].sum(1), feeds[MASK].shape[1]
    answers: dict[int, npt.NDArray[Any]] = {}
    for rows, output in parts:
        for row, answer in zip(rows, output, strict=True):
            per_token = answer.ndim == 2 and answer.shape[0] <= places
            live = answer[-lengths[row] :] if _padded_left(feeds) else answer[: lengths[row]]
            answers[int(row)] = live if per_token else answer
    return [answers[i] for i in range(len(lengths))]


def relative_error(got: list[npt.NDArray[Any]], want: list[npt.NDArray[Any]]) -> float:
    """Largest norm of a difference over the norm of the expected answer, over the sequences.

    Infinite where shapes differ or a number is not finite.
    """
    if len(got) != len(want):
        return float("inf")
    worst = 0.0
    for x, y in zip(got, want, strict=True):
        if x.shape != y.shape or not np.isfinite(x).all():
            return float("inf")
        size = float(np.linalg.norm(y.astype(np.float64)))
        worst = max(worst, float(np.linalg.norm(x.astype(np.float64) - y)) / max(size, 1e-30))
    return worst

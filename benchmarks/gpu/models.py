"""Models that are compiled where the GPU is, by this project's compiler as it is, but for machine
code: that comes from a library which was built before.

Weights are drawn from seeds, so that no model has to travel.
"""

import ctypes
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import pitc
from models.bert import BERT_BASE, BertConfig, bert
from models.experts import ExpertsConfig, experts
from models.half import half
from models.opt import OptConfig, opt_ffn
from models.sparsity import Sparsity
from pitc.codegen.build import library
from pitc.codegen.build.link import Built
from pitc.ir.kernel import KernelRequest

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Model:
    """A model and how it is compiled and run.

    Args:
        name: In results.
        config: What it is made from.
        is_half: In float16.
        options: Of the provider.
        tolerance: Of answers, relative and absolute, against ONNX Runtime on the CPU.
    """

    name: str
    config: BertConfig | OptConfig | ExpertsConfig
    is_half: bool = True
    options: tuple[tuple[str, str], ...] = ()
    tolerance: float = 2e-2

    @property
    def padding(self) -> str | None:
        """The mask input that the compiler is told about."""
        return "attention_mask" if isinstance(self.config, BertConfig) else None

    def build(self) -> onnx.ModelProto:
        """The model."""
        rng = np.random.default_rng(0)
        config = self.config
        match config:
            case BertConfig():
                made = bert(config, rng)
            case OptConfig():
                made = opt_ffn(config, rng)
            case ExpertsConfig():
                made = experts(config, rng)
        return half(made) if self.is_half else made

    def feeds(self, mask: Array) -> dict[str, Array]:
        """Inputs for a mask of tokens."""
        rng = np.random.default_rng(1)
        if isinstance(self.config, BertConfig):
            ids = rng.integers(1, self.config.vocab, mask.shape) * mask
            return {
                "input_ids": ids,
                "attention_mask": mask,
                "token_type_ids": np.zeros_like(ids),
            }
        layer = isinstance(self.config, ExpertsConfig)  # of tokens in a row
        shape, name = ((mask.size,), "x") if layer else (mask.shape, "hidden_state")
        x = rng.standard_normal((*shape, self.config.hidden))
        return {name: x.astype(np.float16 if self.is_half else np.float32)}


_BERT = BertConfig(layers=2, hidden=128, heads=2, ffn=256, vocab=50, positions=512)
_OPT = OptConfig(layers=1, hidden=256, heads=2, ffn=1024, vocab=50, sparsity=Sparsity(0.9, 1))
_EXPERTS = ExpertsConfig("looked_up", 8, 128, 256, 2, gated=True, bias=True)
_EXACT = (("tf32", "0"),)
MODELS: tuple[Model, ...] = (
    Model("bert-f16", _BERT),
    Model("bert-f32-tf32", _BERT, is_half=False),
    Model("bert-f32", _BERT, is_half=False, options=_EXACT, tolerance=2e-5),
    Model("opt-ffn-f16", _OPT, tolerance=4e-3),
    *(
        Model(f"opt-ffn-f16-{kind}", _OPT, options=(("variant", kind),), tolerance=4e-3)
        for kind in ("dense", "tile", "block", "square")
    ),
    Model("opt-ffn-f32", _OPT, is_half=False, options=_EXACT, tolerance=2e-5),
    Model("experts-f16", _EXPERTS),
    Model("experts-f32", _EXPERTS, is_half=False, options=_EXACT, tolerance=2e-5),
)
LARGE = Model("bert-base", BERT_BASE)
SMALL = Model("bert-base", replace(BERT_BASE, layers=1, hidden=64, heads=1, ffn=128, vocab=50))
"""For a device that is emulated: kernels are the same."""


class _Asked(Exception):
    """Kernels are asked for."""


@contextmanager
def _answering(answer: Any) -> Iterator[None]:
    before = library.build_kernels
    library.build_kernels = answer
    try:
        yield
    finally:
        library.build_kernels = before


def requests_of(model: Model, archs: Sequence[str]) -> list[KernelRequest]:
    """The kernels that a compiled model needs."""
    asked: list[KernelRequest] = []

    def build(requests: Sequence[KernelRequest], *_: Any) -> Built:
        asked.extend(requests)
        raise _Asked

    with _answering(build), suppress(_Asked):
        pitc.compile(model.build(), f"cuda:{','.join(archs)}", model.padding)
    return asked


@contextmanager
def prebuilt(kernels: Path) -> Iterator[None]:
    """What is compiled here gets its kernels from a library, which has them all: who loads the
    model refuses it otherwise.
    """
    loaded = ctypes.CDLL(str(kernels.resolve()))
    place = ctypes.addressof(ctypes.c_char.in_dll(loaded, "pitc_kernel_identity"))
    identity = ctypes.string_at(place)

    def build(requests: Sequence[KernelRequest], _: Any, out: Path, *__: Any) -> Built:
        symbols = sorted(request.symbol for request in requests)
        shutil.copy(kernels, out)
        return Built(identity.decode(), tuple(symbols))

    with _answering(build):
        yield


def compiled(model: Model, archs: Sequence[str], kernels: Path, folder: Path) -> Path:
    """Write a model and its artifact into a folder.

    Returns:
        The artifact's graph for GPUs; `source.onnx` lies beside the artifact.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source, artifact = folder / "source.onnx", folder / "model.pitc"
    onnx.save(model.build(), source)
    with prebuilt(kernels):
        pitc.compile(source, f"cuda:{','.join(archs)}", model.padding, output=artifact)
    return artifact / "model.cuda.onnx"

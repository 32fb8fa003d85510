"""Real exports with sizes fixed to numbers: they pack what they pack with symbols, and compute the
same. A batch of one is the usual one.
"""

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper

from pitc.importer import load_model
from pitc.passes.pipeline import Lowered, LowerOptions, run_passes
from tests.lowered_exports import lowered_export
from tests.plan_reference import run_lowered
from tests.plugin.test_exports import of, padding_of
from tests.tile_prices import PRICES

ENCODERS = of("bert", "distilbert", "bert-mean", "bert-lengths")
OTHERS = of("bert-classifier", "t5-encoder", "gpt2", "llama", "modernbert", "t5", "bart")
FILES = [*ENCODERS, *(f for f in OTHERS if f.stem.endswith("-dynamo"))]
LENGTH = 7
FIXED = {"batch": {0: 1}, "sequence": {1: LENGTH}, "both": {0: 1, 1: LENGTH}}


def fixed(file: Path, sizes: dict[int, int], folder: Path) -> Path:
    """The export with the sizes of some dimensions of its tokens as numbers."""
    model = onnx.load(file)
    tokens = next(i for i in model.graph.input if len(i.type.tensor_type.shape.dim) == 2)
    names = {tokens.type.tensor_type.shape.dim[d].dim_param: n for d, n in sizes.items()}
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in names:
                dim.dim_value = names[dim.dim_param]
    del model.graph.value_info[:]
    onnx.save(model, folder / file.name)
    return folder / file.name


def lower(file: Path, padding: str | None) -> Lowered:
    return run_passes(load_model(file), LowerOptions(padding=padding, prices=PRICES))


def packed(lowered: Lowered) -> Counter[str]:
    """Nodes that run on live rows, and contractions among them by what became of them."""
    work = Counter(r.lowering for r in lowered.report.nodes if r.op_type in ("MatMul", "Gemm"))
    return work + Counter(
        all=sum(r.lowering in ("packed", "attention") for r in lowered.report.nodes)
    )


def feeds(model: onnx.ModelProto, kind: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    found = {}
    for i in model.graph.input:
        dims = i.type.tensor_type.shape.dim
        shape = [d.dim_value or (3, LENGTH)[k] for k, d in enumerate(dims)]
        x = rng.integers(0, 2 if "type" in i.name else 60, shape)
        if i.name == "lengths":
            x = rng.integers(1, LENGTH + 1, shape)
        elif "mask" in i.name:
            x = {"dead": np.zeros(shape), "live": np.ones(shape)}.get(kind, rng.random(shape) < 0.5)
            if kind == "one":
                x = np.arange(shape[1]) == 2
                x = np.broadcast_to(x, shape)
        found[i.name] = x.astype(helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type))
    return found


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("sizes", FIXED)
@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_numbers_pack_what_symbols_pack(file: Path, sizes: str, tmp_path: Path) -> None:
    has_mask = any("mask" in i.name for i in onnx.load(file).graph.input)
    padding = padding_of(file) if has_mask else None
    with_symbols = packed(lowered_export(file, padding))
    numbers = fixed(file, FIXED[sizes], tmp_path)
    lowered = lower(numbers, padding)
    assert not lowered.report.notes
    # tables of positions [1, s, ..] are rows of tokens too where the batch is one
    assert packed(lowered) - with_symbols <= Counter(all=20)
    assert not with_symbols - packed(lowered)
    proto, source = ir.serde.serialize_model(lowered.model), onnx.load(numbers)
    session = ort.InferenceSession(str(numbers), providers=["CPUExecutionProvider"])
    tokens = {o.name for o in source.graph.output if len(o.type.tensor_type.shape.dim) == 3}
    for kind in ("dead", "live", "one", "holes"):
        feed = feeds(source, kind, np.random.default_rng(3))
        for output, x, y in zip(
            source.graph.output, session.run(None, feed), run_lowered(proto, feed), strict=True
        ):
            want = np.array(x)
            if padding and output.name in tokens:
                want[feed[padding] == 0] = 0
            assert want.shape == y.shape
            np.testing.assert_array_equal(np.isnan(want), np.isnan(y))
            want, y = np.nan_to_num(want), np.nan_to_num(y)
            assert np.linalg.norm(want - y) <= 1e-5 * np.linalg.norm(want), kind

"""Quantises exported fixtures with ONNX Runtime's tools: more fixtures, of 8-bit graphs.

    python -m models.export.quantise

`static` writes QuantizeLinear and DequantizeLinear around every contraction, with ranges seen on
random data; `dynamic` writes DynamicQuantizeLinear and MatMulInteger; `int4` writes MatMulNBits.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic
from onnxruntime.quantization import quantize_static as static_tool

from models.quantised import int4

FOLDER = Path(__file__).parent / "fixtures"
SOURCE = "bert-eager-dynamo"
BATCHES, SHAPE = 4, (3, 9)


class RandomTokens(CalibrationDataReader):  # type: ignore[misc]  # the tools have no types
    """Random tokens under random right padding."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.left = [self._batch(rng) for _ in range(BATCHES)]

    def _batch(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        lengths = rng.integers(1, SHAPE[1] + 1, (SHAPE[0], 1))
        mask = (np.arange(SHAPE[1]) < lengths).astype(np.int64)
        return {"input_ids": rng.integers(2, 90, SHAPE), "attention_mask": mask}

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next batch, None after the last."""
        return self.left.pop() if self.left else None


def _static(source: Path, target: Path) -> None:
    # not the sum of scores and mask: a range that holds -3e38 leaves no bit for the scores
    only = ["MatMul", "Gather"]
    static_tool(
        source, target, RandomTokens(), quant_format=QuantFormat.QDQ, op_types_to_quantize=only
    )


def _dynamic(source: Path, target: Path) -> None:
    quantize_dynamic(source, target)


def _int4(source: Path, target: Path) -> None:
    onnx.save(int4(onnx.load(source), block=16, accuracy=0), target)


MODES: dict[str, Callable[[Path, Path], None]] = {
    "static": _static,
    "dynamic": _dynamic,
    "int4": _int4,
}


def main() -> None:
    """Write every fixture."""
    for mode, quantise in MODES.items():
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "made.onnx"
            quantise(FOLDER / f"{SOURCE}.onnx", made)
            proto = onnx.load(made)
        file = FOLDER / f"{SOURCE}-{mode}.onnx"
        file.write_bytes(proto.SerializeToString(deterministic=True))
        print(f"{file.name}: {file.stat().st_size} bytes")


if __name__ == "__main__":
    main()

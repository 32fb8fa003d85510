"""Models of few bits, as ONNX Runtime's tools and converters write them.

int4      MatMulNBits: weights of 4 bits in blocks, computed with in float
dynamic   DynamicQuantizeLinear and MatMulInteger: ranges seen when the model runs
static    QuantizeLinear and DequantizeLinear around products: ranges seen on samples
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from models.graph import Array

MICROSOFT = "com.microsoft"
BLOCK = 32
MIDDLE = 8  # what stands for 0 in 4 bits, unless the node says otherwise

Feeds = Mapping[str, Array]


def packed_int4(weight: Array, block: int = BLOCK) -> tuple[Array, Array]:
    """A weight in blocks of 4-bit numbers, two to a byte, and the scale of each block.

    Args:
        weight: float32 `[k, n]`, k a multiple of `block`.
        block: Numbers of a block, along k.

    Returns:
        uint8 `[n, k / block, block / 2]` and float32 `[n, k / block]`.

    Source: operator MatMulNBits of ONNX Runtime.
    """
    rows = weight.T.reshape(weight.shape[1], -1, block)
    peak = np.take_along_axis(rows, np.abs(rows).argmax(2)[..., None], 2)
    scale = np.where(peak == 0, 1, peak / -MIDDLE).astype(np.float32)
    numbers = np.clip(np.rint(rows / scale) + MIDDLE, 0, 15).astype(np.uint8)
    return numbers[..., ::2] | numbers[..., 1::2] << 4, scale[..., 0]


def int4(model: onnx.ModelProto, block: int = BLOCK, accuracy: int = 4) -> onnx.ModelProto:
    """A copy in which every product by a constant matrix is one by numbers of 4 bits.

    Args:
        model: A model without functions and subgraphs.
        block: Numbers of a block; products over another number of terms stay.
        accuracy: Of activations (`accuracy_level`): 0 as they are, 4 as 8 bits.
    """
    made = onnx.ModelProto()
    made.CopyFrom(model)
    weights = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    for node in made.graph.node:
        weight = weights.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is None or weight.ndim != 2 or weight.shape[0] % block:
            continue
        k, n = weight.shape
        name = node.input[1]
        for stem, array in zip(("int4", "scale"), packed_int4(weight, block), strict=True):
            if all(t.name != f"{name}.{stem}" for t in made.graph.initializer):
                made.graph.initializer.append(numpy_helper.from_array(array, f"{name}.{stem}"))
        sizes = {"K": k, "N": n, "bits": 4, "block_size": block, "accuracy_level": accuracy}
        inputs = [node.input[0], f"{name}.int4", f"{name}.scale"]
        node.CopyFrom(
            helper.make_node(
                "MatMulNBits", inputs, node.output, node.name, domain=MICROSOFT, **sizes
            )
        )
    used = {name for node in made.graph.node for name in node.input}
    kept = [t for t in made.graph.initializer if t.name in used]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    if all(o.domain != MICROSOFT for o in made.opset_import):
        made.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return made


def dynamic(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose products by constants are of 8 bits, scaled by what a run sees."""
    return _through_files(model, lambda source, target: quantize_dynamic(source, target))


class _Samples(CalibrationDataReader):  # type: ignore[misc]  # the tools have no types
    """Samples for the tool, one by one."""

    def __init__(self, samples: Iterable[Feeds]) -> None:
        self.left = iter(samples)

    def get_next(self) -> Any:  # the tools declare a dict, and ask for None at the end
        """The next one, None after the last."""
        found = next(self.left, None)
        return None if found is None else dict(found)


def static(
    model: onnx.ModelProto, samples: Iterable[Feeds], form: QuantFormat = QuantFormat.QDQ
) -> onnx.ModelProto:
    """A copy whose products are of 8 bits, scaled by what samples show.

    Args:
        model: The model.
        samples: Inputs by name.
        form: QuantizeLinear and DequantizeLinear around products, or products of integers.
    """

    def quantise(source: Path, target: Path) -> None:
        # not the sum of scores and mask: a range that holds -3e38 leaves no bit for the scores
        only = ["MatMul"]
        quantize_static(
            source,
            target,
            _Samples(samples),
            quant_format=form,
            op_types_to_quantize=only,
            activation_type=QuantType.QUInt8,  # ONNX Runtime is twice as fast as with signed ones
        )

    return _through_files(model, quantise)


def _through_files(
    model: onnx.ModelProto, quantise: Callable[[Path, Path], None]
) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        source, target = (Path(folder) / name for name in ("source.onnx", "target.onnx"))
        onnx.save(model, source)
        quantise(source, target)
        return onnx.load(target)

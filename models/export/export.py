"""Exports small real models with torch and transformers, by both exporters: the test fixtures.

    pip install torch==2.13.0 transformers onnx onnxscript
    PYTHONPATH=. python models/export/export.py [NAME ...]

Weights are random and tiny; what is real is the graph. Each file stays under 300 KB. The tests read
the files only; nothing in pitc imports torch.
"""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

import onnx
import torch

from models.export import architectures, cached, masks
from models.export.inputs import DYNAMO, Export
from pitc.frontends.rewrites import rewritten

MODELS = architectures.MODELS | cached.MODELS | masks.MODELS
MAX_BYTES = 300_000


class Positional(torch.nn.Module):
    """The model with positional inputs and outputs."""

    def __init__(self, model: Any, export: Export) -> None:
        super().__init__()
        self.model, self.export = model, export

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the model."""
        named = dict(zip(self.export.inputs, inputs, strict=True))
        found = self.model(**named)
        return tuple(found[name] for name in self.export.outputs)


def export(name: str, attention: str, exporter: str) -> Path:
    """Write one fixture.

    Args:
        name: A key of `MODELS`.
        attention: The attention implementation.
        exporter: `traced` (TorchScript) or `dynamo`.

    Returns:
        The file.
    """
    torch.manual_seed(0)
    row = MODELS[name]
    model = Positional(rewritten(row.make(attention).eval()), row)
    arguments = tuple(row.example(n) for n in row.inputs)
    folder = Path(__file__).parent / row.folder
    folder.mkdir(exist_ok=True)
    file = folder / f"{name}-{attention}-{exporter}.onnx"
    names = {"input_names": list(row.inputs), "output_names": list(row.outputs)}
    if exporter == DYNAMO:
        shapes = [row.dynamic()]
        program = torch.onnx.export(
            model, arguments, dynamo=True, dynamic_shapes=shapes, opset_version=20, **names
        )
        program.save(str(file), external_data=False)
    else:
        free = {n: row.free(n) for n in (*row.inputs, *row.outputs)}
        torch.onnx.export(
            model, arguments, str(file), dynamo=False, opset_version=17, dynamic_axes=free, **names
        )
    proto = onnx.load(file)
    for node in proto.graph.node:
        node.ClearField("doc_string")
        del node.metadata_props[:]
    for value in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
        del value.metadata_props[:]
    del proto.metadata_props[:]
    onnx.checker.check_model(proto)
    file.write_bytes(proto.SerializeToString(deterministic=True))
    if file.stat().st_size > MAX_BYTES:
        raise ValueError(f"{file}: {file.stat().st_size} bytes, the limit is {MAX_BYTES}")
    return file


def main() -> int:
    """Export the named models, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names or list(MODELS)
    failed = 0
    for name in names:
        for attention, exporter in MODELS[name].ways():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    file = export(name, attention, exporter)
                print(f"{file.name}: {file.stat().st_size} bytes")
            except Exception as error:
                failed += 1
                print(f"{name}-{attention}-{exporter}: {error}", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

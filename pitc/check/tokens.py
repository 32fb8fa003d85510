"""Which tokens are real by the masks of the padding contract, and where outputs hold them.

mask [b, s]        y [b, s, 5]              along 1
mask [b, p + s]    keys [b, h, p + s, d]    along 2
y [b, s, 5]              along 1: the last s of the mask
"""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pitc.ir.report import TokenPlace

Feeds = Mapping[str, np.ndarray]
Live = Callable[[Feeds], Mapping[str, np.ndarray]]
"""Which tokens are real, bool `[batch, sequence]`, by the text of each mask."""


Tokens = tuple[np.ndarray, TokenPlace] | None
"""Which tokens are real, and where an output holds them; None where it holds none."""


class LiveTokens:
    """Which tokens are real by the masks of a contract.

    A mask that the model computes is computed by ONNX Runtime, from the part of the model in front
    of it.

    Args:
        source: The model's file.
        padding: The masks (`passes/masks.py`), or None.
    """

    def __init__(self, source: str | Path, padding: str | None) -> None:
        from pitc.importer import load_model
        from pitc.ir.mask import PaddingMask
        from pitc.passes.masks import padding_masks

        self._source = Path(source)
        self.masks: tuple[PaddingMask, ...] = ()
        if padding:
            self.masks = padding_masks(load_model(self._source), padding)
        self._sessions: dict[str, Any] = {}

    def __call__(self, feeds: Feeds) -> Mapping[str, np.ndarray]:
        """Which tokens are real, by the text of each mask."""
        return {
            mask.text: mask.read(
                feeds[mask.source] if mask.source else self._computed(mask.name, feeds)
            )
            for mask in self.masks
        }

    def _computed(self, name: str, feeds: Feeds) -> np.ndarray:
        if name not in self._sessions:
            self._sessions[name] = _session_of(self._source, name)
        session = self._sessions[name]
        wanted = {value.name: feeds[value.name] for value in session.get_inputs()}
        return np.asarray(session.run([name], wanted)[0])


def _session_of(source: Path, name: str) -> Any:
    """A session of what is in front of a value."""
    import onnx
    from onnx.utils import Extractor

    from pitc.session import plain_session

    model = onnx.load(source)
    extractor = Extractor(onnx.shape_inference.infer_shapes(model))
    inputs = [value.name for value in model.graph.input]
    part = extractor.extract_model(inputs, [name])
    read = {x for node in part.graph.node for x in node.input}
    kept = [value for value in part.graph.input if value.name in read]
    del part.graph.input[:]
    part.graph.input.extend(kept)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mask.onnx")
        onnx.save(part, path)
        return plain_session(path)


def by_tokens(
    a: np.ndarray, b: np.ndarray, tokens: Tokens
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Two values of one shape with their tokens in the second dimension, and which of these live;
    None for that where the sizes show that they are no tokens, and the values as they were.
    """
    if tokens is None or max(tokens[1].axis, tokens[1].batch) >= b.ndim:
        return a, b, None
    mask, place = tokens
    c, d = (np.moveaxis(x, (place.batch, place.axis), (0, 1)) for x in (a, b))
    live = mask[:, max(0, mask.shape[1] - d.shape[1]) :] if place.last else mask
    return (c, d, live) if live.shape == d.shape[:2] else (a, b, None)

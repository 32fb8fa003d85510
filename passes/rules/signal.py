"""Signals: transforms read whole lines, weighted by position; windows are made of positions.

DFT   y[a, k, b, :] reads x[a, :, b, :]           STFT  y[a, frame, k, :] reads x[a, :, :]
"""

from pitc.ir.expr import Read, TensorExpr
from pitc.ir.graph import NodeView, NoRule
from pitc.ir.index import Poly, dim_index, poly
from pitc.ir.since import Since
from pitc.passes.rules.assumes import Assumes
from pitc.passes.rules.build import bare, dimension, positional
from pitc.passes.rules.record import Items, Operator, always
from pitc.passes.rules.registry import rule


@rule(
    "DFT",
    assumes=(Assumes.KNOWN_ARGUMENTS, Assumes.STATED_SIZES),
    has=Operator(finite=always, items=Items.ANY),
)
def dft(view: NodeView) -> list[TensorExpr]:
    """Fourier transform along one axis; the last dimension holds real and imaginary parts."""
    shape = view.shape(0)
    of_input = view.opset >= Since.DFT_OF_INPUT
    given = (view.int_list(2) or [-2])[0] if of_input else int(view.attr("axis", 1))
    axis, last = dimension(given, len(shape)), len(shape) - 1
    if axis == last:
        raise NoRule("a transform along the parts of the numbers")
    lines = [axis, last]
    out = tuple(view.inferred(0, d) if d in lines else e for d, e in enumerate(shape))
    index = tuple(
        dim_index(len(shape) + lines.index(d) if d in lines else d, e) for d, e in enumerate(shape)
    )
    reduced = (shape[axis], shape[last])
    return [positional(out, [Read(0, index)], reduced, lines)]


@rule("STFT", assumes=(Assumes.KNOWN_ARGUMENTS,), has=Operator(finite=always, items=Items.ANY))
def stft(view: NodeView) -> list[TensorExpr]:
    """Fourier transforms of the windowed frames of each signal."""
    shape = view.shape(0)
    if len(shape) not in (2, 3):
        raise NoRule(f"signals of rank {len(shape)}")
    out = (shape[0], *_frames(view, shape[1]), poly(2))
    reads = [Read(0, (dim_index(0, shape[0]), *bare(shape[1:], len(out))))]
    reduced = list(shape[1:])
    if view.has(2):
        window = view.shape(2)
        reads.append(Read(2, bare(window, len(out) + len(reduced))))
        reduced += window
    return [positional(out, reads, tuple(reduced), [1, 2, 3])]


def _frames(view: NodeView, length: Poly) -> tuple[Poly, Poly]:
    """Numbers of frames and of frequencies. ONNX's inference takes all frequencies for kept."""
    step = (view.int_list(1) or [0])[0]
    given = view.int_list(3)
    size = given[0] if given else view.shape(2)[0].as_int()
    total = length.as_int()
    if size is None:
        return view.fresh(), view.fresh()
    kept = poly(size // 2 + 1 if view.attr("onesided", 1) else size)
    if total is None or step <= 0 or total < size:
        return view.fresh(), kept
    return poly((total - size) // step + 1), kept


@rule(
    "BlackmanWindow",
    "HammingWindow",
    "HannWindow",
    assumes=(Assumes.KNOWN_ARGUMENTS,),
    has=Operator(items=Items.ANY),
)
def window(view: NodeView) -> list[TensorExpr]:
    """A function of the position and of the number of points."""
    return [TensorExpr((view.ints(0).reshape(-1)[0],), ordered=frozenset({0}))]


@rule("MelWeightMatrix", assumes=(Assumes.STATED_SIZES,), has=Operator(items=Items.ANY))
def mel_weights(view: NodeView) -> list[TensorExpr]:
    """A function of two positions and of five numbers."""
    return [TensorExpr((view.inferred(0, 0), view.inferred(0, 1)), ordered=frozenset({0, 1}))]

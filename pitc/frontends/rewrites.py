"""Parts of torch modules that are exported in another form: one that ONNX holds for every size."""

import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from types import MethodType
from typing import Any

from pitc.frontends.windows import unpadded, window_attention

_LONGFORMER = "transformers.models.longformer.modeling_longformer"
_LED = "transformers.models.led.modeling_led"


@dataclass(frozen=True, slots=True)
class Rewrite:
    """A method that runs in another form while its module is exported.

    Args:
        place: The Python module that defines the class.
        kind: The class. Its subclasses are other classes.
        method: The method.
        form: What runs instead: a function of the module and the method's arguments that gives the
            same numbers.
        inputs: Arguments of the whole model that no tokenizer makes, with one number per token.
            They become inputs of the exported model.
    """

    place: str
    kind: str
    method: str
    form: Callable[..., Any]
    inputs: tuple[str, ...] = ()


#: Rows of one `place` belong together.
REWRITES = (
    Rewrite(_LONGFORMER, "LongformerSelfAttention", "forward", window_attention),
    Rewrite(
        _LONGFORMER, "LongformerModel", "_pad_to_window_size", unpadded, ("global_attention_mask",)
    ),
    Rewrite(_LED, "LEDEncoderSelfAttention", "forward", window_attention),
    Rewrite(_LED, "LEDEncoder", "_pad_to_window_size", unpadded, ("global_attention_mask",)),
)


def rewritten(module: Any) -> Any:
    """A module in the form that is exported.

    Args:
        module: A `torch.nn.Module`. It is not changed.

    Returns:
        The module itself where the table has no row for a part of it; else a copy that shares its
        parameters and buffers.
    """
    if not any(True for _ in _found(module)) and not _experts(module):
        return module
    shared = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    copy = deepcopy(module, shared)
    for part, row in [*_found(copy)]:
        setattr(part, row.method, MethodType(row.form, part))
    for part in _experts(copy):
        part.config._experts_implementation = LOOKED_UP
    return copy


LOOKED_UP = "batched_mm"
"""How transformers writes layers of experts so that the graph is right wherever tokens are sent: it
looks matrices up. Others cannot be exported, or hold which experts the example's tokens had."""


def _experts(module: Any) -> list[Any]:
    """Layers of experts of transformers (`use_experts_implementation`) that run in another form."""
    return [
        part
        for part in module.modules()
        if hasattr(part, "_apply_gate")
        and getattr(getattr(part, "config", None), "_experts_implementation", LOOKED_UP)
        != LOOKED_UP
    ]


def added_inputs(module: Any) -> tuple[str, ...]:
    """Arguments of a model that no tokenizer makes, and that its exported form needs."""
    return tuple(dict.fromkeys(name for _, row in _found(module) for name in row.inputs))


def _found(module: Any) -> Iterator[tuple[Any, Rewrite]]:
    """Parts of a module, each with its row.

    A part may be of a subclass, or have a method of its own: what it computes is then not known.
    Nothing of that place is rewritten there, because its rows belong together.
    """
    parts = [*module.modules()]
    for place, group in groupby(REWRITES, attrgetter("place")):
        defined = sys.modules.get(place)  # a part of it has been imported with its class
        if defined is None:
            continue
        rows = [(getattr(defined, row.kind, None), row) for row in group]
        known = [(kind, row) for kind, row in rows if isinstance(kind, type)]
        found = [(p, kind, row) for p in parts for kind, row in known if isinstance(p, kind)]
        if all(type(p) is kind and row.method not in vars(p) for p, kind, row in found):
            yield from ((p, row) for p, _, row in found)

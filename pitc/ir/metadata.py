"""What a written graph tells of each node, in its `metadata_props`: for viewers, and for people.

Nothing reads that back. Keys start with `pitc.`; a value that nothing is known of is left out.

A model that trains tells in its own `metadata_props` which of its outputs are weights, what an
optimizer keeps, and gradients of weights: with fixed sizes they may look like tokens of a mask.
"""

import json
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

SOURCE = "pitc.node"  # the node of the source graph that it computes
VALUE = "pitc.value"  # the value that it moves, or looks at
RULE = "pitc.rule"  # by which rule it runs as it does
AXES = "pitc.axes"  # its PIT axes
FACTS = "pitc.facts"  # what is proven of its outputs, a line each
REFUSAL = "pitc.refusal"  # why it runs as it was
KEYS = (SOURCE, VALUE, RULE, AXES, FACTS, REFUSAL)

ONCE = "pitc.once"  # of a node of a gradient: why it has no right derivative
STATE = "pitc.state"  # of a model: outputs, and the inputs that they are in the next step
GRADIENTS = "pitc.gradients"  # of a model: outputs that are gradients of weights


def note_gradients(model: "ir.Model", names: Collection[str]) -> None:
    """Let a model tell which of its outputs are gradients of weights.

    Args:
        model: The model; it is changed in place.
        names: Their names; those of other values say nothing.
    """
    here = [x.name for x in model.graph.outputs if x.name in names]
    model.metadata_props[GRADIENTS] = json.dumps(here)


def outputs_of_weights(properties: Mapping[str, str]) -> frozenset[str]:
    """Outputs of a model that have the elements of weights, whatever sizes they have.

    Args:
        properties: The model's `metadata_props`; what others wrote by these keys says nothing.
    """
    found = set[str]()
    for key in (STATE, GRADIENTS):
        try:
            names = json.loads(properties.get(key, "[]"))
        except ValueError:
            continue
        found |= (
            {n for n in names if isinstance(n, str)} if isinstance(names, dict | list) else set()
        )
    return frozenset(found)

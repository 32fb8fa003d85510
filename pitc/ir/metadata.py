"""What a written graph tells of each node, in its `metadata_props`: for viewers, and for people.

Nothing reads it back. Keys start with `pitc.`; a value that nothing is known of is left out.
"""

SOURCE = "pitc.node"  # the node of the source graph that it computes
VALUE = "pitc.value"  # the value that it moves, or looks at
RULE = "pitc.rule"  # by which rule it runs as it does
AXES = "pitc.axes"  # its PIT axes
FACTS = "pitc.facts"  # what is proven of its outputs, a line each
REFUSAL = "pitc.refusal"  # why it runs as it was
KEYS = (SOURCE, VALUE, RULE, AXES, FACTS, REFUSAL)

"""A model in a newer operator set, in which all its operators are what they were."""

import onnx
import onnx_ir as ir

from pitc.errors import UsageError


def raise_version(model: ir.Model, wanted: int) -> None:
    """Let a model import an operator set that is at least so new.

    Raises:
        UsageError: One of its operators is another one there.
    """
    version = model.opset_imports.get("", wanted)
    if version >= wanted:
        return
    for node in model.graph.all_nodes():
        if node.domain == "" and not _stays(node, version, wanted):
            raise UsageError(
                f"facts are looked up in operator set {wanted}, which changed {node.op_type} of"
                f" operator set {version}",
                node=node.name or None,
                hint=f"export it with operator set {wanted}",
            )
    model.opset_imports[""] = wanted


def _stays(node: ir.Node, version: int, wanted: int) -> bool:
    """True when the newer operator takes the node, too, with the same meaning.

    What it no longer takes an attribute for is what the attribute's default says.
    """
    try:
        old, new = (onnx.defs.get_schema(node.op_type, v, "") for v in (version, wanted))
    except onnx.defs.SchemaError:  # ONNX Runtime's own, the same in all
        return True
    kept = old.attributes.keys() & new.attributes.keys()
    if any(_about(old.attributes[name]) != _about(new.attributes[name]) for name in kept):
        return False
    gone = {name: a for name, a in old.attributes.items() if name not in kept}
    for name in gone.keys() & node.attributes.keys():
        default = gone[name].default_value
        value = onnx.helper.get_attribute_value(default) if default.name else None
        if value != node.attributes[name].value:
            return False
        del node.attributes[name]
    inputs = [x.name for x in old.inputs]
    same = inputs == [x.name for x in new.inputs][: len(inputs)]
    return same and not any(a.required for a in gone.values())


def _about(attribute: onnx.defs.OpSchema.Attribute) -> tuple[object, bytes]:
    return attribute.type, attribute.default_value.SerializeToString()

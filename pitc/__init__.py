"""pitc: an ahead-of-time compiler over ONNX graphs for dynamic sparsity.

    compiled = pitc.compile("model.onnx", padding="attention_mask")
    compiled.save("model.pitc")
    outputs = pitc.load("model.pitc").run({"input_ids": ids, "attention_mask": mask})

Nothing heavy is imported before it is used: `import pitc` costs a few milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from pitc.version import __version__

if TYPE_CHECKING:
    from pitc.api import compile, explain
    from pitc.compiled import CompiledModel, get_ep_name, get_library_path, load, register_ep
    from pitc.errors import (
        ArtifactError,
        MachineError,
        ModelError,
        PitcError,
        PitcWarning,
        SuggestionWarning,
        UsageError,
        VerificationError,
    )
    from pitc.ir.custom_ops import register_custom_ops

__all__ = [
    "ArtifactError",
    "CompiledModel",
    "MachineError",
    "ModelError",
    "PitcError",
    "PitcWarning",
    "SuggestionWarning",
    "UsageError",
    "VerificationError",
    "__version__",
    "compile",
    "explain",
    "get_ep_name",
    "get_library_path",
    "load",
    "register_custom_ops",
    "register_ep",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pitc' has no attribute {name!r}")
    room = "pitc.api" if name in ("compile", "explain") else "pitc.compiled"
    room = "pitc.ir.custom_ops" if name == "register_custom_ops" else room
    room = "pitc.errors" if name.endswith(("Error", "Warning")) else room
    return getattr(import_module(room), name)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))

"""Kernel plans: what a PIT node of the compiled model does, as text the C++ runtime reads.

A PIT node is a `com.microsoft::EPContext` node whose `source` is `PitExecutionProvider` and whose
`ep_cache_context` holds a plan. A plan is UTF-8 text: the line `pitc-plan 9`, then one `key=value`
line per field, keys in alphabetical order. Values are integers, words, comma-separated lists of
those, or floats in C hexadecimal form (`0x1.8p-3`, exact). `docs/plans.md` is the contract between
compiler and runtime: operands, outputs and fields of every plan. `plans/` has them as types.
"""

PLAN_VERSION = 9
EP_NAME = "PitExecutionProvider"
CUDA_EP_NAME = "PitCudaExecutionProvider"
PROVIDERS = (EP_NAME, CUDA_EP_NAME)


def stamped(text: str, identity: str) -> str:
    """A plan's text that says which kernel library it was made with, if it names one."""
    if "\nlibrary=" not in text:
        return text
    first, *lines = text.splitlines()
    return "\n".join([first, *sorted([*lines, f"identity={identity}"]), ""])

"""Kernel plans: what a PIT node of the compiled model does, as text the C++ runtime reads.

A PIT node is a `com.microsoft::EPContext` node whose `source` is `PitExecutionProvider` and whose
`ep_cache_context` holds a plan. A plan is UTF-8 text: the line `pitc-plan 4`, then one `key=value`
line per field, keys in alphabetical order. Values are integers, words, comma-separated lists of
those, or floats in C hexadecimal form (`0x1.8p-3`, exact). `docs/plans.md` is the contract between
compiler and runtime: operands, outputs and fields of every plan.
"""

from dataclasses import dataclass
from urllib.parse import quote

PLAN_VERSION = 4
EP_NAME = "PitExecutionProvider"
CUDA_EP_NAME = "PitCudaExecutionProvider"
PROVIDERS = (EP_NAME, CUDA_EP_NAME)
REGION_STEPS = ("gather_gemm", "contract", "ffn")
"""Operations that may be steps of a region."""
LONGEST_NAME = 1000  # bytes of a name in a plan

Field = int | float | str | tuple[int, ...] | tuple[str, ...]


def _text(value: Field) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return value.hex() if isinstance(value, float) else str(value)


def name_field(name: str) -> str:
    """The name of a node or a value as a word in a plan: other bytes than letters, digits and
    `-._~/` are `%XX`.
    """
    return quote(name.encode("utf-8", "replace")[:LONGEST_NAME].decode("utf-8", "ignore"))


@dataclass(frozen=True, slots=True)
class Plan:
    """One kernel node's static description.

    Args:
        op: An operation of `docs/plans.md`.
        fields: The fields that `docs/plans.md` lists for the operation.
    """

    op: str
    fields: tuple[tuple[str, Field], ...] = ()

    @property
    def names_kernel(self) -> bool:
        """False for what runs on the host, whatever the target."""
        return any(key == "kernel" for key, _ in self.fields)

    def text(self) -> str:
        """The plan as the runtime reads it."""
        fields = dict(self.fields) | {"op": self.op}
        lines = [f"{key}={_text(fields[key])}" for key in sorted(fields)]
        return "\n".join([f"pitc-plan {PLAN_VERSION}", *lines, ""])


def fields_of(text: str) -> dict[str, str]:
    """The fields of a plan's text, its operation among them."""
    return dict(line.split("=", 1) for line in text.splitlines()[1:])


def stamped(text: str, identity: str) -> str:
    """A plan's text that says which kernel library it was made with, if it names one."""
    if "\nlibrary=" not in text:
        return text
    first, *lines = text.splitlines()
    return "\n".join([first, *sorted([*lines, f"identity={identity}"]), ""])

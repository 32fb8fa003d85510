"""User errors: one class per kind of mistake, one line of text, one exit code.

A user error is the caller's to mend: a bad model, option, artifact or environment. It prints as one
line and never as a traceback. A *refusal* (`pitc.ir.refusal`) is not an error: it says why a node
stays as it was. Anything else that is raised is a bug in pitc and keeps its traceback (exit code
1).
"""

from typing import ClassVar

#: Longer names and messages are cut: they come from files, and may have any length.
NODE_CHARS, MESSAGE_CHARS = 200, 1000


def one_line(text: str) -> str:
    """The text without line breaks and without characters that a terminal would act on."""
    flat = " ".join(text.split())
    if flat.isprintable():
        return flat
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in flat)


def origin_of(error: BaseException) -> str:
    """The first line of what began a chain of exceptions; others tell only where it was."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = (line.strip() for line in str(error).splitlines())
    return next((line for line in lines if line), type(error).__name__)


def _clipped(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


class PitcError(Exception):
    """Base of all user errors.

    Args:
        message: What is wrong, with the values found and expected.
        path: The file that is at fault, if one is.
        node: The graph node at fault, if one is.
        hint: What the user can do.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        path: object | None = None,
        node: str | None = None,
        hint: str | None = None,
    ) -> None:
        self.message, self.path, self.node, self.hint = message, path, node, hint
        place = [] if path is None else [str(path)]
        if node is not None:
            place.append(f"node '{_clipped(node, NODE_CHARS)}'")
        text = ": ".join([*place, _clipped(message, MESSAGE_CHARS)])
        super().__init__(one_line(f"{text} ({hint})" if hint else text))


class UsageError(PitcError):
    """An option or argument that cannot be used (exit code 2)."""

    exit_code = 2


class ModelError(PitcError):
    """A model that cannot be read or is not valid ONNX (exit code 3)."""

    exit_code = 3


class VerificationError(PitcError):
    """A compiled model whose results or facts do not hold (exit code 4)."""

    exit_code = 4


class ArtifactError(PitcError):
    """An artifact that is damaged or does not fit this machine or version (exit code 5)."""

    exit_code = 5


class MachineError(PitcError):
    """A machine or installation that lacks something (exit code 6)."""

    exit_code = 6


class PitcWarning(UserWarning):
    """Something that works but not as well as it could; the text says what mends it."""


class SuggestionWarning(PitcWarning):
    """What would make a compiled model skip more; `compile` looks for it unless `suggest=False`."""

"""User errors: one class per kind of mistake, one line of text, one exit code.

A user error is the caller's to mend: a bad model, option, artifact or environment. It prints as one
line and never as a traceback. A *refusal* (`pitc.ir.refusal`) is not an error: it says why a node
stays as it was. Anything else that is raised is a bug in pitc and keeps its traceback (exit code
1).
"""

from typing import ClassVar


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
        place = ": ".join(
            [str(path)] * (path is not None) + [f"node '{node}'"] * (node is not None)
        )
        text = f"{place}: {message}" if place else message
        super().__init__(" ".join((f"{text} ({hint})" if hint else text).split()))


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

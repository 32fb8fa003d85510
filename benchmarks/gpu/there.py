"""What an image with PyTorch for GPUs has of the packages that a run needs: no pack brings them."""

from collections.abc import Iterable

THERE = frozenset(
    (
        "annotated-doc",
        "filelock",
        "hypothesis",
        "iniconfig",
        "jinja2",
        "markdown-it-py",
        "markupsafe",
        "mdurl",
        "ml-dtypes",
        "mpmath",
        "networkx",
        "numpy",
        "onnx",
        "onnx-ir",
        "onnxruntime",
        "packaging",
        "pluggy",
        "pygments",
        "pytest",
        "rich",
        "shellingham",
        "sortedcontainers",
        "sympy",
        "typer",
        "typing-extensions",
    )
)
"""Names as registries spell them; of whichever version."""


def missing(names: Iterable[str]) -> list[str]:
    """Those of some packages that such an image lacks."""
    return sorted(set(names) - THERE)

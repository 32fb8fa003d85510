"""Real text of natural lengths: docstrings of Python's own standard library, read at run time."""

import ast
import hashlib
import sysconfig
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Int64 = npt.NDArray[np.int64]

# not the library itself: installed packages, tests and their data, tools with a window
SKIPPED = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"}
)


def _sources(root: Path) -> list[Path]:
    """The library's files in an order that is fixed and mixes its parts."""
    files = [
        path.relative_to(root)
        for path in root.rglob("*.py")
        if SKIPPED.isdisjoint(path.relative_to(root).parts)
    ]
    return sorted(files, key=lambda path: hashlib.sha256(path.as_posix().encode()).digest())


def docstrings() -> Iterator[str]:
    """Every distinct docstring of the standard library, in an order fixed by the files' names."""
    root, seen = Path(sysconfig.get_path("stdlib")), set[str]()
    for path in _sources(root):
        try:
            with tokenize.open(root / path) as file:
                tree = ast.parse(file.read())
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        for node in ast.walk(tree):
            if not isinstance(
                node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
            ):
                continue
            text = (ast.get_docstring(node) or "").strip()
            if text and text not in seen:
                seen.add(text)
                yield text


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokenised texts, padded on the right to the longest of them.

    Args:
        input_ids: int64 [batch, sequence].
        attention_mask: int64 [batch, sequence]: 1 at a token, 0 at padding.
    """

    input_ids: Int64
    attention_mask: Int64

    @property
    def tokens(self) -> int:
        """Tokens that are not padding."""
        return int(self.attention_mask.sum())

    @property
    def live_share(self) -> float:
        """Share of the batch that is not padding."""
        return self.tokens / max(self.attention_mask.size, 1)

    def feeds(self) -> dict[str, Int64]:
        """The three inputs of a BERT encoder."""
        return {
            "input_ids": self.input_ids,
            "attention_mask": self.attention_mask,
            "token_type_ids": np.zeros_like(self.input_ids),
        }


def padded(rows: Sequence[Sequence[int]], pad: int = 0) -> Batch:
    """Put token ids of several texts into one batch."""
    shape = (len(rows), max(map(len, rows), default=0))
    ids, mask = np.full(shape, pad, np.int64), np.zeros(shape, np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
        mask[i, : len(row)] = 1
    return Batch(ids, mask)


def encode(tokenizer: "Tokenizer", texts: Sequence[str], cap: int) -> Batch:
    """Tokenise texts into one batch of at most `cap` tokens per text, special tokens included.

    A text that is too long keeps its first tokens and its final special token.
    """
    rows = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
    return padded([row if len(row) <= cap else [*row[: cap - 1], row[-1]] for row in rows])


def batches(tokenizer: "Tokenizer", count: int, size: int = 64, cap: int = 256) -> list[Batch]:
    """The first batches of the library's docstrings, in their order.

    Args:
        tokenizer: The model's tokenizer.
        count: How many batches.
        size: Texts per batch.
        cap: Most tokens per text.

    Returns:
        `count` batches, fewer when there is not enough text.
    """
    texts = docstrings()
    groups = (list(islice(texts, size)) for _ in range(count))
    return [encode(tokenizer, group, cap) for group in groups if group]

"""docs/attention.md: what it draws and counts is so."""

import re
from pathlib import Path

import numpy as np

from pitc.ir.kernel import LISTED_QUERIES

PAGE = Path(__file__).parents[2] / "docs" / "attention.md"
DOCUMENTS = np.repeat([0, 1], [8, 4])
N, TILE = len(DOCUMENTS), 4
AT = np.arange(N)
SEEN = (DOCUMENTS[:, None] == DOCUMENTS) & (AT[:, None] >= AT)


def drawn(name: str) -> list[str]:
    text = PAGE.read_text("utf-8")
    found = re.search(rf"<!-- {name} -->\n```\n(.*?)```\n<!-- /{name} -->", text, re.DOTALL)
    assert found
    return found[1].splitlines()


def kind(part: "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]") -> str:
    return "full" if part.all() else "mixed" if part.any() else "empty"


def test_the_mask_and_its_tiles() -> None:
    rows = [line.split() for line in drawn("tiles")[1:] if line]
    assert [int(row[0]) for row in rows] == [*range(N)]
    for row, seen in zip(rows, SEEN, strict=True):
        assert row[1 : N + 1] == ["#" if s else "." for s in seen]
    kinds = [row[N + 1 :] for row in rows if len(row) > N + 1]
    tiles = SEEN.reshape(N // TILE, TILE, N // TILE, TILE).swapaxes(1, 2)
    assert kinds == [[kind(part) for part in tile] for tile in tiles]


def test_the_lists() -> None:
    keys = 0
    for line, q in zip(drawn("lists"), range(0, N, TILE), strict=True):
        tile = SEEN[q : q + TILE]
        keys += np.count_nonzero(tile.any(0))
        bits = {k: "".join("#" if s else "." for s in tile[:, k]) for k in AT if tile[:, k].any()}
        entries = "  ".join(f"{k}:{text}" for k, text in bits.items())
        assert line.split(" keys ") == [f"queries {q}-{q + TILE - 1}".ljust(15), entries]
    text = PAGE.read_text("utf-8")
    assert f"{keys} rows for the three tiles, where the dense product reads {3 * N}" in text
    assert f"Real tiles have {LISTED_QUERIES} queries" in text
    assert f"one key of {LISTED_QUERIES} queries" in text

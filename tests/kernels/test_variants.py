"""The table of variants: micro-tiles follow from dense tiles, and everybody reads the same list."""

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pitc.ir import cuda_variants, machine_header, variants
from pitc.ir.cuda_target import CUDA_TILES
from pitc.ir.kernel import KernelRequest
from pitc.ir.target import CPU_LEVELS
from pitc.ir.variants import LINE_BYTES, SPARSE_FAMILIES, VARIANTS, Tile, Variant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("machine", "kind", "dense", "want"),
    [
        ("cpu", "tile", Tile(32, 64), Tile(32, 1)),
        ("cpu", "row", Tile(1, 1), Tile(1, 1)),
        ("cpu", "dense", Tile(6, 1), Tile(1, 1)),
        ("cpu", "block", Tile(4, 64), Tile(1, 64)),
        ("cpu", "block", Tile(4, 8), Tile(1, 16)),  # a line is 16 floats
        ("cuda", "block", Tile(4, 8), Tile(1, 8)),  # and a sector of a GPU 8
        ("cuda", "square", Tile(32, 4), Tile(32, 8)),
        ("cuda", "tile", Tile(16, 64), Tile(16, 1)),
    ],
)
def test_a_micro_tile_follows_from_its_dense_tile(
    machine: str, kind: str, dense: Tile, want: Tile
) -> None:
    assert Variant(machine, kind, "new", dense).micro_tile() == want


def test_other_types_are_refused() -> None:
    with pytest.raises(KeyError):
        VARIANTS["block16"].micro_tile("float33")


def test_every_variant_is_one_line_that_all_can_read() -> None:
    """What the detector counts, the kernels gather and the header says, from the one table."""
    assert next(iter(VARIANTS)) == "dense" and not VARIANTS["dense"].pit_axis
    for group in ("height", "width"):
        sizes = [getattr(v, group) for v in VARIANTS.values() if getattr(v, group)]
        assert sizes == sorted(set(sizes)), "each size once, in ascending order"
    for name, v in VARIANTS.items():
        assert v.name == name and not (v.height and v.width)
        assert name == f"tile{v.height}" if v.height else True
        assert name == f"block{v.width}" if v.width else True
        assert not v.height or (v.height % 8 == 0 and 32 % v.height == 0), "as the detector counts"
        assert not v.width or (v.width * 4 >= LINE_BYTES["cpu"] and 64 % v.width == 0)
        assert all(v.height % level.listed_tile[0] == 0 for level in CPU_LEVELS)
        request = KernelRequest.of(v.family, k=3, n=5, activation="none", residual=0)
        assert request.symbol.startswith(v.family)
    assert {v.family for v in VARIANTS.values()} == {"gather_gemm", *SPARSE_FAMILIES}


def test_the_header_needs_nothing_but_tables(tmp_path: Path) -> None:
    """The build of the runtime runs the module by itself, with any Python."""
    made = tmp_path / "machines.h"
    command = [sys.executable, "-S", "-B", "-m", "pitc.ir.machine_header", str(made)]
    subprocess.run(command, check=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    text = made.read_text()
    assert text == machine_header.header()
    records = re.findall(r'\{"(\w+)", Cut::k(\w+), (\d+), (\d+), (\w+)\}', text)
    assert [r[0] for r in records] == list(VARIANTS)
    kinds = {"Tile": "height", "Block": "width"}
    for name, kind, size, place, waits in records:
        v = VARIANTS[name]
        assert int(size) == (getattr(v, kinds[kind]) if kind in kinds else 1)
        assert waits == str(v.waits).lower() == ("true" if kind in ("Row", "Tile") else "false")
        same = [r for r in records if r[1] == kind]
        assert int(place) == [r[0] for r in same].index(name)


def test_a_new_line_is_a_new_variant(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Variant("cpu", "tile", "tile16", ..)` is all that the header, its arrays and places need."""
    new = Variant("cpu", "tile", "tile16", Tile(16, 64))
    table = sorted([*VARIANTS.values(), new], key=lambda v: (v.width, v.height))
    monkeypatch.setattr(machine_header, "VARIANTS", {v.name: v for v in table})
    text = machine_header.header()
    assert "kStripHeights[] = {\n    8,\n    16}" in text and "kVariants = 7" in text
    places = dict(re.findall(r'\{"(tile\d+)", Cut::kTile, \d+, (\d+),', text))
    assert places == {"tile8": "0", "tile16": "1"}
    assert str(new.micro_tile()) == "16 x 1" and new.family == "contract_tile"


def test_names_and_constants_are_shared() -> None:
    text = machine_header.header()
    for value, name in ((variants.CHUNK, "kChunk"), (variants.LISTED_ROWS, "kListedRows")):
        assert f"constexpr int64_t {name} = {value};" in text
    assert f"constexpr int kFeatures = {len(variants.FEATURES)};" in text


@pytest.mark.parametrize(("rows", "turns"), [(1, 3), (1000, 4)])
def test_cpp_computes_the_formulas_of_python(rows: int, turns: int) -> None:
    """The text is an expression of Python too, once its casts and calls are: it gives the same."""
    text = machine_header.header()
    (amounts,) = re.findall(r"return \{(1, .*)\};", text)
    (time,) = re.findall(r"double TileTime.*\n  return (.*);", text)
    offer, tile = cuda_variants.offers_of("float16")[1], CUDA_TILES[1]
    line = cuda_variants.line_of(offer.variant, offer.tile, "float16", 108)
    scope = {"rows": rows, "k": 2048, "n": 1000, "processors": 108, "clocks": 288, "tile": tile}
    scope["offer"] = SimpleNamespace(**dict(zip(cuda_variants.COLUMNS, line, strict=True)))
    scope |= {"StepCount": lambda count, by: -(-count // by), "most": max}

    def value(cpp: str) -> object:
        for old, new in (("static_cast<double>", "float"), ("std::max<int64_t>", "most")):
            cpp = cpp.replace(old, new)
        return eval(f"({cpp})", {}, scope)

    totals, sizes = dict.fromkeys(cuda_variants.TOTALS, 0), (rows, 2048, 1000)
    assert value(amounts) == cuda_variants.features_of(line, totals, sizes, 32)
    assert value(time) == cuda_variants.tile_time(tile, 288, sizes, 108) == turns * 32 * 288


def test_the_docs_name_every_variant() -> None:
    table, plans = ((ROOT / "docs" / page).read_text() for page in ("tiles.md", "plans.md"))
    for name, v in VARIANTS.items():
        (row,) = (
            line for line in table.splitlines() if line.startswith("|") and f"`{name}`" in line
        )
        assert not v.pit_axis or (str(v.micro_tile()) in row and f"| {v.pit_axis} |" in row)
        assert f"`{name}`" in plans

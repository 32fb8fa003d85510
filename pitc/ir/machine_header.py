"""Machines as the plug-in has them: `python -m pitc.ir.machine_header FILE` writes a C++ header.

Variants, dense tiles, grids of factors, limits and formulas stand once, in the modules that this
one imports, which say what they mean. It runs where no other package is installed.

    TILE_ROWS = 6                     constexpr int64_t kTileRows = 6;
    features_of(line, ..)             DenseFeatures(offer, ..)
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partialmethod
from pathlib import Path
from types import ModuleType, SimpleNamespace

from pitc.ir import cuda_variants, kernel, panels, tiles, variants
from pitc.ir.cuda_target import CUDA_TILES, SUMS_M
from pitc.ir.plans.kinds import ElementType
from pitc.ir.variants import ITEM_BYTES, VARIANTS

_ELEMENTS = ElementType().choices

_WHOLE: tuple[tuple[ModuleType, str, str], ...] = (
    (variants, "", "TILE_ROWS PAIR_ROWS LISTED_ROWS CHUNK FOLD"),
    (tiles, "", "FACTOR_UNIT HIGHEST_FACTOR HIGHEST_PRICE"),
    (panels, "", "PANEL_WIDTH TURNED_COLUMNS"),
    (kernel, "", "KERNEL_ABI LISTED_QUERIES MOST_FACTOR MOST_CONSTANT"),
    (cuda_variants, "CUDA_", "GROUP SEGMENT BLOCK_BYTES OTHER_LAUNCHES"),
)
"""Numbers of modules, and what stands before their names in C++."""


@dataclass(frozen=True, slots=True)
class _Cpp:
    """An expression of C++, made by computing with what it is of."""

    text: object

    def __str__(self) -> str:
        return str(self.text)

    def _with(self, sign: str, other: object) -> "_Cpp":
        return _Cpp(f"({self} {sign} {other})")

    def __rmul__(self, other: object) -> "_Cpp":
        return _Cpp(f"({other} * {self})")

    __add__, __mul__ = partialmethod(_with, "+"), partialmethod(_with, "*")
    __truediv__, __mod__ = partialmethod(_with, "/"), partialmethod(_with, "%")


_EXPRESSIONS = cuda_variants.Arithmetic(
    real=lambda count: _Cpp(f"static_cast<double>({count})"),
    steps=lambda count, by: _Cpp(f"StepCount({count}, {by})"),
    least=lambda a, b: _Cpp(f"std::min<int64_t>({a}, {b})"),
    most=lambda a, b: _Cpp(f"std::max<int64_t>({a}, {b})"),
)
"""What C++ computes: counts are int64_t, what is real is double."""


def _text(value: object) -> str:
    """A value in C++."""
    if isinstance(value, tuple):
        return f"{{{', '.join(map(_text, value))}}}"
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)


def _name(name: str, of: str = "") -> _Cpp:
    return _Cpp(f"{of}k{name.title().replace('_', '')}")


def _array(kind: str, name: str, values: Iterable[object]) -> str:
    lines = ",\n    ".join(map(_text, values))
    return f"constexpr {kind} {name}[] = {{\n    {lines}}};"


def _enum(name: str, words: Iterable[str]) -> str:
    return f"enum class {name} {{ {', '.join(str(_name(word)) for word in words)} }};"


def _constants() -> Iterator[str]:
    for module, prefix, names in _WHOLE:
        for name in names.split():
            yield f"constexpr int64_t {_name(prefix + name)} = {getattr(module, name)};"
    counted = {
        "kVariants": VARIANTS,
        "kFeatures": variants.FEATURES,
        "kGrids": tiles.GRIDS,
        "kCudaCuts": cuda_variants.KINDS,
        "kCudaColumns": cuda_variants.COLUMNS,
        "kCudaFeatures": cuda_variants.FEATURES,
    }
    yield from (f"constexpr int {name} = {len(values)};" for name, values in counted.items())
    yield f"constexpr int kFactors = {tiles.FACTORS}, kCudaSumRows = {SUMS_M};"
    yield f"constexpr int kCudaLeastTogether = {cuda_variants.LEAST_TOGETHER};"
    yield f"constexpr double kLaterPass = {tiles.LATER_PASS}, kFemtoseconds = {tiles.FEMTOSECONDS};"
    yield f"constexpr double kLeastGain = {tiles.LEAST_GAIN};"
    yield _array("int64_t", "kCudaSummedRows", cuda_variants.SUMMED_ROWS)
    yield _array("int64_t", "kCudaGroupHeights", cuda_variants.GROUP_HEIGHTS)
    yield _array("int", "kCudaMovedBytes", sorted(kernel.MOVED_BYTES, reverse=True))
    yield _array("const char*", "kCudaCutNames", cuda_variants.KINDS)
    yield _array("const char*", "kCudaTotals", cuda_variants.TOTALS)
    yield _enum("Element", _ELEMENTS)
    yield _enum("Variant", VARIANTS)
    yield _enum("Feature", variants.FEATURES)
    yield _enum("Cut", dict.fromkeys(v.kind for v in VARIANTS.values()))
    yield _enum("CudaCut", cuda_variants.KINDS)


def _variants() -> Iterator[str]:
    heights = [v.height for v in VARIANTS.values() if v.height]
    widths = [v.width for v in VARIANTS.values() if v.width]
    yield _array("int64_t", "kStripHeights", heights)
    yield _array("int64_t", "kSegmentWidths", widths)
    yield f"constexpr int kStripKinds = {len(heights)}, kSegmentKinds = {len(widths)};"
    records = []
    for v in VARIANTS.values():
        size = v.height or v.width or 1
        place = heights.index(size) if v.height else widths.index(size) if v.width else 0
        records.append((v.name, _name(v.kind, "Cut::"), size, place, v.waits))
    yield _array("VariantRecord", "kTable", records)


def _tiles() -> Iterator[str]:
    dense = [(t.name, t.engine == "mma", t.m, t.n, t.k_bytes, t.shared_bytes) for t in CUDA_TILES]
    yield _array("CudaTile", "kCudaTiles", dense)
    offers = []
    for dtype in ("float16", "float32"):
        for offer in cuda_variants.offers_of(dtype):
            variant, tile = offer.variant, offer.tile
            _, m, n, step, _, entry = cuda_variants.line_of(variant, tile, dtype, 0)
            cut = _name(variant.kind, "CudaCut::"), tile.engine == "mma"
            sizes = m, n, step, entry, offer.shared_bytes, offer.together
            offers.append((ITEM_BYTES[dtype], variant.name, tile.name, *cut, *sizes))
    yield _array("CudaOffer", "kCudaOffers", offers)


def _formulas() -> Iterator[str]:
    """Of a product in dense tiles: what the host computes."""
    given = "int64_t rows, int64_t k, int64_t n, int64_t processors"
    rows, k, n, processors = tuple(map(_Cpp, ("rows", "k", "n", "processors")))
    m, across, step, entry = (_Cpp(f"offer.{x}") for x in ("m", "n", "step", "entry"))
    line, none = (0, m, across, step, processors, entry), _Cpp(0)
    totals = dict.fromkeys(cuda_variants.TOTALS, none)
    amounts = cuda_variants.features_of(line, totals, (rows, k, n), none, _EXPRESSIONS)
    tile = SimpleNamespace(**{x: _Cpp(f"tile.{x}") for x in ("m", "n", "k_bytes")})
    time = cuda_variants.tile_time(tile, _Cpp("clocks"), (rows, k, n), processors, _EXPRESSIONS)
    yield "using CudaAmounts = std::array<double, kCudaFeatures>;"
    yield f"inline CudaAmounts DenseFeatures(const CudaOffer& offer, {given}) {{"
    yield f"  return {_text(amounts)};\n}}"
    yield f"inline double TileTime(const CudaTile& tile, int64_t clocks, {given}) {{"
    yield f"  return {time};\n}}"


def header() -> str:
    """The text of the header."""
    axes = _text(tuple(tuple((x.doublings, x.knots) for x in grid) for grid in tiles.GRIDS))
    elements = _array("ElementRecord", "kElements", ((x, ITEM_BYTES[x]) for x in _ELEMENTS))
    constants, cpu, gpu, formulas = map(
        "\n".join, (_constants(), _variants(), _tiles(), _formulas())
    )
    return f"""// Generated by pitc/ir/machine_header.py from tables of the compiler.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
namespace pitc {{

{constants}

struct ElementRecord {{  // of a type that kernels compute with
  const char* name;
  int bytes;
}};
{elements}
constexpr const ElementRecord& RecordOf(Element type) {{
  return kElements[static_cast<int>(type)];
}}

struct VariantRecord {{
  const char* name;
  Cut cut;       // into kStripHeights x 1, or 1 x kSegmentWidths
  int64_t size;  // the height or width of its micro-tile, the other one is 1
  int place;     // of that among kStripHeights or kSegmentWidths
  bool waits;    // for rows of B that it reads here and there
}};
{cpu}
constexpr const VariantRecord& RecordOf(Variant variant) {{
  return kTable[static_cast<int>(variant)];
}}

// Knots of a ratio: 1, 2^doublings, 4^doublings, ...
struct Axis {{
  int doublings, knots;
}};
constexpr Axis kGridAxes[kGrids][2] = {axes};

struct CudaTile {{
  const char* name;
  bool mma;  // by tensor cores, else by FMA units
  int64_t m, n, k_bytes;
  int shared_bytes;  // of a block
}};
struct CudaOffer {{
  int item_bytes;  // of the operands
  const char* variant;
  const char* tile;
  CudaCut cut;
  bool mma;
  int64_t m, n, step, entry;
  int shared_bytes;  // of a block; for kBlock without its sums
  int together;      // blocks of a multiprocessor whose shared memory has room
}};
{gpu}

#ifndef PITC_LEVEL  // whose files take no inline function
// How many steps of `by` a count takes.
constexpr int64_t StepCount(int64_t count, int64_t by) {{ return (count + by - 1) / by; }}
{formulas}
#endif

}}  // namespace pitc
"""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(header(), encoding="utf-8")

"""Rooms of the plug-in: every file is in one, and includes point one way."""

import re
from pathlib import Path

EP = Path(__file__).parents[2] / "runtime/ep"
#: Each room, and the rooms whose headers it may include; its own besides.
ROOMS = {
    "base": "",
    "simd": "base",
    "detect": "base simd",
    "kernels": "base",
    "select": "base simd",
    "plan": "base select",
    "ort": "base select",
    "ops": "base simd detect kernels select plan ort",
    "device": "base kernels select plan ort ops",
    "provider": "base simd kernels select plan ort ops device",
}


def test_includes_point_one_way() -> None:
    files = [f for f in EP.rglob("*") if f.suffix in (".h", ".cc")]
    assert {f.parent.name for f in files} == set(ROOMS) and len(files) > 60
    for file in files:
        allowed = {file.parent.name, *ROOMS[file.parent.name].split()}
        for name in re.findall(r'#include "([^"]+)"', file.read_text()):
            generated = name in ("machines.h", "ort_abi.h", "plans.h")
            assert generated or name.split("/")[0] in allowed, f"{file.relative_to(EP)}: {name}"


def test_no_file_is_long() -> None:
    assert not [f for f in EP.rglob("*.cc") if len(f.read_text().splitlines()) > 600]

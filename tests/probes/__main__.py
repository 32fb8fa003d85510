"""Runs probes and writes one line for each that fails.

python -m tests.probes [PATTERN ..] [--out FILE] [--all]
"""

import argparse
import fnmatch
import sys
import time
from pathlib import Path

import onnx

from tests.probes.all import MAKERS
from tests.probes.check import BadProbe, check


def main() -> int:
    """Check the chosen probes; returns 1 when one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*", default=["*"])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--all", action="store_true", help="a line for every probe")
    options = parser.parse_args()
    lines, bites, total, start = [], 0, 0, time.perf_counter()
    for name, maker in MAKERS.items():
        if not any(fnmatch.fnmatch(name, p) for p in options.patterns):
            continue
        total += 1
        try:
            found = check(maker())
        except (BadProbe, onnx.checker.ValidationError) as error:
            print(f"{name}: BAD PROBE {error}", flush=True)
            continue
        bites += found.pit > 0
        if found.failure or options.all:
            what = found.failure or ("excused" if found.excused else "ok")
            what = " ".join(what.split())
            lines.append(f"{name} | {found.pit} PIT nodes | {what}")
            print(lines[-1], flush=True)
    text = f"{total} probes, {bites} with PIT nodes, {time.perf_counter() - start:.0f} s"
    print(text)
    if options.out:
        options.out.write_text("\n".join([text, *lines]) + "\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())

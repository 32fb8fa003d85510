"""Mutants of the plug-in's plan reader, judged by its own tests: `python -m tests.mutation.reader`.

    if (*value >= least && ..) ..    ->    if (*value > least && ..) ..        killed by plan_test

One place of a source is changed, the file compiled, and the tests of plans and their fuzzer linked
with it. Prints what lives on; `EQUIVALENT` says why those live that may.
"""

import argparse
import random
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.runtime_support import ROOT, build

READER = ROOT / "runtime" / "ep" / "plan"
SOURCES = ("fields.cc", "plan.cc", "prices.cc")
JUDGES = ("plan_test", "attention_plan_test", "region_plan_test", "plan_fuzz")
FUZZ = ("-runs=20000", *(str(ROOT / "runtime" / "tests" / x) for x in ("plans", "cuda_plans")))
MEMORY = 4 << 30  # bytes: a list without end is no program
CHANGES = (
    (r"==", "!="),
    (r"!=", "=="),
    (r"<=", "<"),
    (r">=", ">"),
    (r" < ", " <= "),
    (r" > ", " >= "),
    (r"&&", "||"),
    (r"\|\|", "&&"),
    (r"!(?=[a-z(])", ""),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r" \+ 1\b", ""),
    (r" - 1\b", ""),
    (r"\b(\d+)\b", lambda m: str(int(m[1]) + 1)),
    (r"^(\s*)(Require|Fail|ExpectAllRead|in\.ExpectNoOthers|ExpectOperands)\(.*\);$", r"\1;"),
    (r"^(\s*)if \((.*)\)( Fail|$)", r"\1if (false)\3"),
)
SKIPPED = re.compile(r"^\s*//|^#|template|static_assert|constexpr size_t kLongest|Text\(")
_FIRST, _BELOW = "it is written before it is read", "below 0 either way"
EQUIVALENT = {
    "int64_t value = 1;": _FIRST,
    "int64_t number = 1;": _FIRST,
    "int64_t abi = 1;": _FIRST,
    "double value = 1;": _FIRST,
    "for (size_t comma = 1; comma != text.npos;) {": _FIRST,
    "in.EnterStep(-2);": _BELOW,
    "return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -2;": _BELOW,
    "const int c = part.size() == 2 && part[0] == 'c' ? part[1] - '0' : -2;": _BELOW,
    "const int high = escaped ? HexDigit(text[1]) : -1, low = escaped ? HexDigit(text[2]) : -2;": (
        _BELOW
    ),
    "const int high = escaped ? HexDigit(text[1]) : -2, low = escaped ? HexDigit(text[2]) : -1;": (
        _BELOW
    ),
}
"""Why a changed line, without blanks around it, does the same."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed line.

    Args:
        file: Name of the source.
        number: Of the line, from 1.
        old: The line.
        new: What stands there instead.
    """

    file: str
    number: int
    old: str
    new: str


def mutants() -> Iterator[Mutant]:
    """Every change of every line of the reader."""
    for file in SOURCES:
        for number, line in enumerate((READER / file).read_text().split("\n"), 1):
            if SKIPPED.search(line):
                continue
            code = re.sub(r'"(?:[^"\\]|\\.)*"', lambda m: "\0" * len(m[0]), line)
            code = code.partition(" //")[0]
            for pattern, to in CHANGES:
                for match in re.finditer(pattern, code):
                    new = line[: match.start()] + match.expand(to) if isinstance(to, str) else ""
                    new = new or line[: match.start()] + to(match)  # type: ignore[operator]
                    yield Mutant(file, number, line, new + line[match.end() :])


class Judge:
    """Compiles and runs mutants.

    Args:
        folder: Where it works.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._built = folder, build("plain")
        self._include = [f"-I{ROOT / 'runtime' / 'ep'}", f"-I{self._built / 'generated'}"]
        self._include += [f"-I{ROOT / 'runtime' / 'tests'}"]
        library = "libpitc_core.a"
        shutil.copy(self._built / library, folder / library)
        self._library = folder / library
        self._tests = {
            name: self._compiled(ROOT / "runtime/tests" / f"{name}.cc") for name in JUDGES
        }
        driver = self._compiled(ROOT / "runtime/tests/fuzz_main.cc")
        self._objects = {name: self._compiled(READER / name) for name in SOURCES}
        self._with = {"plan_fuzz": [driver]}

    def killed_by(self, mutant: Mutant) -> str | None:
        """The test that fails, `compiler` for what is no program; None where none does."""
        lines = (READER / mutant.file).read_text().split("\n")
        lines[mutant.number - 1] = mutant.new
        changed = self._folder / mutant.file
        changed.write_text("\n".join(lines))
        try:
            made = self._compiled(changed, "mutant")
        except subprocess.CalledProcessError:
            return "compiler"
        others = [x for name, x in self._objects.items() if name != mutant.file]
        for name in JUDGES:
            program = self._folder / name
            parts = [self._tests[name], *self._with.get(name, []), made, *others, self._library]
            self._run("-o", program, *parts, "-ldl", "-lpthread")
            arguments = FUZZ if name == "plan_fuzz" else ()
            try:
                limited = ["prlimit", f"--as={MEMORY}", str(program), *arguments]
                ended = subprocess.run(limited, capture_output=True, timeout=60, check=False)
            except subprocess.TimeoutExpired:
                return name
            if ended.returncode:
                return name
        return None

    def _compiled(self, source: Path, name: str = "") -> Path:
        made = self._folder / f"{name or source.stem}.o"
        plans = f'-DPITC_TEST_PLANS="{ROOT / "runtime" / "tests" / "plans"}"'
        self._run("-c", "-O0", "-std=c++17", "-o", made, plans, *self._include, source)
        return made

    def _run(self, *arguments: str | Path) -> None:
        subprocess.run(["c++", *map(str, arguments)], check=True, capture_output=True)


def main() -> int:
    """Judge mutants; 1 where one lives on unexplained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    every = [m for m in mutants() if m.old != m.new]
    chosen = random.Random(options.seed).sample(every, options.sample or len(every))
    counts: dict[str, int] = {}
    alive = 0
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(Path(folder))
        for mutant in sorted(chosen, key=lambda m: (m.file, m.number)):
            by = judge.killed_by(mutant) or EQUIVALENT.get(mutant.new.strip()) or "alive"
            counts[by] = counts.get(by, 0) + 1
            if by == "alive":
                alive += 1
                old, new = mutant.old.strip(), mutant.new.strip()
                print(f"{mutant.file}:{mutant.number}\n  {old}\n  {new}", flush=True)
    print(f"{len(chosen)} of {len(every)} mutants: {counts}")
    return min(alive, 1)


if __name__ == "__main__":
    raise SystemExit(main())

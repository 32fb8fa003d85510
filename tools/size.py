"""How large the product is: lines of each room, and the files that a compilation enters.

    python -m tools.size           # lines of each room, beside the most that it may have
    python -m tools.size files     # for a ReLU FFN and for BERT: files of ours whose code runs

    passes/rules              5,283 of  5,400
    ffn   108 files: 37 passes/facts, 33 passes/regions, ..

A room may grow beyond its budget only by a change of `tools/rooms.toml`, which says so.
"""

import sys
import tempfile
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from tools.parts import ROOT

BUDGETS = ROOT / "tools" / "rooms.toml"
PRODUCT = ("pitc", "passes", "codegen", "runtime")
LEFT_OUT = ("runtime/build", "runtime/tests", "pitc/passes", "pitc/codegen", "pitc/runtime")
SOURCES = (".py", ".cc", ".h")


def budgets() -> dict[str, int]:
    """The most lines that each room may have."""
    known: dict[str, int] = tomllib.loads(BUDGETS.read_text("utf-8"))["lines"]
    return known


def lines() -> dict[str, int]:
    """Lines of each room: a folder of Python or C++, its subfolders apart from it."""
    found: Counter[str] = Counter()
    for path in _sources():
        found[room_of(path)] += len(path.read_text("utf-8").splitlines())
    return dict(sorted(found.items()))


def room_of(path: Path) -> str:
    """The room of a source file: its folder in the checkout."""
    return path.parent.relative_to(ROOT).as_posix()


def _sources() -> Iterator[Path]:
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT).as_posix()
            if path.suffix in SOURCES and not name.startswith(LEFT_OUT):
                yield path


def entered(work: Callable[[], object]) -> set[Path]:
    """Files of the product in which a function runs while some work is done."""
    found: set[str] = set()

    def called(frame: FrameType, event: str, _value: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            found.add(frame.f_code.co_filename)

    sys.setprofile(called)
    threading.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    ours = {path.resolve() for path in _sources()}
    return {path for name in found if (path := Path(name).resolve()) in ours}


def _compilations() -> Iterator[tuple[str, Callable[[], object]]]:
    import numpy as np
    import onnx

    import pitc
    from models.bert import BertConfig, bert
    from models.opt import OPT_125M, opt_ffn

    def of(model: onnx.ModelProto, padding: str | None) -> Callable[[], object]:
        def compiled() -> object:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "model.onnx")
                onnx.save(model, path)
                output = Path(folder, "model.pitc")
                return pitc.compile(path, padding=padding, output=output, cache=False)

        return compiled

    yield "ffn", of(opt_ffn(OPT_125M, np.random.default_rng(0)), None)
    yield "bert", of(bert(BertConfig(), np.random.default_rng(0)), "attention_mask")


def main(words: list[str]) -> int:
    """Print what is asked for; 1 where a room is too large."""
    if words == ["files"]:
        for name, work in _compilations():
            work()  # kernels are in the cache from then on
            files = entered(work)
            rooms = Counter(map(room_of, files)).most_common()
            print(f"{name:<6}{len(files)} files: " + ", ".join(f"{n} {room}" for room, n in rooms))
        return 0
    known, found = budgets(), lines()
    for room, count in found.items():
        most = known.get(room, 0)
        print(f"{room:<28}{count:>7,} of {most:>7,}{'  too many' * (count > most)}")
    print(f"{'all':<28}{sum(found.values()):>7,}")
    return int(any(count > known.get(room, 0) for room, count in found.items()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

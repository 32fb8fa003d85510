"""What ships, who imports whom, and how fast the front door opens."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import onnxruntime
import pytest

import pitc
from pitc.version import __version__

ROOT = Path(__file__).parents[2]
ROOMS = {
    "pitc": "pitc",
    "passes": "pitc/passes",
    "codegen": "pitc/codegen",
    "runtime": "pitc/runtime",
}
LINKS = ("passes", "codegen", "runtime")
MAX_LINES = 600
#: Modules that `pitc --help` must not load.
HEAVY = {"numpy", "onnx", "onnx_ir", "onnxruntime", "tvm", "pydantic", "networkx", "jinja2"}
HEAVY |= {"pitc.api"}


def python_files(*folders: str) -> Iterator[Path]:
    """Python files below folders of the repository, without following its links."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not (folder == "pitc" and path.relative_to(ROOT / folder).parts[0] in LINKS):
                yield path


def test_the_links_are_links() -> None:
    for name in LINKS:
        assert os.readlink(ROOT / "pitc" / name) == f"../{name}"


def test_no_file_is_too_long() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in python_files(*ROOMS, "models", "benchmarks", "examples", "tools")
        if (count := len(path.read_text("utf-8").splitlines())) > MAX_LINES
    }
    assert not long


# Room of `pitc.passes`, by stage -> the rooms that it may import, besides itself and `pitc.ir`; all
# stand before it.
BELOW = {
    "rules": (),
    "quirks": ("rules",),
    "control": (),
    "exprs": ("rules", "control"),
    "masks": ("rules",),
    "padding": ("exprs",),
    # normalise
    "expand": ("rules", "control", "exprs"),
    "widen": ("rules", "exprs", "expand"),
    "fold": ("rules", "exprs"),
    "rests": ("exprs",),
    "same_flags": ("rules",),
    "normalise": (
        *("rules", "quirks", "control", "exprs", "expand", "widen", "fold", "rests"),
        "same_flags",
    ),
    "spread": (),
    "live_scales": ("rules", "exprs", "masks", "padding", "normalise", "spread"),
    # gradients: a way of their own, before all others
    "grad": ("rules", "control", "exprs", "expand", "normalise"),
    # facts
    "facts": ("rules", "control", "exprs", "normalise"),  # bodies of loops are models of their own
    "hidden": (),
    "analysis": ("masks", "padding", "facts", "hidden"),
    # regions
    "regions": ("rules", "exprs", "facts"),
    "siblings": ("rules", "exprs", "expand", "analysis", "regions"),
    # lower
    "lower": ("rules", "quirks", "control", "exprs", "expand", "facts", "regions"),
    "live_lists": ("rules", "facts", "regions", "lower", "spread"),  # and facts once more
    "fixed_counts": ("rules",),
    # all of them
    "audit": ("rules", "control", "exprs", "facts", "regions"),
    "readers": (),
    "records": ("regions", "lower", "readers"),
    "annotate": ("records",),
    "loops": ("control", "facts", "regions", "lower", "records"),
}
PASSES = {
    room: {"pitc.errors", "pitc.ir", *(f"pitc.passes.{name}" for name in below)}
    for room, below in BELOW.items()
}
# Room -> the rooms that it may import, besides itself. The longest fitting name counts.
ALLOWED = {
    "pitc.errors": set(),
    "pitc.version": set(),
    "pitc.ir": {"pitc.errors"},
    "pitc.importer": {"pitc.errors", "pitc.ir"},
    **{f"pitc.passes.{room}": found for room, found in PASSES.items()},
    "pitc.passes": {"pitc.errors", "pitc.ir", "pitc.passes"},
    "pitc.codegen": {"pitc.errors", "pitc.ir", "pitc.version", "pitc.host.folders"},
    "pitc.runtime": {"pitc.errors", "pitc.ir.plan"},
    "pitc.host.machine": {"pitc.errors", "pitc.version"},
    "pitc.host.folders": set(),
    "pitc.options": {"pitc.errors", "pitc.ir.cuda_target"},
    "pitc.check.feeds": {"pitc.errors", "pitc.ir.mask"},
    "pitc.measure.timing": set(),
    "pitc.config": {"pitc.errors", "pitc.options"},
    "pitc.report": {
        "pitc.artifact.folder",
        "pitc.host.machine",
        "pitc.ir",
        "pitc.measure",
        "pitc.version",
    },
    "pitc.artifact": {
        "pitc.errors",
        "pitc.ir",
        "pitc.host.machine",
        "pitc.options",
        "pitc.version",
    },
}


def imports(path: Path) -> set[str]:
    """Names of pitc's modules and of all packages that a file imports, at any place in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{a.name}" for a in node.names if node.module == "pitc"}
    return found


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    name = ".".join(parts if parts[0] == "pitc" else ("pitc", *parts))
    return name.removesuffix(".__init__")


def within(module: str, rooms: set[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def test_imports_point_one_way() -> None:
    wrong = []
    for path in python_files(*ROOMS):
        module = module_of(path)
        room = max((r for r in ALLOWED if within(module, {r})), key=len, default=None)
        if room is None:
            continue
        for name in imports(path):
            if name.startswith("pitc.") and not within(name, ALLOWED[room] | {room}):
                wrong.append(f"{module} imports {name}")
    assert not wrong


def test_a_stage_imports_nothing_of_a_later_one() -> None:
    rooms = list(BELOW)
    assert all(rooms.index(below) < rooms.index(room) for room in rooms for below in BELOW[room])


def test_only_codegen_imports_tvm_and_nobody_imports_the_command_line() -> None:
    for path in python_files(*ROOMS):
        found = imports(path)
        module = module_of(path)
        assert within(module, {"pitc.codegen"}) or not any(within(n, {"tvm"}) for n in found), path
        cli = within(module, {"pitc.cli", "pitc.__main__"})
        assert cli or not any(within(n, {"pitc.cli"}) for n in found), path


def test_no_second_copies_of_modules() -> None:
    """`import passes` works in a checkout, and makes a second copy of every class."""
    folders = ("models", "benchmarks", "examples", "tests", "tools")
    for path in python_files(*ROOMS, *folders):
        assert not any(within(name, set(LINKS)) for name in imports(path)), path


def run_python(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.parametrize("module", ["pitc", "pitc.cli", "pitc.cli.app", "pitc.codegen"])
def test_nothing_heavy_is_imported_early(module: str) -> None:
    code = f"import sys, {module}; print(*sys.modules)"
    loaded = set(run_python("-c", code).stdout.split())
    assert module in loaded
    assert not loaded & (HEAVY - {module})


def test_a_session_loads_no_module_that_it_can_do_without(bert_artifact: Path) -> None:
    """Each takes memory in every process that runs a model: 2 MB for what reads versions."""
    code = f"import sys, pitc; pitc.load({str(bert_artifact)!r}).session(); print(*sys.modules)"
    loaded = set(run_python("-c", code).stdout.split())
    assert "onnxruntime" in loaded
    assert not loaded & (HEAVY - {"numpy", "onnxruntime"} | {"importlib.metadata", "email"})


def test_help_loads_nothing_heavy() -> None:
    done = run_python("-X", "importtime", "-m", "pitc", "--help")
    assert "compile" in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "pitc.cli.app" in loaded
    assert not loaded & HEAVY


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert "version" in project["project"]["dynamic"]
    assert run_python("-m", "pitc", "version").stdout == f"pitc {__version__}\n"
    assert f"## {__version__}\n" in (ROOT / "CHANGELOG.md").read_text("utf-8")
    pitc.register()
    devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == pitc.get_ep_name()]
    assert [d.ep_metadata["version"] for d in devices] == [__version__]


def test_the_archive_of_a_checkout_holds_each_file_once(tmp_path: Path) -> None:
    """What `make wheel` makes is looked at in test_packaging_released.py."""
    code = "from scikit_build_core.build import build_sdist; import sys; build_sdist(sys.argv[1])"
    run_python("-c", code, str(tmp_path), cwd=ROOT)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    assert len(names) == len(set(names))
    base = f"pitc-{__version__}"
    assert f"{base}/passes/pipeline.py" in names
    assert f"{base}/runtime/CMakeLists.txt" in names
    assert not [n for n in names if n.startswith(tuple(f"{base}/pitc/{link}" for link in LINKS))]
    assert f"{base}/codegen/build/link.py" in names
    made = [n for n in names if "/build/" in n and not n.startswith(f"{base}/codegen/build/")]
    assert not made
    assert not [n for n in names if "/.venv/" in n or n.endswith(".pyc")]


def test_type_checkers_see_all_rooms(tmp_path: Path) -> None:
    """A planted error in each room is reported once by mypy and once by pyright."""
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    for folder in (*ROOMS, "models", "benchmarks", "tools", "tests"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text('x: int = "planted"\n')
    for name in LINKS:
        (tmp_path / "pitc" / name).symlink_to(f"../{name}")
    for tool in ("mypy", "pyright"):
        done = subprocess.run(
            [sys.executable, "-m", tool], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        for folder in ROOMS:
            pattern = rf"^.*\b{folder}/__init__\.py:1\b.* error: "
            assert len(re.findall(pattern, done.stdout, re.MULTILINE)) == 1, (tool, done.stdout)


def test_make_lists_its_targets() -> None:
    done = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    listed = set(re.findall(r"^  make ([\w-]+) ", done.stdout, re.MULTILINE))
    assert {"help", "demo", "test", "lint", "bench", "ep", "wheel", "clean"} <= listed
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == listed


def test_the_ci_script_ends_with_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1].endswith("test")

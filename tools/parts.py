"""The two distributions of pitc, and the files that each of them holds.

`pitc-runtime` is the run-time half of the import package `pitc`, with the plug-in library: what
loads, registers and runs. `pitc` is the other half, the compiler, and requires the first at the
same version. No file is in both (decision 21). A checkout is both at once.
"""

import ast
import shutil
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import tomli_w

ROOT = Path(__file__).parents[1]
RUNTIME, COMPILER = "pitc-runtime", "pitc"
LABEL = "+source"
"""Behind the version of what a checkout builds. No index takes a version with such a label, so what
`pitc` requires can come from no index, whoever may publish something under our names (decision 26).
"""

ROOMS = {"pitc": "pitc", "pitc.passes": "passes", "pitc.codegen": "codegen"}
"""Import name of a room, and its folder; `pitc.runtime` is below."""
ROOMS_OF_RUNTIME = {"pitc.runtime": "runtime"}
NOT_SHIPPED = ("runtime/abi/", "runtime/tests/", "runtime/ep/", "runtime/build/")
CPP = ("runtime/CMakeLists.txt", "runtime/abi/", "runtime/ep/")
"""What the plug-in library is built from."""

ENTRANCES = ("pitc", "pitc.compiled", "pitc.errors", "pitc.version")
"""What a program imports that runs models; all of `pitc.runtime` is, too."""
BUILDERS = ("pitc.ir.machine_header", "pitc.ir.plans.header")
"""What CMake runs to make headers."""
DEPENDENCIES = ("numpy", "onnxruntime")
"""Those of `pitc-runtime`, as pyproject.toml bounds them."""

_READMES = {RUNTIME: "runtime/README.md", COMPILER: "README.md"}


def modules() -> dict[str, Path]:
    """Every module that is installed, by name: `pitc.passes.axes` is `passes/axes.py`."""
    found = {}
    for package, folder in (ROOMS | ROOMS_OF_RUNTIME).items():
        for path in _files(folder):
            if path.suffix == ".py" and not _name(path).startswith(NOT_SHIPPED):
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                name = ".".join((package, *parts)).removesuffix(".__init__")
                found[name] = path
    return found


def _name(path: Path) -> str:
    """A file's name in the checkout."""
    return path.relative_to(ROOT).as_posix()


def _files(folder: str) -> Iterator[Path]:
    """Files of a room, without following links and without what was built there."""
    for path in sorted((ROOT / folder).rglob("*")):
        name = _name(path)
        linked = folder == "pitc" and name.split("/")[1] in ("passes", "codegen", "runtime")
        if path.is_file() and path.suffix != ".pyc" and not linked:
            yield path


def imported(path: Path) -> set[str]:
    """What a file imports when it runs, at any place in it, by full name: also `module.name`."""
    found: set[str] = set()
    pending: list[ast.AST] = [ast.parse(path.read_text("utf-8"))]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        pending += ast.iter_child_nodes(node)
    return found


def reached(entrances: Iterable[str]) -> dict[str, Path]:
    """Modules that run when any of these is imported or called, by name: imports are followed."""
    known, found = modules(), {}
    pending = list(entrances)
    while pending:
        name = pending.pop()
        if name in known and name not in found:
            found[name] = known[name]
            parents = [name.rsplit(".", i)[0] for i in range(1, name.count(".") + 1)]
            pending += [*imported(known[name]), *parents]
    return found


def runtime_modules() -> dict[str, Path]:
    """The modules of `pitc-runtime`."""
    return reached([*ENTRANCES, *(name for name in modules() if name.startswith("pitc.runtime"))])


def contents(distribution: str) -> dict[str, Path]:
    """What a wheel holds beside the plug-in library: name in the wheel, and the source file."""
    run_time = {*runtime_modules().values(), ROOT / "pitc" / "py.typed"}
    shipped = {*modules().values(), ROOT / "pitc" / "py.typed"}
    found = {}
    for package, folder in (ROOMS | ROOMS_OF_RUNTIME).items():
        for path in _files(folder):
            is_data = folder != "runtime" and path.suffix != ".py"
            if (path in shipped or is_data) and (path in run_time) == (distribution == RUNTIME):
                place = path.relative_to(ROOT / folder).as_posix()
                found[f"{package.replace('.', '/')}/{place}"] = path
    return found


def sources(distribution: str) -> Iterator[Path]:
    """The files of a source archive, beside its `pyproject.toml` and README."""
    yield from contents(distribution).values()
    yield ROOT / "LICENSE"
    if distribution == RUNTIME:
        yield from (path for path in _files("runtime") if _name(path).startswith(CPP))
        yield from (path for name, path in reached(BUILDERS).items() if name in _headers())


def _headers() -> set[str]:
    """Modules that only building the library needs."""
    return set(reached(BUILDERS)) - set(runtime_modules())


def version() -> str:
    """The version of both distributions: pitc's, and the label."""
    scope: dict[str, str] = {}
    exec((ROOT / "pitc" / "version.py").read_text("utf-8"), scope)
    return scope["__version__"] + LABEL


def project(distribution: str) -> dict[str, Any]:
    """The project file of a distribution, made from the one of the checkout."""
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    told = {key: value for key, value in whole["project"].items() if key != "dynamic"}
    told |= {"name": distribution, "version": version(), "readme": "README.md"}
    make = _runtime_project if distribution == RUNTIME else _compiler_project
    return make(told, whole["build-system"], whole["tool"]["scikit-build"])


def _runtime_project(
    told: dict[str, Any], system: dict[str, Any], build: dict[str, Any]
) -> dict[str, Any]:
    del told["scripts"], told["optional-dependencies"]
    told["description"] = "Runs models that pitc has compiled"
    told["dependencies"] = [n for n in told["dependencies"] if n.startswith(DEPENDENCIES)]
    known = modules()
    headers = [_name(known[name]) for name in sorted(_headers())]
    wheel = {
        "py-api": build["wheel"]["py-api"],
        "packages": {"pitc": "pitc", "pitc/runtime": "runtime"},
        "exclude": [*build["wheel"]["exclude"], *headers],
    }
    kept = {key: build[key] for key in ("minimum-version", "build-dir", "cmake")}
    tool = {"scikit-build": kept | {"wheel": wheel}}
    return {"build-system": system, "project": told, "tool": tool}


def _compiler_project(
    told: dict[str, Any], system: dict[str, Any], build: dict[str, Any]
) -> dict[str, Any]:
    told["dependencies"] = [*told["dependencies"], f"{RUNTIME}=={version()}"]
    extras = told["optional-dependencies"]
    told["optional-dependencies"] = {
        name: needs for name, needs in extras.items() if name not in ("dev", "release")
    }
    requires = [need for need in system["requires"] if need.startswith("scikit-build-core")]
    packages = {name.replace(".", "/"): folder for name, folder in ROOMS.items()}
    # Beside the other half wherever that may lie, though no file here is of a platform.
    wheel = {"cmake": False, "platlib": True, "packages": packages}
    tags = {"if": {"python-version": ">=3"}, "wheel": {"tags": ["py3-none-any"]}}
    kept = {"minimum-version": build["minimum-version"], "wheel": wheel, "overrides": [tags]}
    tool = {"scikit-build": kept}
    return {"build-system": system | {"requires": requires}, "project": told, "tool": tool}


def write_tree(distribution: str, folder: Path) -> Path:
    """Write what the source archive of a distribution is made of.

    Args:
        distribution: `pitc-runtime` or `pitc`.
        folder: The folder to make.

    Returns:
        The folder.
    """
    for path in sources(distribution):
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    shutil.copyfile(ROOT / _READMES[distribution], folder / "README.md")
    (folder / "pyproject.toml").write_text(tomli_w.dumps(project(distribution)), "utf-8")
    return folder

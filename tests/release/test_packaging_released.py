"""The wheels and archives of `make wheel`: what they hold, what they need, and that they work.

`make test` looks at the archives, at the compiler's wheel, and at the runtime's modules installed
without a wheel; to compile the plug-in library for its wheel takes two minutes.
"""

import email
import email.message
import json
import shutil
import tarfile
import tomllib
import zipfile
from pathlib import Path

import numpy as np
import pytest

import pitc
from pitc.version import __version__
from tests.release.test_api_readme import blocks
from tests.released import Bare, one, released, requirements
from tools import parts, wheel
from tools.parts import COMPILER, ROOT, RUNTIME

WHEELS = {RUNTIME: "pitc_runtime-*.whl", COMPILER: "pitc-*.whl"}
ARCHIVES = {RUNTIME: "pitc_runtime-*.tar.gz", COMPILER: "pitc-*.tar.gz"}
LIBRARY = "pitc/runtime/libpitc_ort_ep.so"


built_wheels = pytest.mark.thorough


@pytest.fixture(scope="module")
def dist() -> Path:
    return released()


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both source archives, and the wheel that needs no C++ compiler."""
    folder = tmp_path_factory.mktemp("archives")
    made = {name: wheel.build_sdist(name, folder) for name in WHEELS}
    wheel.build_wheel(made[COMPILER], folder)
    return folder


def files(path: Path) -> set[str]:
    names = zipfile.ZipFile(path).namelist()
    assert len(names) == len(set(names))
    return {name for name in names if ".dist-info/" not in name}


def told(path: Path, name: str) -> email.message.Message:
    with zipfile.ZipFile(path) as archive:
        (member,) = (n for n in archive.namelist() if n.endswith(f".dist-info/{name}"))
        return email.message_from_bytes(archive.read(member))


@built_wheels
def test_no_file_is_in_both_wheels_and_none_is_missing(dist: Path) -> None:
    runtime, compiler = (files(one(dist, pattern)) for pattern in WHEELS.values())
    expect_all_files_once(runtime, compiler)


def test_no_file_is_in_both_distributions_and_none_is_missing(archives: Path) -> None:
    compiler = files(one(archives, WHEELS[COMPILER]))
    assert compiler == set(parts.contents(COMPILER))
    expect_all_files_once({*parts.contents(RUNTIME), LIBRARY}, compiler)


def expect_all_files_once(runtime: set[str], compiler: set[str]) -> None:
    """Each file of the checkout that is shipped is in one of the wheels."""
    assert not runtime & compiler
    rooms = parts.ROOMS | parts.ROOMS_OF_RUNTIME
    places = {folder: package.replace(".", "/") for package, folder in rooms.items()}
    python = {
        f"{place}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, place in places.items()
        for path in (ROOT / folder).rglob("*.py")
        if not str(path.relative_to(ROOT)).startswith(parts.NOT_SHIPPED)
        if not (folder == "pitc" and path.relative_to(ROOT / folder).parts[0] in places)
    }
    assert {n for n in runtime | compiler if n.endswith(".py")} == python
    assert {n for n in runtime if not n.endswith(".py")} == {"pitc/py.typed", LIBRARY}
    assert {n for n in compiler if not n.endswith(".py")} == {
        *(f"pitc/codegen/build/{name}.c" for name in ("kernel_shim", "cuda_tables")),
        *(f"pitc/tiles/shipped/{name}.json" for name in ("epyc", "xeon", "zen3")),
        *(f"pitc/report/templates/{name}" for name in TEMPLATES),
    }


TEMPLATES = ("report.html", "parts.html", "style.css", "script.js")


def test_the_runtime_reaches_no_compiler() -> None:
    """What a run imports, at any place in it: no pass, no codegen, and two packages of others."""
    found = parts.runtime_modules()
    compilers = ("pitc.passes", "pitc.codegen", "pitc.api", "pitc.cli", "pitc.importer")
    assert not [name for name in found if name.startswith(compilers)]
    packages = {name.partition(".")[0] for path in found.values() for name in parts.imported(path)}
    others = {
        "numpy",
        "onnxruntime",
        "ml_dtypes",
    }  # the last one where arrays of bfloat16 are asked
    assert packages & {"numpy", "onnx", "onnxruntime", "tvm", "pydantic", "ml_dtypes"} == others


def test_imports_are_followed(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import a\nelse:\n    import b\n"
        "def f():\n    from pitc.c import d\n"
    )
    assert parts.imported(path) == {"typing", "typing.TYPE_CHECKING", "b", "pitc.c", "pitc.c.d"}


def test_what_the_wheel_of_the_compiler_says_of_itself(archives: Path) -> None:
    expect_it_says(archives, {COMPILER: "py3-none-any"})


@built_wheels
def test_what_the_wheels_say_of_themselves(dist: Path) -> None:
    platform = wheel.PLATFORMS["x86_64"].tag
    expect_it_says(dist, {RUNTIME: f"py3-none-{platform}", COMPILER: "py3-none-any"})


def expect_it_says(dist: Path, tags: dict[str, str]) -> None:
    """Name, version, licence, tags and needs of those wheels."""
    for name in tags:
        path = one(dist, WHEELS[name])
        assert path.name.endswith(f"-{__version__}{parts.LABEL}-{tags[name]}.whl")
        about = told(path, "WHEEL")
        assert about.get_all("Tag") == [tags[name]]
        assert about["Root-Is-Purelib"] == "false"  # both in one folder, wherever that is
        metadata = told(path, "METADATA")
        assert (metadata["Name"], metadata["Version"]) == (name, __version__ + parts.LABEL)
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata["Author"] == "The pitc authors"
        with zipfile.ZipFile(path) as archive:
            (licence,) = (n for n in archive.namelist() if n.endswith("/LICENSE"))
            assert archive.read(licence) == (ROOT / "LICENSE").read_bytes()
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    needs = {
        name: told(one(dist, WHEELS[name]), "METADATA").get_all("Requires-Dist") for name in tags
    }
    runs = [n for n in whole if n.startswith(("numpy", "onnxruntime"))]
    assert needs.get(RUNTIME, runs) == runs
    compilers = [need for need in needs[COMPILER] or () if "extra ==" not in need]
    assert compilers == [*whole, f"pitc-runtime=={__version__}{parts.LABEL}"]


@built_wheels
def test_the_machine_code_is_as_old_as_the_tag_says(dist: Path, tmp_path: Path) -> None:
    path = one(dist, WHEELS[RUNTIME])
    assert path.stat().st_size < wheel.MOST_RUNTIME_BYTES
    wheel.check(path)
    # a wrong twin: the same wheel under a tag that promises more than its machine code keeps
    promise = path.name.replace("manylinux_2_17_", "manylinux_2_5_")
    older = Path(shutil.copy(path, tmp_path / promise))
    with pytest.raises(SystemExit, match="manylinux_2_5_x86_64"):
        wheel.check(older)


def test_two_builds_give_the_same_bytes(archives: Path, tmp_path: Path) -> None:
    """Of what is quick to build; `make wheel` compares all."""
    for name in WHEELS:
        again = wheel.build_sdist(name, tmp_path)
        assert again.read_bytes() == (archives / again.name).read_bytes()
    again = wheel.build_wheel(one(tmp_path, ARCHIVES[COMPILER]), tmp_path)
    assert again.read_bytes() == (archives / again.name).read_bytes()


def test_the_archives_hold_what_is_built_and_nothing_else(archives: Path) -> None:
    for name, pattern in ARCHIVES.items():
        with tarfile.open(one(archives, pattern)) as archive:
            names = [n.partition("/")[2] for n in archive.getnames()]
        assert len(names) == len(set(names))
        texts = {"README.md", "LICENSE", "PKG-INFO", "pyproject.toml"}
        sources = {path.relative_to(ROOT).as_posix() for path in parts.sources(name)}
        assert set(names) == texts | sources


LOADED = """
import json, sys
import numpy as np
import pitc
outputs = pitc.load(sys.argv[1]).run(dict(np.load(sys.argv[2])))
np.savez(sys.argv[3], **outputs)
session = pitc.load(sys.argv[1]).session()
said = ""
try:
    pitc.compile("model.onnx")
except pitc.MachineError as error:
    said = str(error)
lacking = []
for name in ("onnx", "onnx_ir", "tvm", "pydantic", "networkx", "typer", "rich", "passes"):
    try:
        __import__(name)
    except ModuleNotFoundError:
        lacking.append(name)
print(json.dumps({
    "library": str(pitc.get_library_path()), "providers": session.get_providers(),
    "said": said, "lacking": lacking, "registered": pitc.register(),
}))
"""


@pytest.fixture(scope="module")
def feeds(bert_artifact: Path) -> Path:
    ids = np.array([[11, 12, 13, 14], [21, 22, 0, 0]], np.int64)
    mask = (ids != 0).astype(np.int64)
    path = bert_artifact.with_name("feeds.npz")
    np.savez(path, input_ids=ids, attention_mask=mask, token_type_ids=np.zeros_like(ids))
    return path


def expect_the_same_answers(bare: Bare, artifact: Path, feeds: Path) -> dict[str, object]:
    """Load and run an artifact there and here; what the program there said of itself."""
    answers = bare.folder / "answers.npz"
    said = dict(json.loads(bare.run("-c", LOADED, artifact, feeds, answers).splitlines()[-1]))
    here = pitc.load(artifact).run(dict(np.load(feeds)))
    there = np.load(answers)
    assert set(there) == set(here)
    for name, array in here.items():
        # another compiler's detectors, the same kernels: the same bits
        np.testing.assert_array_equal(there[name], array)
    assert said["library"] == str((bare.site / LIBRARY).resolve())
    assert said["providers"] == ["PitExecutionProvider", "CPUExecutionProvider"]
    assert said["registered"] == "PitExecutionProvider"
    return said


@built_wheels
def test_the_runtime_alone_runs_an_artifact(
    dist: Path, tmp_path: Path, bert_artifact: Path, feeds: Path
) -> None:
    bare = Bare(tmp_path / "runtime", requirements(RUNTIME))
    bare.pip("install", "--no-index", one(dist, WHEELS[RUNTIME]))
    expect_a_runtime(bare, bert_artifact, feeds)


def test_the_modules_of_the_runtime_alone_run_an_artifact(
    tmp_path: Path, bert_artifact: Path, feeds: Path
) -> None:
    """With the library of this checkout: the wheel's modules where it puts them."""
    bare = Bare(tmp_path / "runtime", requirements(RUNTIME))
    for name, path in (parts.contents(RUNTIME) | {LIBRARY: pitc.get_library_path()}).items():
        (bare.site / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, bare.site / name)
    expect_a_runtime(bare, bert_artifact, feeds)


def expect_a_runtime(bare: Bare, artifact: Path, feeds: Path) -> None:
    """It runs an artifact, and says what it lacks."""
    said = expect_the_same_answers(bare, artifact, feeds)
    compilers = ("onnx", "onnx_ir", "tvm", "pydantic", "networkx", "typer", "rich", "passes")
    assert said["lacking"] == list(compilers)
    text = "pitc.compile needs the compiler, but only pitc-runtime is installed"
    assert said["said"] == f"{text} (install the wheel of pitc, too)"


@built_wheels
def test_both_together_run_the_quickstart_and_part_in_peace(
    dist: Path, tmp_path: Path, bert_path: Path, bert_artifact: Path, feeds: Path
) -> None:
    bare = Bare(tmp_path / "both", requirements(COMPILER))
    bare.pip("install", "--no-index", *dist.glob("*.whl"))  # README's words
    shutil.copyfile(bert_path, bare.folder / "model.onnx")
    code, *_ = blocks(ROOT / "README.md", "python")
    bare.run("-c", f"{code}\nassert outputs and not next(iter(outputs.values()))[1, 2:].any()")
    for line in (
        "compile model.onnx -o again.pitc --padding attention_mask",
        "verify again.pitc",
        "inspect again.pitc",
        "version",
    ):
        bare.script("pitc", *line.split())
    first, second = (bare.folder / f"{name}.pitc" / "model.onnx" for name in ("model", "again"))
    assert first.read_bytes() == second.read_bytes()
    # the compiler goes; what runs stays
    bare.pip("uninstall", "--yes", "pitc")
    said = expect_the_same_answers(bare, bert_artifact, feeds)
    assert "install the wheel of pitc" in str(said["said"])

"""The same compilation again is a copy, and only of what is the same byte for byte."""

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pitc
from pitc import api, ledger
from pitc.artifact.manifest import FALLBACK, MANIFEST, WEIGHTS, report_to_dict
from pitc.codegen.build.cache import Cache
from pitc.errors import MachineError, ModelError, SuggestionWarning, UsageError
from pitc.ir.tiles import TileTable
from pitc.ledger import PACKAGES, Compilation, Ledger
from pitc.options import CompileOptions

Run = Callable[..., tuple[int, str, str]]
MASK = "attention_mask"
CACHE = ledger.ledger_cache


@pytest.fixture(autouse=True)
def _empty_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are those of all tests."""
    monkeypatch.setattr(ledger, "OFF", False)
    monkeypatch.setattr(ledger, "ledger_cache", lambda: Cache(tmp_path / "cache"))


@pytest.fixture(name="compilations")
def _compilations(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows with each compilation that is not a copy."""
    done: list[Any] = []
    whole = api._compile

    def counted(*arguments: Any, **options: Any) -> Any:
        done.append(arguments)
        return whole(*arguments, **options)

    monkeypatch.setattr(api, "_compile", counted)
    return done


@pytest.fixture(name="model")
def _model(bert_path: Path, tmp_path: Path) -> Path:
    """A small encoder with a file of its own."""
    return Path(shutil.copy(bert_path, tmp_path / "model.onnx"))


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def with_a_byte_changed(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_the_same_again_is_a_copy(model: Path, tmp_path: Path, compilations: list[Any]) -> None:
    first = pitc.compile(model, padding=MASK, output=tmp_path / "a.pitc")
    again = pitc.compile(str(model), padding=MASK, output=tmp_path / "b.pitc")
    unsaved = pitc.compile(model, padding=MASK)
    (tmp_path / "more").mkdir()
    moved = pitc.compile(Path(shutil.copy(model, tmp_path / "more")), padding=MASK)
    assert len(compilations) == 1
    for each in (again, unsaved, moved):
        assert content(each.path) == content(first.path)
        assert each.report.copied_from == str(tmp_path / "a.pitc")
        assert report_to_dict(each.report) == report_to_dict(first.report)
        assert each.summary() == first.summary() and list(each.report.stages_ms) == ["write"]
    assert first.report.copied_from == "" and "import" in first.report.stages_ms
    feeds = {"input_ids": np.ones((2, 5), np.int64), MASK: np.ones((2, 5), np.int64)}
    feeds["token_type_ids"] = np.zeros((2, 5), np.int64)
    for name, value in first.run(feeds).items():
        assert np.array_equal(unsaved.run(feeds)[name], value)


def changed(value: Compilation) -> Iterator[Compilation]:
    """The compilation with another value in one field, for each field."""
    for field in dataclasses.fields(value):
        old = getattr(value, field.name)
        other = not old if isinstance(old, bool) else f"{old}x"
        yield replace(value, **{field.name: other})


def test_every_field_is_in_a_key() -> None:
    one = Compilation("m.onnx", "sample", "cpu", None, True, "prices", "", "builders")
    keys = {each.key for each in (one, *changed(one), replace(one, padding=""))}
    assert len(keys) == len(dataclasses.fields(one)) + 2


def test_other_options_are_another_compilation(
    model: Path, tmp_path: Path, compilations: list[Any]
) -> None:
    table = api.tile_table()
    costs = dict(table.costs["v3"])
    costs["dense"] = replace(costs["dense"], prices=tuple(p + 1 for p in costs["dense"].prices))
    dear = TileTable({"v3": costs, "v4": table.costs["v4"]})
    ways: list[dict[str, Any]] = [
        {},
        {"padding": MASK},
        {"padding": MASK, "target": "cpu:v3"},
        {"padding": MASK, "target": "cpu"},
        {"padding": MASK, "suggest": False},
        {"padding": MASK, "tiles": dear},
    ]
    for k, options in enumerate(ways):
        pitc.compile(model, output=tmp_path / f"{k}.pitc", **options)
    assert len(compilations) == len(ways)
    renamed = Path(shutil.copy(model, tmp_path / "renamed.onnx"))
    assert pitc.compile(renamed, padding=MASK).manifest.source.name == "renamed.onnx"
    assert len(compilations) == len(ways) + 1
    for k, options in enumerate(ways):
        assert pitc.compile(model, **options).report.copied_from == str(tmp_path / f"{k}.pitc")


def test_what_asks_for_more_than_the_artifact_is_compiled(
    mlp_path: Path, tmp_path: Path, compilations: list[Any]
) -> None:
    model = mlp_path  # without a cache, kernels would be compiled
    pitc.compile(model, output=tmp_path / "a.pitc")
    pitc.compile(model, dump_ir=tmp_path / "stages")
    pitc.compile(model, check=True)
    pitc.compile(model, cache=False)
    pitc.compile(model.read_bytes())
    assert len(compilations) == 5 and len(list(tmp_path.glob("stages/*.onnx"))) == 4
    pitc.compile(model)
    assert len(compilations) == 5


@pytest.mark.parametrize("place", [0.0, 0.31, 0.77, 1.0])
def test_a_model_that_was_changed_is_compiled(
    model: Path, tmp_path: Path, compilations: list[Any], place: float, monkeypatch: Any
) -> None:
    """By a byte of a weight, whether the sample holds it or not."""
    weights = onnx.load(model).graph.initializer
    held = max(weights, key=lambda w: len(w.raw_data)).raw_data
    start = model.read_bytes().index(held)
    pitc.compile(model, padding=MASK, output=tmp_path / "a.pitc")
    with_a_byte_changed(model, start + int(place * (len(held) - 1)))
    for samples in (ledger.SAMPLES, 1):
        monkeypatch.setattr(ledger, "SAMPLES", samples)
        made = pitc.compile(model, padding=MASK)
        assert made.report.copied_from == "" and len(compilations) == 3 - (samples > 1)
    monkeypatch.setattr(ledger, "OFF", True)
    pitc.compile(model, padding=MASK, output=tmp_path / "cold.pitc")
    assert len(compilations) == 4 and content(made.path) == content(tmp_path / "cold.pitc")


def test_an_equal_sample_proves_nothing(
    model: Path, tmp_path: Path, compilations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_sample", lambda _: "the same")
    pitc.compile(model, output=tmp_path / "a.pitc")
    with_a_byte_changed(
        model, model.read_bytes().index(onnx.load(model).graph.initializer[0].raw_data)
    )
    made = pitc.compile(model, output=tmp_path / "b.pitc")
    assert len(compilations) == 2 and made.report.copied_from == ""
    assert content(made.path)[WEIGHTS] != content(tmp_path / "a.pitc")[WEIGHTS]
    assert not list(tmp_path.glob(".*.tmp"))


def _flip(folder: Path) -> None:
    with_a_byte_changed(folder / WEIGHTS, 5000)


def _cut(folder: Path) -> None:
    (folder / FALLBACK).write_bytes((folder / FALLBACK).read_bytes()[:-1])


def _sign(folder: Path) -> None:
    (folder / MANIFEST).write_text((folder / MANIFEST).read_text() + " ")


def _fifo(folder: Path, name: str = WEIGHTS) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)


@pytest.mark.parametrize(
    "damage",
    [
        _flip,
        _cut,
        _sign,
        _fifo,
        lambda folder: _fifo(folder, MANIFEST),
        lambda folder: (folder / FALLBACK).unlink(),
        lambda folder: folder.rename(folder.with_name("moved.pitc")),
        shutil.rmtree,
    ],
)
def test_an_artifact_that_was_changed_is_made_again(
    model: Path, tmp_path: Path, compilations: list[Any], damage: Callable[[Path], None]
) -> None:
    whole = content(pitc.compile(model, padding=MASK, output=tmp_path / "a.pitc").path)
    damage(tmp_path / "a.pitc")
    made = pitc.compile(model, padding=MASK, output=tmp_path / "b.pitc")
    assert len(compilations) == 2 and content(made.path) == whole
    assert pitc.compile(model, padding=MASK).report.copied_from == str(tmp_path / "b.pitc")


def test_an_artifact_is_replaced_by_its_copy(
    model: Path, tmp_path: Path, compilations: list[Any]
) -> None:
    folder = tmp_path / "a.pitc"
    before = content(pitc.compile(model, output=folder).path)
    with pytest.raises(UsageError, match="exists"):
        pitc.compile(model, output=folder)
    assert pitc.compile(model, output=folder, force=True).report.copied_from == str(folder)
    assert content(folder) == before and len(compilations) == 1


def test_no_temporary_artifact_is_entered(model: Path, compilations: list[Any]) -> None:
    kept = pitc.compile(model)
    assert pitc.compile(model).report.copied_from == "" and len(compilations) == 2 and kept


def test_damaged_entries_are_no_entries(
    model: Path, tmp_path: Path, compilations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pitc.compile(model, output=tmp_path / "a.pitc")
    made = Ledger(model, CompileOptions(suggest=True), lambda: "")
    assert made.find() is None  # of other prices
    for text in (b"", b"[]", b"{}", b'{"folder": 1, "manifest": "", "outside": []}', b"\xff"):
        monkeypatch.setattr(Cache, "get", lambda *_, text=text: text)
        assert Ledger(model, CompileOptions(), lambda: "").find() is None
    for content in (b"{}", b"\xff", b"[1"):  # what an entry says of a manifest that is none
        (tmp_path / "a.pitc" / MANIFEST).write_bytes(content)
        digest = hashlib.sha256(content).hexdigest()
        entry = {"folder": str(tmp_path / "a.pitc"), "manifest": digest, "outside": []}
        monkeypatch.setattr(Cache, "get", lambda *_, entry=entry: json.dumps(entry).encode())
        found = Ledger(model, CompileOptions(), lambda: "")
        said = found.find()
        assert said is not None and not found.copy(said, tmp_path / "b.pitc")


# Weights in files beside the model


@pytest.fixture(name="outside")
def _outside(model: Path) -> Path:
    """The encoder with its weights in `w.bin`."""
    onnx.save(
        onnx.load(model), model, save_as_external_data=True, location="w.bin", size_threshold=64
    )
    return model


def test_external_weights_are_a_part_of_the_model(
    outside: Path, tmp_path: Path, compilations: list[Any]
) -> None:
    first = pitc.compile(outside, padding=MASK, output=tmp_path / "a.pitc")
    again = pitc.compile(outside, padding=MASK, output=tmp_path / "b.pitc")
    assert len(compilations) == 1 and content(again.path) == content(first.path)
    with_a_byte_changed(outside.with_name("w.bin"), 4097)
    assert pitc.compile(outside, padding=MASK).report.copied_from == ""


def test_external_weights_that_are_refused_are_refused_again(outside: Path, tmp_path: Path) -> None:
    weights = outside.with_name("w.bin")
    pitc.compile(outside, output=tmp_path / "a.pitc")
    os.link(weights, tmp_path / "link.bin")
    with pytest.raises(ModelError, match="several hard links"):
        pitc.compile(outside, output=tmp_path / "b.pitc")
    (tmp_path / "link.bin").unlink()
    weights.rename(tmp_path / "gone.bin")
    with pytest.raises(ModelError, match="is missing"):
        pitc.compile(outside, output=tmp_path / "b.pitc")
    assert not (tmp_path / "b.pitc").exists()


def test_no_copy_replaces_the_weights_of_its_model(tmp_path: Path, bert_path: Path) -> None:
    folder = tmp_path / "a.pitc"
    folder.mkdir()
    model = tmp_path / "model.onnx"
    place = f"a.pitc/{WEIGHTS}"
    onnx.save(onnx.load(bert_path), model, save_as_external_data=True, location=place)
    pitc.compile(model, output=tmp_path / "b.pitc")
    assert pitc.compile(model).report.copied_from
    with pytest.raises(UsageError, match="replace the model's weights"):
        pitc.compile(model, output=folder, force=True)
    assert pitc.compile(model).report.copied_from


# Errors


@pytest.mark.parametrize(("number", "fails"), [(errno.ENOSPC, True), (errno.EACCES, False)])
def test_a_full_disk_is_told_and_nothing_else(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fails: bool
) -> None:
    pitc.compile(model, output=tmp_path / "a.pitc")

    def broken(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(ledger.shutil, "copyfile", broken)
        if fails:
            with pytest.raises(MachineError, match="No space"):
                pitc.compile(model, output=tmp_path / "b.pitc")
        else:
            assert pitc.compile(model, output=tmp_path / "b.pitc").report.copied_from == ""
    assert (tmp_path / "b.pitc").exists() != fails
    assert not list(tmp_path.glob(".*.tmp"))


def test_bad_input_is_told_as_without_a_ledger(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    for name, text in {
        "no.onnx": "no such",
        "": "is a folder",
        "pipe.onnx": "device or pipe",
    }.items():
        with pytest.raises(ModelError, match=text):
            pitc.compile(tmp_path / name)
    with pytest.raises(ModelError, match="null"):
        pitc.compile("a\0b.onnx")


def test_what_would_help_is_said_again(model: Path, tmp_path: Path) -> None:
    for name in ("a.pitc", "b.pitc"):
        with pytest.warns(SuggestionWarning, match=MASK) as told:
            pitc.compile(model, output=tmp_path / name)
        assert told[0].filename == __file__


# What an artifact depends on

LOADED = """
import sys, pitc, pitc.ledger, tvm  # which nothing loads where all kernels are known
from importlib.metadata import packages_distributions
pitc.ledger.OFF = True
pitc.compile(sys.argv[1], "cpu:v3", "attention_mask")
modules = [m for n, m in sys.modules.items() if n.split(".")[0] == "pitc"]
print("FILES", *(m.__file__ for m in modules))
tops, packages = {name.split(".")[0] for name in sys.modules}, packages_distributions()
print("PACKAGES", *{package for top in tops for package in packages.get(top, ())})
"""
MAKES_NOTHING = {
    "annotated-types",
    "packaging",
    "pitc",
    "setuptools",
    "typing-extensions",
    "typing-inspection",
}
"""Packages that are loaded, and of which no byte of an artifact depends."""


def test_builders_are_all_that_makes_an_artifact(bert_path: Path) -> None:
    command = [sys.executable, "-c", LOADED, str(bert_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    known = {os.path.realpath(path) for _, path in ledger._own_files()}
    runtime = os.path.realpath(Path(pitc.__file__).parent / "runtime")
    loaded = {os.path.realpath(path) for path in lines["FILES"].split()}
    assert len(loaded) > 100
    assert not {p for p in loaded - known if not p.startswith(runtime)}
    suffixes = {Path(path).suffix for path in known}
    assert {".py", ".c", ".json"} <= suffixes
    names = {name.lower().replace("_", "-") for name in lines["PACKAGES"].split()}
    assert names - {"pytest"} <= MAKES_NOTHING | {n for names in PACKAGES for n in names}


def test_builders_are_known_by_their_content(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    digest = ledger._builders.__wrapped__
    before, files = digest(), ledger._own_files()
    assert before == digest() and len(before) == 64
    other = tmp_path / "other.py"
    for k in (0, len(files) // 2, len(files) - 1):
        name, path = files[k]
        other.write_bytes(path.read_bytes() + b"\n")
        swapped = [*files[:k], (name, other), *files[k + 1 :]]
        monkeypatch.setattr(ledger, "_own_files", lambda swapped=swapped: swapped)
        assert digest() != before
    monkeypatch.setattr(ledger, "_own_files", lambda: files)
    listed = ledger._listed_files

    def listing(package: str, text: str | None) -> None:
        by_name = lambda name: text if name == package else listed(name)  # noqa: E731
        monkeypatch.setattr(ledger, "_listed_files", by_name)

    for package in (names[0] for names in PACKAGES):
        listing(package, f"{listed(package)} ")
        assert digest() not in (before, "")
        listing(package, None)
        assert digest() == ""


def test_no_compilation_without_known_builders_is_entered(
    model: Path, tmp_path: Path, compilations: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "_builders", lambda: "")
    pitc.compile(model, output=tmp_path / "a.pitc")
    pitc.compile(model)
    assert len(compilations) == 2


# The command line


def test_commands(
    run: Run, mlp_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mlp_path
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PITC_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(ledger, "ledger_cache", CACHE)
    assert run("compile", model, "-o", "a.pitc")[0] == 0
    code, out, err = run("compile", model, "-o", "b.pitc")
    assert code == 0 and f"copied from {tmp_path / 'a.pitc'}" in " ".join(out.split())
    assert err.startswith("[7/7] write ... ") and err.count("\n") == 1
    code, out, _ = run("compile", model, "-o", "c.pitc", "--json", "--report", "r.html")
    assert json.loads(out)["report"]["copied_from"] == str(tmp_path / "a.pitc")
    assert "a copy of that one" in (tmp_path / "r.html").read_text("utf-8")
    code, out, err = run("compile", model, "-o", "d.pitc", "--no-cache")
    assert code == 0 and "copied from" not in out and "[1/7] import" in err
    assert content(tmp_path / "d.pitc") == content(tmp_path / "b.pitc")
    body = json.loads(run("cache", "info", "--json")[1])["artifacts"]
    assert body["folder"] == str(tmp_path / "kept" / "artifacts") and body["entries"] == 1
    assert f"{body['folder']}: deleted 1 known artifact, " in run("cache", "clear")[1]
    assert "copied from" not in run("compile", model, "-o", "e.pitc")[1]


def test_many_at_once(model: Path, tmp_path: Path) -> None:
    pitc.compile(model, padding=MASK, output=tmp_path / "a.pitc")
    with ThreadPoolExecutor(8) as pool:
        made = list(
            pool.map(
                lambda k: pitc.compile(
                    model, padding=MASK, output=tmp_path / f"{k % 4}.pitc", force=True
                ),
                range(16),
            )
        )
    assert all(content(each.path) == content(tmp_path / "a.pitc") for each in made)


def test_a_copy_loads_no_compiler(
    mlp_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mlp_path
    monkeypatch.setenv("PITC_CACHE_DIR", str(tmp_path / "kept"))
    monkeypatch.setattr(ledger, "ledger_cache", CACHE)
    pitc.compile(model, output=tmp_path / "a.pitc")
    script = (
        f"import sys, pitc; pitc.compile({str(model)!r}, output={str(tmp_path / 'b.pitc')!r}); "
        "print(*{n.split('.')[0] for n in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], check=True, capture_output=True, text=True
    )
    assert not {"onnx", "onnx_ir", "onnxruntime", "tvm", "sympy"} & set(done.stdout.split())

"""Compiling for 64-bit Arm, and a sample of its kernels on an emulated one; all: tests.aarch64."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import pitc
from models.bert import BertConfig, bert
from pitc.artifact.check import Verdict, check_artifact
from pitc.codegen import reference
from pitc.codegen.build.library import build_kernels
from pitc.ir.kernel import KernelRequest
from pitc.ir.target import CPU_LEVELS, NEON, cpu_level_of
from pitc.options import parse_target
from tests.aarch64 import session
from tests.aarch64.cases import sparse_product
from tests.aarch64.machine import EmulatedLibrary, lacking
from tests.aarch64.python import Machine
from tests.runtime_support import ROOT

needs_machine = pytest.mark.skipif(bool(lacking()), reason=lacking() or "-")


def test_the_target_goes_alone() -> None:
    targets = parse_target("cpu:neon")
    assert (targets.kinds, targets.levels, targets.archs) == (("cpu",), ("neon",), ())
    assert "neon" not in parse_target("cpu").levels
    assert cpu_level_of("neon") is NEON and NEON not in CPU_LEVELS
    for text in ("cpu:neon,cuda", "cuda,cpu:neon", "cpu:neon,cpu:v3"):
        with pytest.raises(pitc.UsageError, match="; or cpu:neon"):
            parse_target(text)


@needs_machine
def test_an_artifact_for_arm_is_made_here(tmp_path: Path) -> None:
    model = bert(BertConfig(layers=1, head="none"), np.random.default_rng(0))
    folder = tmp_path / "arm.pitc"
    made = pitc.compile(model, "cpu:neon", "attention_mask", output=folder)
    kernels = made.manifest.kernels
    assert kernels is not None
    assert (kernels.machine, kernels.levels) == ("aarch64", ["neon"])
    assert (folder / "kernels.so").read_bytes()[18:20] == b"\xb7\x00"  # ELF's number of aarch64
    there = check_artifact(folder, level="neon")
    assert (there.verdict, there.graph) == (Verdict.SUPPORTED, "model.onnx")
    # a machine with other kernels runs the ordinary graph, and the other way round
    for level in ("v4", "v3"):
        here = check_artifact(folder, level=level)
        assert (here.verdict, here.graph) == (Verdict.RECOMPILE, "fallback.onnx")
        assert "neon" not in here.mend
    other = pitc.compile(model, "cpu:v3", "attention_mask", output=tmp_path / "x86.pitc")
    there = check_artifact(other.path, level="neon")
    assert (there.verdict, there.graph) == (Verdict.RECOMPILE, "fallback.onnx")
    assert there.mend.endswith("--target cpu:neon --padding attention_mask")


@needs_machine
def test_a_kernel_on_an_emulated_machine(tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    build_kernels([KernelRequest.of("pack", "int32")], ("neon",), path)
    library = EmulatedLibrary(path)
    x = np.arange(70, dtype=np.int32).reshape(10, 7)
    index, out = np.array([9, 0, 3], np.int32), np.zeros((3, 7), np.int32)
    library.call("pack_b4_neon", x, index, out)
    assert np.array_equal(out, reference.pack(x, index))
    library.close()


# ---- how whole models are compared: with the guest's program on this machine


def test_answers_of_whole_models_are_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(session, "TARGET", "cpu")
    machine = Machine("here", 1, [sys.executable], {"PYTHONPATH": str(ROOT)})
    model, folder = sparse_product("row"), tmp_path / "model"
    case = folder, model, session.prepare(folder, model), [machine]
    session.run([folder], machine)
    wrong, counts = session.check(*case)
    assert wrong == [] and counts["chose row"] == counts["runs"] - 4 == 12
    stored = folder / "here.npz"
    with np.load(stored) as file:
        answers = dict(file)
    answers["got/5/y"] = answers["got/5/y"] * np.float32(1.001)
    np.savez(stored, **answers)  # type: ignore[arg-type]
    (folder / "here.json").write_text(json.dumps({"3": "it failed"}))
    wrong, _ = session.check(*case)
    assert wrong[0] == "here: run 3: it failed"
    assert [text.split(":")[0] for text in wrong[1:]] == ["here", "here, not as here"]

"""Fixtures for all tests."""

import difflib
import gc
import os
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import settings
from onnx import TensorProto, helper, numpy_helper

import pitc
from models.bert import BertConfig, bert
from pitc.cli import main
from pitc.passes.audit import stages
from tests import idle_threads, kept_code

# In CI the same examples every time: what fails is the change. `make fuzz` draws new ones.
settings.register_profile("ci", derandomize=True)
if "CI" in os.environ and "PITC_FUZZ" not in os.environ:
    settings.load_profile("ci")

stages.ALWAYS = True  # whatever is lowered in a test is checked between its stages
os.fsync = lambda _: None  # no file of a test is there to outlive the machine

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden texts instead of comparing"
    )


def pytest_configure() -> None:
    """One cache of kernels for all tests and runs of a checkout, and no user's. No idle threads."""
    folder = os.environ.setdefault("PITC_CACHE_DIR", str(GOLDEN.parents[1] / "build/test-cache"))
    kept_code.install(Path(folder) / "code")
    idle_threads.install()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is made up to here stays to the end: the collector of cycles, which would walk over it
    during all tests, leaves it alone. It comes seldom: a compilation makes few cycles and many
    objects, and a fifth of the time of the tests of exports went by in walks over those.
    """
    gc.disable()
    found = yield
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)
    gc.enable()
    return found


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests counted: the sum over tests, and over processes, of `count` properties."""
    counts: dict[str, list[int]] = {}
    for report in (r for rs in terminalreporter.stats.values() for r in rs):
        for name, value in getattr(report, "user_properties", ()):
            if name == "count" and report.when == "call":
                what, passed, tried = value
                total = counts.setdefault(what, [0, 0])
                total[0] += passed
                total[1] += tried
    for what, (passed, tried) in counts.items():
        terminalreporter.write_line(f"{what}: {passed} of {tried}")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with `tests/golden/NAME`; a missing file fails, too."""
    update = bool(request.config.getoption("--update-golden"))

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
            return
        if not path.is_file():
            pytest.fail(f"{path} does not exist; make it with --update-golden and read it")
        expected = path.read_text("utf-8")
        if text != expected:
            pair = expected.splitlines(), text.splitlines()
            lines = difflib.unified_diff(*pair, str(path), "this run", lineterm="")
            pytest.fail("\n".join([*lines, "if this is wanted: pytest --update-golden"]))

    return check


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process: exit code, stdout, stderr."""
    monkeypatch.setenv("COLUMNS", "120")

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="session")
def bert_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT-like encoder with a padding mask: `model.onnx`, outputs of every token."""
    config = BertConfig(head="none", opset=17)
    path = tmp_path_factory.mktemp("bert") / "model.onnx"
    onnx.save(bert(config, np.random.default_rng(0)), path)
    return path


@pytest.fixture(scope="session")
def bert_artifact(bert_path: Path) -> Path:
    """That encoder, compiled with padding."""
    artifact = bert_path.with_name("model.pitc")
    pitc.compile(bert_path, padding="attention_mask", output=artifact)
    return artifact


@pytest.fixture
def mlp_path(tmp_path: Path) -> Path:
    """y = x @ w + b, in which nothing can be skipped."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.standard_normal((16, 32)), "b": rng.standard_normal(32)}
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["h"], "product"),
            helper.make_node("Add", ["h", "b"], ["y"], "bias"),
        ],
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 32])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in weights.items()],
    )
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "mlp.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), path)
    return path

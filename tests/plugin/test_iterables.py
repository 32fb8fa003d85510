"""Where the public API takes a sequence, it takes any iterable, and goes through it once."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import pitc
from pitc.backend import PitcBackend
from pitc.errors import UsageError

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


class Once:
    """Goes through its values once; whoever comes again gets an error."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values: Iterator[Any] | None = iter(values)

    def __iter__(self) -> Iterator[Any]:
        values, self._values = self._values, None
        assert values is not None
        return values


FORMS: dict[str, Callable[[list[Any]], Iterable[Any]]] = {
    "list": list,
    "tuple": tuple,
    "generator": lambda values: (v for v in values),
    "once": Once,
    "dict values": lambda values: dict(enumerate(values)).values(),
}


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Callable[[list[Any]], Iterable[Any]]:
    return FORMS[request.param]


@pytest.fixture(name="model", scope="module")
def _model() -> pitc.CompiledModel:
    return pitc.compile(parsed("(float[n, 4] x, float[n, 4] y) => (float[n, 4] s, float[n, 4] d)"))


def parsed(head: str, body: str = "s = Add (x, y) d = Sub (x, y)") -> onnx.ModelProto:
    text = f'<ir_version: 9, opset_import: ["": 17]> g {head} {{ {body} }}'
    return onnx.parser.parse_model(text)


def test_outputs(model: pitc.CompiledModel, form: Callable[[list[Any]], Iterable[Any]]) -> None:
    given = {"x": ROWS, "y": ROWS}
    assert list(model.run(given, form(["d"]))) == ["d"]
    assert list(model.run(given, form(["d", "s"]))) == ["d", "s"]
    assert list(model.run(given, form(["s"]), on_device=True)) == ["s"]
    assert list(model.run(given, form([]))) == ["s", "d"]  # as ONNX Runtime has it
    assert list(model.run(given, form([]), on_device=True)) == ["s", "d"]
    with pytest.raises(UsageError, match="output 'z' is not of the model"):
        model.run(given, form(["s", "z"]))


def test_inputs(model: pitc.CompiledModel, form: Callable[[list[Any]], Iterable[Any]]) -> None:
    np.testing.assert_array_equal(model.run(form([ROWS, ROWS]))["s"], 2 * ROWS)
    with pytest.raises(UsageError, match=r"expected inputs by name, or a list of 2 .* of 1$"):
        model.run(form([ROWS]))


@pytest.mark.parametrize("given", [ROWS, ROWS.tolist, "xy", b"xy", 1.0, None, np.float32(1)])
def test_one_value_is_no_list_of_inputs(model: pitc.CompiledModel, given: Any) -> None:
    """An array has as many rows as the model has inputs, and is none of them."""
    with pytest.raises(UsageError, match="expected inputs by name"):
        model.run(given)


@pytest.mark.parametrize("given", ["s", b"s", 1, np.array(["s"]), {"s": 1}])
def test_one_name_is_no_list_of_outputs(model: pitc.CompiledModel, given: Any) -> None:
    with pytest.raises(UsageError, match="expected names of outputs"):
        model.run({"x": ROWS, "y": ROWS}, given)


def test_providers(
    model: pitc.CompiledModel, form: Callable[[list[Any]], Iterable[Any]], tmp_path: Path
) -> None:
    assert model.session(providers=form(["cpu"])).get_inputs()
    folder = model.save(tmp_path / "m.pitc")
    loaded = pitc.load(folder, providers=form(["cpu"]))
    for _ in range(2):
        assert loaded.session().get_inputs()
    wrong: list[Any] = ["cpu", ["gpu"]]
    with pytest.raises(UsageError, match="are not some of"):
        model.session(providers=form(wrong))
    for one in ("cpu", b"cpu", 7):
        with pytest.raises(UsageError, match="expected kinds of machine"):
            model.session(providers=one)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="expected kinds of machine"):
            pitc.load(folder, providers=one)  # type: ignore[arg-type]


def test_elements_of_a_sequence(form: Callable[[list[Any]], Iterable[Any]]) -> None:
    proto = parsed("(seq(float[n]) x, int64 i) => (float[n] y)", "y = SequenceAt (x, i)")
    made, elements = pitc.compile(proto), [np.ones(2, np.float32), np.zeros(3, np.float32)]
    found = made.run({"x": form(elements), "i": np.array(1)})["y"]
    np.testing.assert_array_equal(found, elements[1])
    with pytest.raises(UsageError, match="expected a sequence for input 'x'"):
        made.run({"x": elements[0], "i": np.array(1)})


def test_backend(form: Callable[[list[Any]], Iterable[Any]]) -> None:
    head = "(float[n, 4] x, float[n, 4] y) => (float[n, 4] s)"
    prepared = PitcBackend.prepare(parsed(head, "s = Add (x, y)"))
    np.testing.assert_array_equal(prepared.run(form([ROWS, ROWS]))[0], 2 * ROWS)
    node = onnx.helper.make_node("Add", ["x", "y"], ["s"])
    infos = form([(np.dtype(np.float32), (2, 4))])
    got = PitcBackend.run_node(node, form([ROWS, ROWS]), outputs_info=infos)
    np.testing.assert_array_equal(got[0], 2 * ROWS)
    negated = PitcBackend.prepare(parsed("(float[n, 4] x) => (float[n, 4] y)", "y = Neg (x)"))
    np.testing.assert_array_equal(negated.run(ROWS)[0], -ROWS)


def test_torch(form: Callable[[list[Any]], Iterable[Any]]) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    module = torch.nn.Linear(4, 3).eval()
    made = pitc.from_torch(module, form([torch.from_numpy(ROWS)]))
    want = module(torch.from_numpy(ROWS)).detach().numpy()
    np.testing.assert_allclose(made.run([ROWS]).popitem()[1], want, rtol=1e-5, atol=1e-5)


def test_torch_takes_one_tensor_by_itself() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    made = pitc.from_torch(torch.nn.ReLU().eval(), torch.from_numpy(ROWS))
    np.testing.assert_array_equal(made.run([ROWS]).popitem()[1], ROWS)

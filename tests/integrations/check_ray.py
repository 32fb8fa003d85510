"""Ray Data and Ray Serve: two actors on this machine."""

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray
import ray_data
import ray_serve
from ray import serve

import pitc
from tests.integrations.conftest import TEXTS


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        logging_level="ERROR",
        log_to_driver=False,
        object_store_memory=100 << 20,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


def test_ray_data(folder: Path, want: np.ndarray) -> None:
    rows = ray_data.embed(str(folder), TEXTS * 8, actors=2, batch_size=10).take_all()
    rows.sort(key=lambda row: row["id"])
    got = np.stack([row["embedding"] for row in rows])
    np.testing.assert_allclose(got, np.tile(want, (8, 1)), rtol=0, atol=1e-6)


def test_compiled_models_travel_by_their_path(folder: Path) -> None:
    model = pitc.load(folder / "onnx", threads=1)
    assert len(pickle.dumps(model)) < 1000
    ids = np.array([[101, 2000, 102]])
    feeds = [ids, np.ones_like(ids), np.zeros_like(ids)]

    def hidden(model: pitc.CompiledModel, ids: np.ndarray) -> np.ndarray:
        assert not ids.flags.writeable  # Ray lends its own memory
        return model.run([ids, *feeds[1:]])["last_hidden_state"]

    got = ray.get(ray.remote(hidden).remote(model, ids))
    np.testing.assert_array_equal(got, model.run(feeds)["last_hidden_state"])


def test_ray_serve(folder: Path, want: np.ndarray) -> None:
    serve.start(proxy_location="Disabled")
    try:
        handle = serve.run(ray_serve.app(str(folder)))
        answers = [handle.remote(text) for text in TEXTS]
        got = np.array([answer.result(timeout_s=60) for answer in answers])
    finally:
        serve.shutdown()
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-6)

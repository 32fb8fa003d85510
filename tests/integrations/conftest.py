"""For the checks that run inside the second environment, where the libraries are."""

import os
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "serving"
TEXTS = [
    "a short text",
    "another text, which is rather longer than the first one and has commas, too",
    "",
    "words " * 40,
    "the last one of five texts",
]


@pytest.fixture(scope="session")
def folder() -> Path:
    """What `pitc.from_pretrained` wrote."""
    return Path(os.environ["PITC_ENCODER"], "compiled")


@pytest.fixture(scope="session")
def source(folder: Path) -> Path:
    """The export that it was made from."""
    return folder.with_name("export")


@pytest.fixture(scope="session")
def want(source: Path) -> np.ndarray:
    """Embeddings by ONNX Runtime alone, of the source."""
    import onnxruntime
    from encoder import Encoder

    session = onnxruntime.InferenceSession(
        source / "onnx" / "model.onnx", providers=["CPUExecutionProvider"]
    )
    return np.asarray(Encoder(source, session=session)(TEXTS))

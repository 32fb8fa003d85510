"""BentoML: `PITC_MODEL=FOLDER bentoml serve bentoml_service:Embed`."""

import os

import bentoml
import numpy as np
from encoder import Encoder


@bentoml.service(workers=1, traffic={"timeout": 30})
class Embed:
    """One worker; requests that come together run as one batch."""

    def __init__(self) -> None:
        self._encoder = Encoder(os.environ["PITC_MODEL"], threads=1)

    @bentoml.api(batchable=True, max_batch_size=64)
    def embed(self, texts: list[str]) -> np.ndarray:
        """Embeddings of texts."""
        return self._encoder(texts)

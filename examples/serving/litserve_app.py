"""LitServe: `python litserve_app.py FOLDER PORT`, then POST {"texts": [..]} to /predict."""

import sys
from typing import Any

import litserve
import numpy as np
from encoder import Encoder


class Embed(litserve.LitAPI):
    """One worker."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    def setup(self, device: str) -> None:
        """Load the artifact, in the worker."""
        self._encoder = Encoder(self._folder, threads=1)

    def decode_request(self, request: dict[str, Any]) -> list[str]:
        """The texts of a request."""
        return list(request["texts"])

    def predict(self, x: list[str]) -> np.ndarray:
        """Embed them."""
        return self._encoder(x)

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        """Their embeddings as numbers."""
        return {"embeddings": output.tolist()}


if __name__ == "__main__":
    server = litserve.LitServer(Embed(sys.argv[1]), accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False)

"""A model of Triton's Python backend; the folder `encoder` lies in the model repository.

Triton's own ONNX Runtime backend takes no providers from libraries, so Python loads the artifact.
`encoder.py` lies beside this file, and `parameters` of `config.pbtxt` name the model's folder.
"""

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from encoder import Encoder


class TritonPythonModel:
    """One instance."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the artifact."""
        parameters = json.loads(args["model_config"])["parameters"]
        self._encoder = Encoder(parameters["folder"]["string_value"], threads=1)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run all requests as one batch, and give each its rows."""
        texts = [
            [text.decode() for text in pb_utils.get_input_tensor_by_name(r, "text").as_numpy()]
            for r in requests
        ]
        rows = self._encoder([text for part in texts for text in part])
        ends = np.cumsum([len(part) for part in texts])[:-1]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("embedding", part)])
            for part in np.split(rows, ends)
        ]

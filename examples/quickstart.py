"""Compile a model, keep the result, run it."""

import tempfile
from pathlib import Path

import numpy as np
import onnx

import pitc
from models.bert import TINY, bert

with tempfile.TemporaryDirectory() as folder:
    source, artifact = Path(folder, "encoder.onnx"), Path(folder, "encoder.pitc")
    onnx.save(bert(TINY, np.random.default_rng(0)), source)
    pitc.compile(source, padding="attention_mask").save(artifact)

    ids = np.array([[5, 8, 13, 21, 34], [55, 89, 0, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": np.sign(ids), "token_type_ids": 0 * ids}
    hidden = pitc.load(artifact).run(inputs)["last_hidden_state"]
    print("rows of zeros at the padding of the second text:", int((hidden[1] == 0).all(1).sum()))

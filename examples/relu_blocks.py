"""What each sparse contraction of a model decides: two ReLU blocks, one with few zeros, one with
many.
"""

import os
import tempfile
from pathlib import Path

import numpy as np

import pitc
from models.graph import GraphBuilder
from models.sparsity import Sparsity
from pitc.measure.trace import contractions, read_lines

HIDDEN, FFN, TOKENS = 256, 1024, 128

rng = np.random.default_rng(0)
g = GraphBuilder("relu_blocks")
x = g.input("x", np.float32, ("tokens", HIDDEN))
for i, zeros in enumerate((0.3, 0.97)):
    scale = g.weight(f"scale{i}", np.ones(HIDDEN, np.float32))
    up = rng.normal(0, HIDDEN**-0.5, (HIDDEN, FFN)).astype(np.float32)
    down = rng.normal(0, FFN**-0.5, (FFN, HIDDEN)).astype(np.float32)
    h = g.op("MatMul", g.op("LayerNormalization", x, scale), g.weight(f"up{i}", up))
    bias = g.weight(f"bias{i}", -Sparsity(zeros).thresholds(FFN, rng))
    h = g.op("Relu", g.op("Add", h, bias))
    x = g.op("Add", x, g.op("MatMul", h, g.weight(f"down{i}", down)))
g.output(x, "y", np.float32, ("tokens", HIDDEN))

with tempfile.TemporaryDirectory() as folder:
    trace = Path(folder, "decisions.jsonl")
    os.environ["PITC_TRACE"] = str(trace)  # before the session is made
    model = pitc.compile(g.model())
    for _ in range(10):
        model.run({"x": rng.standard_normal((TOKENS, HIDDEN), np.float32)})
    for c in contractions(read_lines(trace).products):
        print(f"{c.node}: {c.density:.1%} of {c.rows[1]} x {c.k} elements are not 0")
        print("  ran", ", ".join(f"{name} {count} times" for name, count in c.variants.items()))
        times = c.measured_us, c.predicted_us, c.dense_predicted_us or 0.0
        print("  {:.0f} us; predicted {:.0f}, and {:.0f} if dense".format(*times))

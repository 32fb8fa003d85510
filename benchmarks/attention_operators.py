"""ONNX Runtime's own attention operators as peers: rows of all heads beside each other, as the
projections in front of them leave them, so that no transposition is timed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.attention_cases import AttentionCase, StepCase
from benchmarks.workload import Array, Infer, Workload
from models.attention_reference import seen_by
from models.graph import GraphBuilder
from models.masks import FLOAT_MIN
from models.pair_masks import Causal, Everything
from pitc.measure.bench import session_options

DOMAIN = "com.microsoft"


def _session(g: GraphBuilder) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(
        g.model().SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )


def _joined(x: Array) -> Array:
    """[batch, heads, rows, size] -> [batch, rows, heads * size]."""
    batch, heads, rows, size = x.shape
    return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(batch, rows, heads * size)


def _split(heads: int) -> Callable[[Array], Array]:
    """Back again, as a view."""
    return lambda y: y.reshape(*y.shape[:2], heads, -1).transpose(0, 2, 1, 3)


def multi_head(workload: Workload) -> Infer:
    """MultiHeadAttention: without a mask, unidirectional, or with the mask as a bias."""
    case, (feeds,) = workload.case, workload.batches
    if not isinstance(case, AttentionCase):
        raise TypeError(f"{type(case).__name__} is not attention alone")
    g, width = GraphBuilder("multi_head"), case.heads * case.config.size
    rows = ("batch", "sequence", width)
    given = [g.input(name, np.float32, rows) for name in ("q", "k", "v")]
    fixed = {name: feeds[name] for name in ("q", "k", "v")}
    causal = case.mask == Causal()
    if not causal and not isinstance(case.mask, Everything):
        shape = ("batch", 1, "sequence", "sequence")
        given += ["", "", g.input("bias", np.float32, shape)]
        seen = seen_by(case.mask, feeds, len(feeds["q"]), case.length)
        fixed["bias"] = np.where(seen, np.float32(0), np.float32(FLOAT_MIN))
    y = g.op(
        *("MultiHeadAttention", *given),
        domain=DOMAIN,
        num_heads=case.heads,
        unidirectional=int(causal),
    )
    g.output(y, "y", np.float32, rows)
    session = _session(g)
    return lambda feeds: session.run(None, fixed)[0]


def group_query(workload: Workload) -> Infer:
    """GroupQueryAttention, causal, with a window where there is one, and a past."""
    case, (feeds,) = workload.case, workload.batches
    if not isinstance(case, AttentionCase | StepCase):
        raise TypeError(f"{type(case).__name__} is not attention alone")
    mask, config = case.config.mask, case.config
    if not isinstance(mask, Causal):
        raise TypeError(f"{mask} is not causal")
    heads, apart = config.heads, isinstance(case, StepCase)
    groups = case.config.groups if isinstance(case, StepCase) else heads
    g = GraphBuilder("group_query")
    size = config.size
    inputs = [
        g.input(name, np.float32, ("batch", "sequence", count * size))
        for name, count in (("q", heads), ("k", groups), ("v", groups))
    ]
    fixed = {name: _joined(feeds[name]) if apart else feeds[name] for name in ("q", "k", "v")}
    for name in ("past_key", "past_value"):
        inputs.append(g.input(name, np.float32, ("batch", groups, "past", size)))
        empty = np.empty((len(feeds["q"]), groups, 0, size), np.float32)
        fixed[name] = feeds.get(name, empty)
    total = fixed["past_key"].shape[2] + fixed["q"].shape[1]
    inputs += [g.input("last", np.int32, ("batch",)), g.input("total", np.int32, ())]
    fixed |= {"last": np.array([total - 1], np.int32), "total": np.array(total, np.int32)}
    outputs = g.ops(
        3,
        *("GroupQueryAttention", *inputs),
        domain=DOMAIN,
        num_heads=heads,
        kv_num_heads=groups,
        local_window_size=-1 if mask.window is None else mask.window,
    )
    g.output(outputs[0], "y", np.float32, ("batch", "sequence", heads * size))
    for output, name in zip(outputs[1:], ("key", "value"), strict=True):
        g.output(output, f"present_{name}", np.float32, ("batch", groups, "total", size))
    session = _session(g)
    split = _split(heads) if apart else np.asarray
    return lambda feeds: split(session.run(None, fixed)[0])


def says_multi_head(workload: Workload) -> bool:
    """True of attention alone."""
    return isinstance(workload.case, AttentionCase)


def says_group_query(workload: Workload) -> bool:
    """True of causal attention alone, and of one token behind a cache."""
    case = workload.case
    if isinstance(case, StepCase):
        return True
    return isinstance(case, AttentionCase) and isinstance(case.mask, Causal)

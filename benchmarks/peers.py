"""What users write by hand, or take from a library, for zeros that come at run time.

Each function gets a workload and makes what runs one call of it. Constant weights are converted
beforehand; everything that depends on the call is inside.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx.utils
from onnx import numpy_helper

from benchmarks.workload import Array, Feeds, Infer, Workload
from models.graph import GraphBuilder
from pitc.measure.bench import session_options

ROWS = 32  # of a block whose live columns are gathered together

Multiply = Callable[[Array, Array], Array]


def weights(workload: Workload) -> dict[str, Array]:
    """The model's constants by name."""
    return {w.name: numpy_helper.to_array(w) for w in onnx.load(workload.model).graph.initializer}


def _session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(
        model.SerializeToString(), session_options(), providers=["CPUExecutionProvider"]
    )


# --- a sparse matrix times a constant one: x is not negative, so Relu has nothing to do -----------


def scipy_product(workload: Workload) -> Infer:
    """Converts to scipy's CSR and multiplies."""
    from scipy.sparse import csr_array  # pyright: ignore[reportMissingImports]

    weight = weights(workload)["weight"]
    return lambda feeds: csr_array(feeds["x"]) @ weight


def torch_product(workload: Workload) -> Infer:
    """Converts to torch's CSR and multiplies."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    weight = torch.from_numpy(np.array(weights(workload)["weight"]))
    return lambda feeds: (torch.from_numpy(feeds["x"]).to_sparse_csr() @ weight).numpy()


def mkl_product(workload: Workload) -> Infer:
    """Converts to scipy's CSR and multiplies by MKL."""
    from scipy.sparse import csr_matrix  # pyright: ignore[reportMissingImports]
    from sparse_dot_mkl import dot_product_mkl  # pyright: ignore[reportMissingImports]

    weight = np.array(weights(workload)["weight"])
    return lambda feeds: np.asarray(dot_product_mkl(csr_matrix(feeds["x"]), weight))


def gather_product(workload: Workload) -> Infer:
    """Per 32 rows, the columns that are not zero in all of them, times their rows of the weight.

    The products are ONNX Runtime's, which are faster than numpy's.
    """
    g = GraphBuilder("product")
    operands = g.input("a", np.float32, ("m", "k")), g.input("b", np.float32, ("k", "n"))
    g.output(g.op("MatMul", *operands), "c", np.float32, ("m", "n"))
    session, weight = _session(g.model()), weights(workload)["weight"]

    def infer(feeds: Feeds) -> Array:
        x = feeds["x"]
        y = np.empty((len(x), weight.shape[1]), np.float32)
        for start in range(0, len(x), ROWS):
            block = x[start : start + ROWS]
            live = np.flatnonzero((block != 0).any(0))
            operands = {"a": block[:, live], "b": weight[live]}
            y[start : start + ROWS] = session.run(None, operands)[0]
        return y

    return infer


# --- masked weights -------------------------------------------------------------------------------


def scipy_masked(workload: Workload) -> Infer:
    """The masked weights of every call as CSR, columns of activations behind them."""
    from scipy.sparse import csr_array  # pyright: ignore[reportMissingImports]

    known = weights(workload)
    turned = [np.ascontiguousarray(known[f"weight{i}"].T) for i in range(len(known))]

    def infer(feeds: Feeds) -> Array:
        y = np.ascontiguousarray(feeds["x"].T)
        for i, weight in enumerate(turned):
            y = csr_array(weight * feeds[f"mask{i}"].T) @ (np.maximum(y, 0) if i else y)
        return y.T

    return infer


# --- the gradient of a masked weight --------------------------------------------------------------


def torch_gradient(_: Workload) -> Infer:
    """The mask of every call as CSR, and torch's product at its places."""
    import torch  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)

    def infer(feeds: Feeds) -> Array:
        live = torch.from_numpy(feeds["mask"]).float().to_sparse_csr()
        x, dy = torch.from_numpy(feeds["x"]), torch.from_numpy(feeds["dy"])
        made = torch.sparse.sampled_addmm(live, x.T.contiguous(), dy, beta=0.0)
        return np.asarray(made.to_dense().numpy())

    return infer


def gather_gradient(_: Workload) -> Infer:
    """Per 32 rows, the columns in which one of them is wanted, by ONNX Runtime's products."""
    g = GraphBuilder("product")
    operands = g.input("a", np.float32, ("t", "m")), g.input("b", np.float32, ("t", "n"))
    g.output(g.op("Gemm", *operands, transA=1), "c", np.float32, ("m", "n"))
    session = _session(g.model())

    def infer(feeds: Feeds) -> Array:
        x, dy, mask = feeds["x"], feeds["dy"], feeds["mask"]
        dw = np.zeros(mask.shape, np.float32)
        for start in range(0, len(mask), ROWS):
            rows = slice(start, start + ROWS)
            live = np.flatnonzero(mask[rows].any(0))
            product = session.run(None, {"a": x[:, rows], "b": dy[:, live]})[0]
            dw[rows, live] = product * mask[rows, live]
        return dw

    return infer


# --- feed-forward blocks: the first product dense, the second of what ReLU leaves -----------------


@dataclass(frozen=True, slots=True)
class Block:
    """The parameters of one feed-forward block: norm, product, ReLU, product, residual.

    Args:
        gamma: Factors of the norm, f32 [hidden].
        beta: Terms of the norm; None: the norm does not centre.
        epsilon: Of the norm.
        first: Weight of the first product, f32 [hidden, ffn].
        first_bias: f32 [ffn], or None.
        second: Weight of the second product, f32 [ffn, hidden].
        second_bias: f32 [hidden], or None.
    """

    gamma: Array
    beta: Array | None
    epsilon: float
    first: Array
    first_bias: Array | None
    second: Array
    second_bias: Array | None

    def hidden(self, x: Array) -> Array:
        """What ReLU gives for tokens f32 [tokens, hidden], in numpy."""
        centred = x if self.beta is None else x - x.mean(1, keepdims=True)
        deviation = np.sqrt((centred * centred).mean(1, keepdims=True) + np.float32(self.epsilon))
        scaled = centred / deviation * self.gamma
        y = (scaled if self.beta is None else scaled + self.beta) @ self.first
        return np.maximum(y if self.first_bias is None else y + self.first_bias, 0)

    def leave(self, x: Array, hidden: Array, multiply: Multiply) -> Array:
        """The end of the block, with a function for its product."""
        y = multiply(hidden, self.second)
        return x + (y if self.second_bias is None else y + self.second_bias)


def blocks(workload: Workload) -> list[Block]:
    """The blocks of a model of `models.opt.opt_ffn` or `models.t5.t5_ffn`, in order."""
    known, found = weights(workload), []
    while f"layers.{len(found)}.fc1.weight" in known:
        layer = f"layers.{len(found)}"
        norm, first, second = (f"{layer}.{part}" for part in ("final_layer_norm", "fc1", "fc2"))
        found.append(
            Block(
                known[f"{norm}.weight"],
                known[f"{norm}.bias"],
                1e-5,
                np.ascontiguousarray(known[f"{first}.weight"].T),
                known[f"{first}.bias"],
                np.ascontiguousarray(known[f"{second}.weight"].T),
                known[f"{second}.bias"],
            )
        )
    while f"block.{len(found)}.wi.weight_t" in known:
        block = f"block.{len(found)}"
        gamma, first, second = (
            np.array(known[f"{block}.{part}"])
            for part in ("ffn_norm.weight", "wi.weight_t", "wo.weight_t")
        )
        found.append(Block(gamma, None, 1e-6, first, None, second, None))
    return found


def first_halves(workload: Workload) -> list[Any]:
    """A session per block, from its input to what ReLU gives, cut out of the model."""
    model = onnx.load(workload.model)
    x, nodes, cuts = model.graph.input[0].name, list(model.graph.node), []
    for at in (i for i, node in enumerate(nodes) if node.op_type == "Relu"):
        cuts.append((x, nodes[at].output[0]))
        residual = (n for n in nodes[at:] if n.op_type == "Add" and x in n.input)
        x = next(residual).output[0]
    model.graph.value_info.extend(  # the extractor wants the types of both ends
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None)
        for name in {end for cut in cuts for end in cut} - {model.graph.input[0].name}
    )
    extractor = onnx.utils.Extractor(model)
    return [_session(extractor.extract_model([start], [end])) for start, end in cuts]


def _gather(hidden: Array, weight: Array) -> Array:
    live = np.flatnonzero((hidden != 0).any(0))
    return hidden[:, live] @ weight[live]


def _csr(hidden: Array, weight: Array) -> Array:
    from scipy.sparse import csr_array  # pyright: ignore[reportMissingImports]

    return csr_array(hidden) @ weight


def _ort_then(workload: Workload, multiply: Multiply) -> Infer:
    """First products in ONNX Runtime, second ones by this function."""
    pairs = list(zip(blocks(workload), first_halves(workload), strict=True))
    names = [session.get_inputs()[0].name for _, session in pairs]

    def infer(feeds: Feeds) -> Array:
        x = feeds["hidden_state"]
        for (block, session), name in zip(pairs, names, strict=True):
            hidden = session.run(None, {name: x})[0]
            flat = hidden.reshape(-1, hidden.shape[-1])
            x = block.leave(x.reshape(len(flat), -1), flat, multiply).reshape(x.shape)
        return x

    return infer


def ort_then_gather(workload: Workload) -> Infer:
    """Second products in numpy, of the neurons that are live for some token."""
    return _ort_then(workload, _gather)


def ort_then_csr(workload: Workload) -> Infer:
    """Second products by scipy's CSR."""
    return _ort_then(workload, _csr)


def numpy_then_csr(workload: Workload) -> Infer:
    """All in numpy but the second products, which are scipy's CSR."""
    parts = blocks(workload)

    def infer(feeds: Feeds) -> Array:
        x = feeds["hidden_state"].reshape(-1, feeds["hidden_state"].shape[-1])
        for block in parts:
            x = block.leave(x, block.hidden(x), _csr)
        return x.reshape(feeds["hidden_state"].shape)

    return infer

"""What a compiled model is compared with: ONNX Runtime on the source, or on what the padding
contract makes of it.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from pitc.check.double import run_in_double
from pitc.check.tokens import LiveTokens
from pitc.check.tolerance import arithmetic_of, arithmetic_on
from pitc.check.verify import Rules
from pitc.compiled import CompiledModel
from pitc.importer import load_model
from pitc.measure.bench import unoptimised_options
from pitc.session import plain_session, run_session


def contract_of(compiled: CompiledModel) -> str | None:
    """The mask of the padding contract; None where nothing was lowered, and the source runs."""
    return compiled.manifest.options.padding if compiled.manifest.pit_nodes else None


def reference_session(
    source: str | Path, padding: str | None, sess_options: Any = None
) -> tuple[Any, list[str]]:
    """A session of ONNX Runtime that answers as the contract says.

    Dynamic scales are those of tokens that exist (`docs/padding.md`): a source that has such gets a
    `Where` in front of each, nothing else is changed.

    Args:
        source: The source model.
        padding: The mask input that it was compiled with, or None.
        sess_options: Of the session, as of `plain_session`.

    Returns:
        The session, and the nodes whose scales leave padding out.

    Raises:
        ModelError: ONNX Runtime cannot load it.
    """
    if padding is None or not _has_dynamic_scales(source):
        return plain_session(source, sess_options), []
    import onnx_ir as ir

    from pitc.passes.live_scales import scale_by_live_tokens

    model = load_model(Path(source))
    nodes = scale_by_live_tokens(model, padding)
    if not nodes:
        return plain_session(source, sess_options), []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "reference.onnx")
        ir.save(model, path, external_data="reference.bin")
        return plain_session(path, sess_options), nodes


def rules_of(
    compiled: CompiledModel,
    source: str | Path,
    session: Any,
    live: LiveTokens,
    tolerance: float | None = None,
) -> Rules:
    """What passes as the answer of a compiled model.

    Args:
        compiled: The compiled model.
        source: Its source model.
        session: A session of the compiled model.
        live: Which tokens are real.
        tolerance: Largest norm-wise relative error of floats; None: by the model's arithmetic.
    """
    plain = partial(reference_session, source, contract_of(compiled))
    return Rules(
        padding=live,
        token_outputs=compiled.report.tokens,
        tolerance=tolerance,
        arithmetic=arithmetic_on(
            session, arithmetic_of(load_model(source)), compiled.manifest.options.precision
        ),
        double=lambda: run_in_double(load_model(source), unoptimised_options),
        plain=lambda: partial(run_session, plain(unoptimised_options())[0]),
    )


def _has_dynamic_scales(source: str | Path) -> bool:
    """True for a model with a node that looks at extremes; its weights are not read."""
    import onnx

    from pitc.passes.rules.record import OPERATORS, UNKNOWN

    proto = onnx.load(source, load_external_data=False)
    keys = {("" if n.domain == "ai.onnx" else n.domain, n.op_type) for n in proto.graph.node}
    return any(OPERATORS.get(k, UNKNOWN).extremes_of is not None for k in keys)

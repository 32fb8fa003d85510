"""How much of popular architectures runs packed, as people export them.

    .venv-libs/bin/python -m benchmarks.exports [ARCHITECTURE ...]

Each is exported small and with random weights, explained without and with `--padding`, and its
answers are compared with ONNX Runtime's. It runs in the second environment (`make libs`). A run
of all writes `results/exports.json`; `python -m benchmarks.exports_page` makes a page of that.
"""

from benchmarks.one_thread import limit_threads

limit_threads()

import json  # noqa: E402 - the libraries read the limits when they are imported
import tempfile  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Iterator, Mapping  # noqa: E402
from contextlib import ExitStack, contextmanager  # noqa: E402
from importlib import import_module, metadata  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Annotated, Any  # noqa: E402
from unittest.mock import patch  # noqa: E402

import numpy as np  # noqa: E402
import onnx_ir as ir  # noqa: E402
import typer  # noqa: E402

import pitc  # noqa: E402
from benchmarks.export_cases import (  # noqa: E402
    ARCHITECTURES,
    DYNAMO,
    EXAMPLE,
    LAYERS,
    RUN,
    VOCABULARY,
    Architecture,
)
from benchmarks.exports_page import ENOUGH, FILE  # noqa: E402
from pitc.check.feeds import PATTERNS, Case, input_specs, random_feeds  # noqa: E402
from pitc.check.reference import contract_of, reference_session, rules_of  # noqa: E402
from pitc.check.tokens import LiveTokens  # noqa: E402
from pitc.check.verify import compare  # noqa: E402
from pitc.ir.report import Report  # noqa: E402
from pitc.ir.summary import summary_of, ways_of  # noqa: E402
from pitc.measure.bench import of_session, session_options  # noqa: E402

SCHEMA = 1
PACKAGES = ("torch", "transformers", "optimum-onnx", "onnx", "onnxscript", "onnxruntime")
OPSET, DYNAMO_OPSET = 17, 20
PATCHES = "optimum.exporters.onnx.model_patcher"


def example(case: Architecture, name: str) -> Any:
    """An example of an input: a tensor."""
    torch = import_module("torch")
    sizes = [
        d if isinstance(d, int) else sum(EXAMPLE[part] for part in d.split(" + "))
        for d in case.sizes_of(name)
    ]
    if "mask" in name:
        mask = torch.ones(sizes, dtype=torch.int64)
        mask[1, sizes[1] * 2 // 3 :] = 0
        return mask
    if name == "position_ids":
        return torch.arange(sizes[1]).expand(sizes).contiguous()
    if name == "token_type_ids":
        return torch.zeros(sizes, dtype=torch.int64)
    if name.endswith("ids"):
        return torch.randint(2, VOCABULARY, sizes)
    return torch.randn(sizes)


def module_of(case: Architecture) -> Any:
    """The model with inputs and outputs by place."""
    torch, hf = import_module("torch"), import_module("transformers")
    past = [n for n in case.inputs if n.startswith("past")]

    class ByPlace(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = case.module()

        def forward(self, *inputs: Any) -> Any:
            named = dict(zip(case.inputs, inputs, strict=True))
            if not past:
                found = self.model(**named)
                if case.pooled:
                    return pooled(found[0], named["attention_mask"])
                return tuple(found[name] for name in case.outputs)
            cache = hf.DynamicCache()
            for layer in range(LAYERS):
                cache.update(*(named.pop(n) for n in past[2 * layer : 2 * layer + 2]), layer)
            found = self.model(**named, past_key_values=cache, use_cache=True)
            kept = (t for layer in found.past_key_values.layers for t in (layer.keys, layer.values))
            return (found.logits, *kept)

    def pooled(hidden: Any, mask: Any) -> Any:
        weight = mask.unsqueeze(-1).expand(hidden.size()).float()
        mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, p=2, dim=1)

    return ByPlace().eval()


@contextmanager
def traceable() -> Iterator[None]:
    """As the tool that most users take traces models: with its own masks, and without vmap."""
    patches, masks = import_module(PATCHES), import_module("transformers.masking_utils")
    cache = import_module("transformers.cache_utils")
    table = masks.ALL_MASK_ATTENTION_FUNCTIONS
    before = {kind: table[kind] for kind in ("sdpa", "eager")}
    table.register("sdpa", patches.sdpa_mask_without_vmap)
    table.register("eager", patches.eager_mask_without_vmap)
    with ExitStack() as stack:
        for spec in patches.UNSUPPORTED_OPS_PATCHING_SPEC:
            stack.enter_context(patch.object(spec.o, spec.name, spec.custom_op))
        for place, name, now in (
            (masks, "find_packed_sequence_indices", patches.find_packed_sequence_indices_patched),
            (cache.DynamicLayer, "update", patches.patched_dynamic_layer_update),
        ):
            stack.enter_context(patch.object(place, name, now))
        try:
            yield
        finally:
            for kind, function in before.items():
                table.register(kind, function)


def export(case: Architecture, exporter: str, file: Path) -> None:
    """Write one export."""
    torch = import_module("torch")
    module = module_of(case)
    arguments = tuple(example(case, name) for name in case.inputs)
    names = {"input_names": list(case.inputs), "output_names": list(case.outputs)}
    free = {
        n: {i: d for i, d in enumerate(case.sizes_of(n)) if isinstance(d, str)}
        for n in (*case.inputs, *case.outputs)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == DYNAMO:
            shapes = [tuple(free[n] for n in case.inputs)]
            program = torch.onnx.export(
                module,
                arguments,
                dynamo=True,
                dynamic_shapes=shapes,
                opset_version=DYNAMO_OPSET,
                verbose=False,
                **names,
            )
            program.save(str(file), external_data=False)
            return
        with traceable():
            torch.onnx.export(
                module,
                arguments,
                str(file),
                dynamo=False,
                opset_version=OPSET,
                dynamic_axes=free,
                **names,
            )


def share(report: Report) -> float:
    """Of the work, what runs packed or skips zeros."""
    found = summary_of(report)
    return round(found.packed.share + found.sparse.share, 4)


def reason(report: Report) -> dict[str, Any]:
    """Why the largest part of the work runs whole."""
    alike: dict[tuple[str, str, str], dict[str, Any]] = {}
    for record, way in zip(report.nodes, ways_of(report.nodes), strict=True):
        refusal = record.refusal
        if way in ("packed", "sparse") or refusal is None:
            continue
        key = (refusal.code.id, refusal.reason, refusal.value)
        first = {"code": key[0], "reason": key[1], "value": key[2], "first": record.node}
        group = alike.setdefault(key, first | {"flops": 0, "nodes": 0})
        group["flops"] += record.flops or 0
        group["nodes"] += 1
    if not alike:
        return {}
    largest = max(alike.values(), key=lambda group: group["flops"])
    total = sum(record.flops or 0 for record in report.nodes)
    return largest | {"share": round(largest.pop("flops") / total, 4) if total else 0.0}


def cases_of(case: Architecture, model: Path, padding: str | None) -> list[Case]:
    """Random inputs, padded in every way."""
    specs = input_specs(ir.load(model))
    names = {d for s in specs for d in s.shape if isinstance(d, str)}
    dims = {d: sum(RUN.get(part, 1) for part in d.split(" + ")) for d in sorted(names)}
    rng = np.random.default_rng(7)
    patterns = PATTERNS if case.padding else PATTERNS[:1]
    made = []
    for pattern in patterns:
        feeds = random_feeds(specs, dims, rng, pattern, padding or case.padding or None)
        made.append(Case(pattern, dims, feeds))
    return made


def checked(case: Architecture, model: Path, padding: str | None) -> dict[str, Any]:
    """Compile, run and compare with ONNX Runtime, by the rules of `pitc verify`."""
    compiled = pitc.compile(model, "cpu", padding, suggest=False)
    session = compiled.session(session_options())
    contract = contract_of(compiled)
    found = compare(
        of_session(session),
        of_session(reference_session(model, contract)[0]),
        cases_of(case, model, padding),
        rules_of(compiled, model, session, LiveTokens(model, padding)),
        skips=True,
    )
    wrong = [f"{o.output}: {o.problem or f'error {o.norm:.1e}'}" for o in found.outputs if not o.ok]
    return {"right": found.ok and found.cases > 0, "cases": found.cases, "wrong": wrong} | (
        {"skipped": found.skipped} if found.skipped else {}
    )


def row_of(case: Architecture, exporter: str, model: Path, *, runs: bool) -> dict[str, Any]:
    """Everything about one export."""
    plain = pitc.explain(model, "cpu")["cpu"]
    (said,) = [s for s in plain.suggestions if s.kind == "padding"] or [None]
    row: dict[str, Any] = {
        "architecture": case.name,
        "exporter": exporter,
        "model": case.model,
        "nodes": len(ir.load(model).graph),
        "packed": share(plain),
        "suggestion": None if said is None else {"option": said.option, "text": said.text},
    }
    last = plain
    if case.padding:
        last = pitc.explain(model, "cpu", case.padding)["cpu"]
        row |= {"padding": case.padding, "packed_with_padding": share(last), "notes": last.notes}
    if share(last) < ENOUGH:
        row["why"] = reason(last)
    if runs:
        row["answers"] = checked(case, model, None)
        if case.padding:
            row["answers_with_padding"] = checked(case, model, case.padding)
    return row


def main(
    names: Annotated[
        list[str] | None, typer.Argument(help="Architectures; all by default.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Keep exports here, and take those that are here.")
    ] = None,
    runs: Annotated[bool, typer.Option(help="Compile, run and compare each.")] = True,
) -> None:
    """Export, explain and check; print a line for each."""
    known = {case.name: case for case in ARCHITECTURES}
    for name in names or []:
        if name not in known:
            raise typer.BadParameter(f"there is no {name!r} (known: {', '.join(known)})")
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        place = folder or Path(scratch)
        place.mkdir(exist_ok=True)
        for case in (known[name] for name in names or known):
            for exporter in case.exporters:
                file = place / f"{case.name}-{exporter}.onnx"
                if not file.exists():
                    export(case, exporter, file)
                rows.append(row_of(case, exporter, file, runs=runs))
                print(line(rows[-1]), flush=True)
    if not names and runs:
        packages = {name: metadata.version(name) for name in PACKAGES}
        body = {"schema": SCHEMA, "packages": packages, "rows": rows}
        FILE.write_text(json.dumps(body, indent=1, sort_keys=True) + "\n", "utf-8")
    if any(not row[key]["right"] for row in rows for key in row if key.startswith("answers")):
        raise typer.Exit(4)


def line(row: Mapping[str, Any]) -> str:
    """One row for people."""
    said = row["suggestion"]["option"] if row["suggestion"] else "-"
    padded = f"{row['packed_with_padding']:.1%}" if "padding" in row else "-"
    answers = [row[key] for key in ("answers", "answers_with_padding") if key in row]
    right = " ".join(f"{a['cases']} right" if a["right"] else f"WRONG {a}" for a in answers)
    why = row.get("why")
    text = f"  {why['share']:.0%} {why['code']} {why['reason']} at {why['value']}" if why else ""
    return (
        f"{row['architecture']:16} {row['exporter']:11} {row['nodes']:5} {row['packed']:7.1%} "
        f"{padded:>7} {said:45} {right}{text}"
    )


if __name__ == "__main__":
    typer.run(main)

"""Writes the tables of figures from the result files: `python -m benchmarks.readme`.

README.md has the few rows that tell most, docs/benchmarks.md all of them.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contenders import OURS
from benchmarks.experts_cases import EXPERTS_CASES
from benchmarks.report import RESULTS, SWEEPS, Verdict, over_limit, verdicts
from benchmarks.sessions import SOURCE

ROOT = Path(__file__).parent.parent
README, PAGE = ROOT / "README.md", ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- results -->", "<!-- /results -->"
WORST = "<!-- worst -->", "<!-- /worst -->"
#: Engines that run padded batches as exactly as a case asks, as the names of contenders begin.
ENGINES = {
    "ort": "ONNX Runtime",
    "openvino": "OpenVINO",
    "ctranslate2": "CTranslate2 (BERT)",
    "torch-bf16": "torch.compile under bfloat16 (beside bf16)",
}
COARSE = "ctranslate2-int8"
"""An engine whose answers are farther off than a case asks."""
COMPILE, FOOTPRINT = "compile-bert", "footprint-bert-32x128-m40"
WHAT = {
    "minilm-64": "all-MiniLM-L6-v2, real texts, batches of 64, no option",
    "minilm-64-bf16": "all-MiniLM-L6-v2, `--precision bf16`, real texts, batches of 64",
    "bert-32x128-m40": "BERT-base, 32 x 128, mean length 40",
    "bert-16x256-m100": "BERT-base, 16 x 256, mean length 100",
    "bert-8x384-m150": "BERT-base, 8 x 384, mean length 150",
    "bert-4x128-full": "BERT-base, 4 x 128, no padding",
    "opt-8x128-m40": "OPT-125M shapes, 8 x 128, mean length 40, padded left",
    "opt-prompt-8x128-m40": "OPT-125M shapes with a cache, a prompt of 8 x 128, mean length 40",
    "opt-prompt-8x128-full": "OPT-125M shapes with a cache, a prompt of 8 x 128, no padding",
    "opt-step-8x128-m40": "OPT-125M shapes, one token, past of 127, mean length 40",
    "opt-step-8x128-full": "OPT-125M shapes, one token, past of 127, no padding",
    "opt-step-8x512-full": "OPT-125M shapes, one token, past of 511, no padding",
    "t5-8x128-m40": "T5-base encoder, 8 x 128, mean length 40",
    "bert-32x128-m40-half": "BERT-base in float16, 32 x 128, mean length 40",
    "bert-4x128-full-half": "BERT-base in float16, 4 x 128, no padding",
    "bert-32x128-m40-bf16": "BERT-base, `--precision bf16`, 32 x 128, mean length 40",
    "bert-8x384-m150-bf16": "BERT-base, `--precision bf16`, 8 x 384, mean length 150",
    "bert-4x128-full-bf16": "BERT-base, `--precision bf16`, 4 x 128, no padding",
    "bert3-dynamic-16x128-m40": "BERT of 3 layers, dynamic int8, 16 x 128, mean length 40",
    "bert3-dynamic-16x128-full": "BERT of 3 layers, dynamic int8, 16 x 128, no padding",
    "bert3-static-16x128-m40": "BERT of 3 layers, static int8 (QDQ), 16 x 128, mean length 40",
    "bert3-static-16x128-full": "BERT of 3 layers, static int8 (QDQ), 16 x 128, no padding",
    "bert3-int4-16x128-m40": "BERT of 3 layers, int4 weights, 16 x 128, mean length 40",
    "bert3-int4-16x128-full": "BERT of 3 layers, int4 weights, 16 x 128, no padding",
}
#: The rows of README.md.
MAIN = ("minilm-64", "bert-32x128-m40", "bert-4x128-full", "opt-step-8x128-m40")
#: Series of cases that differ in their share of zeros alone.
SERIES = {
    "spmm-2048-1x1": "sparse x dense, 2048 x 2048 each",
    "spmm-2048-1x32": "sparse x dense, 2048 x 2048, zeros in blocks of 1 x 32",
    "spmm-2048-32x1": "sparse x dense, 2048 x 2048, zeros in blocks of 32 x 1",
    "spmm-2048-1x64": "sparse x dense, 2048 x 2048, zeros in blocks of 1 x 64",
    "spmm-2048-32x32": "sparse x dense, 2048 x 2048, zeros in blocks of 32 x 32",
    "opt-125m-ffn-512": "OPT-125M ReLU FFN, 512 tokens",
    "opt-125m-ffn-8": "OPT-125M ReLU FFN, 8 tokens, 6 layers (cold weights)",
    "opt-125m-ffn-1": "OPT-125M ReLU FFN, 1 token, 6 layers (cold weights)",
    "opt-125m-ffn-512-bf16": "OPT-125M ReLU FFN, `--precision bf16`, 512 tokens",
    "opt-125m-ffn-1-bf16": "OPT-125M ReLU FFN, `--precision bf16`, 1 token, 6 layers (cold)",
    "opt-350m-ffn-512": "OPT-350M ReLU FFN, 512 tokens",
    "opt-350m-ffn-8": "OPT-350M ReLU FFN, 8 tokens, 6 layers (cold weights)",
    "opt-350m-ffn-1": "OPT-350M ReLU FFN, 1 token, 6 layers (cold weights)",
    "opt-1.3b-ffn-512": "OPT-1.3B ReLU FFN, 512 tokens",
    "opt-1.3b-ffn-8": "OPT-1.3B ReLU FFN, 8 tokens, 2 layers (cold weights)",
    "opt-1.3b-ffn-1": "OPT-1.3B ReLU FFN, 1 token, 2 layers (cold weights)",
    "t5-base-ffn-512": "T5-base ReLU FFN, 512 tokens",
    "masked-mlp-512-1x1": "MLP 768-3072-768, masked weights, 512 rows",
    "masked-mlp-512-32x32": "MLP 768-3072-768, masked in blocks of 32 x 32, 512 rows",
    "gradient-512-768x3072-32x64": "gradient of a masked weight, 768 x 3072, blocks of 32 x 64",
    "gradient-512-768x3072-32x32": "gradient of a masked weight, blocks of 32 x 32",
    "gradient-512-768x3072-32x1": "gradient of a masked weight, blocks of 32 x 1",
    "gradient-512-768x3072-1x1": "gradient of a masked weight, single elements",
    "cnn-16x32": "ReLU CNN, 16 images of 32 x 32",
    "gated-cnn-1x56": "CNN with gates for channels, 1 image of 56 x 56",
    "gated-cnn-8x56": "CNN with gates for channels, 8 images of 56 x 56",
}
TRAINING = "<!-- training -->", "<!-- /training -->"
#: Steps of training, and what each was to gain: over ONNX Runtime with the same graph, over torch
#: on the padded batch, and over torch without padding.
TRAININGS: dict[str, tuple[str, tuple[float | None, ...]]] = {
    "train-bert-8x128-m57": ("BERT of 2 layers, 8 x 128, 45 % live", (3, 2.1, 1)),
    "train-bert-8x128-full": ("the same, no padding", (0.98, None, None)),
    "train-opt-8x128-m40": ("OPT-125M, 8 x 128, mean length 40, padded left", (3, 2.2, 1)),
    "train-bert-8x128-full-32x64-90": (
        "BERT of 2 layers, no padding, 90 % of FFN weights masked, blocks of 32 x 64",
        (1.6, 1.4, None),
    ),
    "train-bert-8x128-m57-32x64-90": (
        "the same, 45 % live: padding and masks of weights",
        (None, None, None),
    ),
    "train-mlp-512-32x64-90": (
        "MLP 768-3072-768, 512 rows, 90 % of weights masked, blocks of 32 x 64",
        (3.5, 3, None),
    ),
    "train-mlp-512-32x1-90": ("the same, blocks of 32 x 1", (2.5, 2.2, None)),
    "train-mlp-512-1x1-90": ("the same, single elements", (1.8, 1.6, None)),
    "train-mlp-512-1x1-0": ("the same, masks of ones", (0.98, None, None)),
}
CONVERSION = "<!-- conversion -->", "<!-- /conversion -->"
ATTENTION = "<!-- attention -->", "<!-- /attention -->"
#: Attention under masks; models with such attention behind it.
ATTENTIONS = {
    "attention-512-causal": "causal, 512 tokens",
    "attention-2048-causal": "causal, 2048 tokens",
    "attention-4096-causal": "causal, 4096 tokens",
    "attention-2048-causal-window-257": "causal window of 257, 2048 tokens",
    "attention-2048-window-257-global-16": "window of 257 and 16 global tokens, 2048 tokens",
    "attention-4096-window-513-global-16": "window of 513 and 16 global tokens, 4096 tokens",
    "attention-4096-documents-400": "packed documents of 400 on average, 4096 tokens",
    "attention-4096-bars-128": "bars of music of 128 on average, 4096 tokens",
    "attention-4096-blocks-32-10": "random blocks of 32 x 32, 4096 tokens",
    "attention-4096-blocks-64-5": "random blocks of 64 x 64, 4096 tokens",
    "attention-512-full": "no mask, 512 tokens",
    "attention-2048-full": "no mask, 2048 tokens",
    "attention-step-4095": "one token of 32 heads over 8, window of 512, a past of 4095",
    "modern-bert-2048": "3 layers of ModernBERT, 2048 tokens",
    "modern-bert-4096": "3 layers of ModernBERT, 4096 tokens",
    "longformer-4096": "12 layers of Longformer-base, window of 513, 4096 tokens",
}
EXPERTS = "<!-- experts -->", "<!-- /experts -->"
AMX = "<!-- amx -->", "<!-- /amx -->"
#: Results on a CPU with AMX: what was to be reached, over ONNX Runtime and over OpenVINO.
AMX_CASES: dict[str, tuple[float | None, float | None]] = {
    "minilm-64-bf16": (20, 2.2),
    "bert-32x128-m40-bf16": (20, 2.2),
    "bert-8x384-m150-bf16": (14, 2),
    "bert-4x128-full-bf16": (5, 1.3),
    "opt-125m-ffn-512-bf16-90": (5, 1.5),
    "opt-125m-ffn-512-bf16-50": (None, None),
    "opt-125m-ffn-512-bf16-0": (None, None),
    "opt-125m-ffn-1-bf16-90": (3.5, 1.3),
    "opt-125m-ffn-1-bf16-50": (None, None),
    "opt-125m-ffn-1-bf16-0": (None, None),
}
#: How layers of experts are written.
WRITTEN = {
    "looked_up": "matrices looked up by each row",
    "all_experts": "all experts, with gates",
    "loop": "a loop over experts",
    "index_add": "a loop as torch traces it",
    "index_add_hits": "a loop as torch traces it, over experts that are hit",
    "capacity": "twice as many slots as tokens (GShard)",
    "operator": "ONNX Runtime's operator MoE",
}
#: Of them, the row of README.md.
MAIN_EXPERTS = "experts-e8-512-1536-top2-256-looked-up"
#: Of attention, the rows of README.md.
MAIN_ATTENTION = ("attention-2048-causal", "attention-4096-window-513-global-16")
#: And of steps of training.
MAIN_TRAINING = "train-bert-8x128-m57"
FEW = 0.6  # with at most this share of zeros the ordinary model is to be as fast


def results(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """All result files of the cases in the tables, by case name, in the tables' order."""
    files = [folder / f"{name}.json" for name in (*WHAT, COMPILE, FOOTPRINT)]
    single = [json.loads(f.read_text("utf-8")) for f in files if f.exists()]
    single += [json.loads(f.read_text("utf-8")) for f in (folder / "serving").glob("*.json")]
    swept = [
        json.loads(f.read_text("utf-8")) for family in SWEEPS for f in folder.glob(f"{family}/*")
    ]
    order = list(SERIES)
    swept = [r for r in swept if r["case"]["series"] in SERIES]
    swept.sort(key=lambda r: (order.index(r["case"]["series"]), r["case"]["zeros"]))
    return {r["case"]["name"]: r for r in (*single, *swept)}


def main_block(found: dict[str, dict[str, Any]]) -> str:
    """The table of README.md.

    Args:
        found: Results by case name, as the benchmark program wrote them.
    """
    rows = _workloads({name: found[name] for name in MAIN})
    of_attention = [_main_attention(name) for name in MAIN_ATTENTION]
    end = (
        f"{rows[-1]} Of attention, it is the fastest of all libraries that take its mask; of "
        "experts, of all forms of the layer; of training, torch, with and without padding."
    )
    others = [_main_experts(MAIN_EXPERTS), _main_training(MAIN_TRAINING)]
    return "\n".join([*rows[:-2], *of_attention, *others, "", end])


def _main_experts(name: str) -> str:
    """The row of README.md for a layer of experts."""
    result = json.loads((RESULTS / "experts" / f"{name}.json").read_text("utf-8"))
    gain, best = result["speedup"], result["best_peer"]
    what = f"{_experts(result)} ({result['machine']['cpu']})"
    ms = _milliseconds(result)
    return f"| {what} | {ms} | {gain['ort']:.2f}x | {gain[best]:.2f}x ({best}) |"


def _experts(result: dict[str, Any]) -> str:
    """A layer of experts, or a model with such layers, in words."""
    case, config = result["case"], result["case"]["config"]
    if "layers" in config:
        sizes = f"{case['batch']} x {case['length']}, mean length {case['mean']}"
        form = WRITTEN[config["experts"]["form"]]
        return f"Mixtral-like, {config['layers']} layers, {sizes}: {form}"
    kind = "SwiGLU" if config["gated"] else "ReLU"
    sizes = f"{config['experts']} experts, {config['hidden']}-{config['ffn']}, {kind}"
    return f"{sizes}, top {config['top']}, {case['tokens']} tokens: {WRITTEN[config['form']]}"


def experts_block(folder: Path = RESULTS / "experts") -> str:
    """The table of layers of experts."""
    found = [json.loads(f.read_text("utf-8")) for f in folder.glob("*.json")]
    found.sort(key=lambda r: [c.name for c in EXPERTS_CASES].index(r["case"]["name"]))
    lines = [
        "| layer | pitc, ms | over ONNX Runtime, same form | over the best peer, on its best form "
        "| times the limit of the core |",
        "|---|---|---|---|---|",
    ]
    for result in found:
        base, best, *limit = verdicts(result)
        over = _gains(limit) if limit else f"{over_limit(result) or 0:.2f}"
        cells = [_gains([base]), f"{_gains([best])} {best.over}", over]
        lines.append(f"| {_experts(result)} | {_milliseconds(result)} | {' | '.join(cells)} |")
    machines = {_machine(r): r["machine"]["date"] for r in found}
    peers = {c["name"] for r in found for c in r["contenders"] if c["ms"] is not None}
    lines += [
        "",
        f"{_joined(machines)}, one core, float32, {_joined(dict.fromkeys(machines.values()))}. "
        "Gains, and in brackets what was to be reached. Peers have the same weights: "
        f"{', '.join(sorted(peers - {OURS}))}.",
    ]
    return "\n".join(lines)


def amx_block(folder: Path = RESULTS / "amx") -> str:
    """The table of `--precision bf16` on a CPU with AMX."""
    lines = [
        "| workload | pitc, ms | over ONNX Runtime, float32 | over OpenVINO, bfloat16 "
        "| over the best peer |",
        "|---|---|---|---|---|",
    ]
    machines: dict[str, str] = {}
    for name, targets in AMX_CASES.items():
        path = next(folder.rglob(f"{name}.json"), None)
        if path is None:
            continue
        result = json.loads(path.read_text("utf-8"))
        gain, best = result["speedup"], result["best_peer"]
        ours = [gain[x] for x in ("ort-padded", "ort") if x in gain]
        theirs = [gain[x] for x in gain if x.startswith("openvino")]
        cells = [
            f"{min(found):.2f}" + (f" ({target:g})" if target else "")
            for found, target in zip((ours, theirs), targets, strict=True)
        ]
        cells.append(f"{gain[best]:.2f} {best}")
        lines.append(f"| {_of_amx(name)} | {_milliseconds(result)} | {' | '.join(cells)} |")
        machines[_machine(result)] = result["machine"]["date"]
    lines += ["", f"{_joined(machines)}, one core, {_joined(dict.fromkeys(machines.values()))}."]
    return "\n".join(lines)


def _of_amx(name: str) -> str:
    """What a case is, in a table of `--precision bf16`."""
    series, _, zeros = name.rpartition("-")
    text = WHAT.get(name) or f"{SERIES[series]}, {zeros} % zeros"
    return text.replace(", `--precision bf16`", "")


def _main_training(name: str) -> str:
    """The row of README.md for a step of training."""
    result = json.loads((RESULTS / f"{name}.json").read_text("utf-8"))
    gain, by_hand = result["speedup"], result["best_by_hand"]
    best = min((result["best_peer"], by_hand), key=lambda n: gain[n])
    what = f"loss and gradients, {TRAININGS[name][0]} ({result['machine']['cpu']})"
    base = gain["ort-padded"]
    return f"| {what} | {_milliseconds(result)} | {base:.2f}x | {gain[best]:.2f}x ({best}) |"


def _main_attention(name: str) -> str:
    """A row of README.md for attention under a mask."""
    result = json.loads((RESULTS / "attention" / f"{name}.json").read_text("utf-8"))
    gain, best = result["speedup"], result["best_peer"]
    what = f"attention of 12 heads, {ATTENTIONS[name]} ({result['machine']['cpu']})"
    ms = next(c["ms"] for c in result["contenders"] if c["name"] == OURS)
    return f"| {what} | {ms:,.0f} | {gain['ort']:.2f}x | {gain[best]:.2f}x ({best}) |"


def block(found: dict[str, dict[str, Any]]) -> str:
    """All tables, those of docs/benchmarks.md.

    Args:
        found: Results by case name.
    """
    rows = _workloads({name: found[name] for name in WHAT if name in found})
    rows += ["", _footprint(found[COMPILE], found[FOOTPRINT]), *_serving(found)]
    swept = [r for r in found.values() if "series" in r["case"]]
    return "\n".join(rows + (["", *_sweeps(swept)] if swept else []))


def _workloads(found: dict[str, dict[str, Any]]) -> list[str]:
    """A row for each model and its batches."""
    rows = ["| workload | pitc, ms per batch | gain over ONNX Runtime | gain over the best peer |"]
    rows.append("|---|---|---|---|")
    machine = next(iter(found.values()))["machine"]
    for name, result in found.items():
        gain, best = result["speedup"], result["best_peer"]
        ms = {c["name"]: c["ms"] for c in result["contenders"]}
        cpu = result["machine"]["cpu"]
        elsewhere = "" if cpu == machine["cpu"] else f" ({cpu})"
        rows.append(
            f"| {WHAT[name]}{elsewhere} | {ms[OURS]:,.0f} | {gain['ort-padded']:.2f}x "
            f"| {gain[best]:.2f}x ({best}) |"
        )
    rows += [
        "",
        f"{machine['cpu']} or the CPU named, one core, float32 unless a row says otherwise, "
        f"onnxruntime {machine['packages']['onnxruntime']}, {machine['date']}. The best peer is "
        f"the fastest of {engines(found)}, each padded, one sequence at a time, and in "
        f"length-sorted buckets of four.{coarse(found)}",
    ]
    return rows


def coarse(found: dict[str, dict[str, Any]]) -> str:
    """A sentence on the engine in 8 bits, behind a space; empty where no result has it."""
    timed = [
        (min(gain for name, gain in r["speedup"].items() if name.startswith(COARSE)), c["error"])
        for r in found.values()
        for c in r["contenders"]
        if c["name"].startswith(COARSE) and c["ms"]
    ]
    if not timed:
        return ""
    gains, errors = zip(*timed, strict=True)
    return (
        f" Beside bf16, CTranslate2 in int8 takes {min(gains):.2f} to {max(gains):.2f} of pitc's "
        f"time, the best of the three ways, at an error of {min(errors):.1e} to {max(errors):.1e} "
        "of the norm."
    )


def engines(found: dict[str, dict[str, Any]]) -> str:
    """The peers that some of the results have, in words."""
    names = {c["name"].rpartition("-")[0] for r in found.values() for c in r["contenders"]}
    *most, last = (what for name, what in ENGINES.items() if name in names)
    return f"{', '.join(most)} and {last}" if most else last


def _sweeps(swept: list[dict[str, Any]]) -> list[str]:
    """The table of run-time zeros: one row per series, one figure per share of zeros."""
    rows = [
        "| zeros known at run time | in % | pitc, ms | over ONNX Runtime | over the best peer |",
        "|---|---|---|---|---|",
    ]
    for series, what in SERIES.items():
        points = [r for r in swept if r["case"]["series"] == series]
        points = [r for r in points if r["case"]["zeros"] > FEW] or points
        if points:
            base, best = zip(*map(verdicts, points), strict=True)
            zeros = _joined(f"{100 * r['case']['zeros']:.0f}" for r in points)
            ms = _joined(_milliseconds(r) for r in points)
            rows.append(f"| {what} | {zeros} | {ms} | {_gains(base)} | {_gains(best)} |")
    few = [(r, verdicts(r)[0]) for r in swept if r["case"]["zeros"] <= FEW]
    rows += [
        "",
        "Gains, and in brackets what was to be reached. The best peer is chosen from ONNX Runtime, "
        "OpenVINO, CSR libraries with their conversion, and live rows or columns gathered by hand.",
    ]
    if few and all(v.gain is not None for _, v in few):
        result, least = min(few, key=lambda pair: pair[1].gain or 0.0)
        rows[-1] += (
            f" With at most {100 * FEW:.0f} % zeros the smallest gain over ONNX Runtime is "
            f"{least.gain:.2f}x ({result['case']['name']})."
        )
    return rows


def _joined(texts: Iterable[str]) -> str:
    return " / ".join(texts)


def _milliseconds(result: dict[str, Any]) -> str:
    (ms,) = [c["ms"] for c in result["contenders"] if c["name"] == OURS]
    return "-" if ms is None else f"{ms:.2f}" if ms < 10 else f"{ms:,.0f}"


def _gains(found: Sequence[Verdict]) -> str:
    gains = _joined("-" if v.gain is None else f"{v.gain:.2f}" for v in found)
    if all(v.target is None for v in found):
        return gains
    return f"{gains} ({_joined('-' if v.target is None else f'{v.target:g}' for v in found)})"


def _serving(found: dict[str, dict[str, Any]]) -> list[str]:
    """Sentences on MiniLM in other libraries, each with the goal in brackets."""
    said = []
    if encode := found.get("sentence-transformers"):
        sizes, gains = (
            _joined(text.format(**row) for row in encode["batches"])
            for text in ("{batch}", "{gain:.2f} ({goal})")
        )
        said.append(
            f"Within sentence-transformers, all-MiniLM-L6-v2 encodes batches of {sizes} texts "
            f"{gains} times faster than on ONNX Runtime ({encode['machine']['cpu']}, one thread)."
        )
    if actors := found.get("ray"):
        said.append(
            f"Two Ray actors embed {actors['texts_per_s']['pitc']:.0f} texts per second, "
            f"{actors['gain']:.2f} ({actors['goal']:g}) times as many as on ONNX Runtime "
            f"({actors['machine']['cpu']}, batches of {actors['case']['batch']})."
        )
    return ["", " ".join(said)] if said else []


def _footprint(compiled: dict[str, Any], result: dict[str, Any]) -> str:
    """One sentence on everything but speed."""
    ratios, rows = result["ratios"], result["footprint"]
    return (
        f"BERT-base compiles in {compiled['wall_s']:.1f} s, a sibling with other weights and half "
        f"the layers in {compiled['sibling']['wall_s']:.1f} s "
        f"({compiled['machine']['cpu']}, two cores). Beside ONNX Runtime "
        f"with the source model, a session loads in {ratios['load_s']:.2f}x the time, the "
        f"memory it takes up to its first batch of 32 x 128 is {ratios['peak_bytes']:.2f}x, the "
        f"files are {ratios['disk_bytes']:.2f}x as large; a second thread makes it "
        f"{rows['pitc']['two_threads']:.2f}x faster (ONNX Runtime: "
        f"{rows['onnxruntime']['two_threads']:.2f}x)."
    )


def worst_block(folder: Path = RESULTS / "worst-case") -> str:
    """What `worst-case` found: a summary, and every row that is beyond a limit."""
    files = sorted(folder.glob("*.json"))
    found = [json.loads(f.read_text("utf-8")) for f in files]
    rows = [(r["case"], row) for r in found for row in r["worst"]]
    times = sorted(row["time"] for _, row in rows)
    models = len({case["name"] for case, _ in rows})
    lines = [
        f"{models} models, {len(rows)} rows of size, padding and option: the compiled model takes "
        f"{times[len(times) // 2]:.2f} of ONNX Runtime's time in the median row, {times[0]:.2f} in "
        f"the best and {times[-1]:.2f} in the worst. Beyond a limit:",
        "",
        "| model | batch x length | `--padding` | ms, ONNX Runtime | time | memory |",
        "|---|---|---|---|---|---|",
    ]
    for case, row in rows:
        if row["time"] > case["most_time"] or row["memory"] > case["most_memory"]:
            size = " x ".join(map(str, row["dims"].values()))
            lines.append(
                f"| {case['model']} | {size}, {row['pattern']} | {row['padding'] or '-'} "
                f"| {row['ms'][SOURCE]:.3g} | {row['time']:.2f} | {row['memory']:.2f} |"
            )
    return "\n".join(lines)


def attention_block(folder: Path = RESULTS / "attention") -> str:
    """The table of attention under masks."""
    files = [folder / f"{name}.json" for name in ATTENTIONS]
    found = {f.stem: json.loads(f.read_text("utf-8")) for f in files if f.exists()}
    lines = [
        "| attention | pairs that are seen | pitc, ms | over ONNX Runtime | over the best peer "
        "| times the limit of the core |",
        "|---|---|---|---|---|---|",
    ]
    for name, result in found.items():
        base, best, *rest = verdicts(result)
        limit = [v for v in rest if v.most]
        cells = [_gains([base]), f"{_gains([best])} {best.over}", _gains(limit) if limit else "-"]
        share = f"{100 * result['workload']['live_share']:.3g} %"
        ms = _milliseconds(result)
        lines.append(f"| {ATTENTIONS[name]} | {share} | {ms} | {' | '.join(cells)} |")
    machines = {r["machine"]["cpu"]: r["machine"]["date"] for r in found.values()}
    peers = {c["name"] for r in found.values() for c in r["contenders"] if c["ms"] is not None}
    lines += [
        "",
        f"{_joined(machines)}, one core, float32, {_joined(dict.fromkeys(machines.values()))}; one "
        "sequence, 12 heads of 64, making lists included. Gains, and in brackets what was to be "
        f"reached. Peers have the same mask: {', '.join(sorted(peers - {OURS}))}.",
    ]
    return "\n".join(lines)


def training_block(folder: Path = RESULTS) -> str:
    """The table of steps of training."""
    files = {name: folder / f"{name}.json" for name in TRAININGS}
    found = {n: json.loads(f.read_text("utf-8")) for n, f in files.items() if f.exists()}
    lines = [
        "| loss and gradients | pitc, ms | over ONNX Runtime, same graph | over torch, padded "
        "| over torch without padding, by hand | times the limit of the core |",
        "|---|---|---|---|---|---|",
    ]
    for name, result in found.items():
        what, asked = TRAININGS[name]
        gain = result["speedup"]
        padded = [gain[n] for n in ("torch-padded", "torch-compiled") if n in gain]
        gains = (gain["ort-padded"], min(padded), gain.get("torch-packed"))
        cells = [_asked(x, y) for x, y in zip(gains, asked, strict=True)]
        ours = next(c["ms"] for c in result["contenders"] if c["name"] == OURS)
        limit = f"{ours / result['limit_ms']:.2f}" if result.get("limit_ms") else "-"
        row = (f"{what} ({_machine(result)})", _milliseconds(result), *cells, limit)
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def conversion_block(file: Path = RESULTS / "conversion.json") -> str:
    """The table of what finding zeros costs."""
    result = json.loads(file.read_text("utf-8"))
    names = "pitc", "scipy-csr", "scipy-bsr", "torch-csr", "torch-bsr"
    lines = [f"| blocks, zeros | {' | '.join(names)} |", "|---|---|---|---|---|---|"]
    for row in result["conversions"]:
        what = f"{row['block'][0]} x {row['block'][1]}, {100 * row['zeros']:.0f} %"
        cells = (f"{row['ms'][n]:.2f}" if n in row["ms"] else "-" for n in names)
        lines.append(f"| {what} | {' | '.join(cells)} |")
    dense = median(row["ms"]["dense product"] for row in result["conversions"])
    read = median(row["ms"]["one read"] for row in result["conversions"])
    rows, columns = result["shape"]
    return "\n".join(
        [
            *lines,
            "",
            f"Milliseconds, {_machine(result)}, one core: a matrix of {rows} x {columns}. The "
            f"dense product of {result['rows']} rows by it takes {dense:.0f} ms in torch, a sum of "
            f"its numbers {read:.2f} ms.",
        ]
    )


def _asked(gain: float | None, asked: float | None) -> str:
    text = "-" if gain is None else f"{gain:.2f}"
    return text if asked is None else f"{text} ({asked:g})"


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    wide = "AVX-512" if "avx512f" in machine["features"] else "AVX2"
    return f"{machine['cpu']}, {wide}"


def updated(text: str, table: str, begin: str = BEGIN, end: str = END) -> str:
    """A page's text with the table put between its marks, by default those of results."""
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    return f"{head}{begin}\n{table}\n{end}{tail}"


if __name__ == "__main__":
    found = results()
    for page, table in ((README, main_block(found)), (PAGE, block(found))):
        page.write_text(updated(page.read_text("utf-8"), table), "utf-8")
    blocks = (worst_block(), WORST), (attention_block(), ATTENTION), (training_block(), TRAINING)
    blocks = (*blocks, (conversion_block(), CONVERSION), (experts_block(), EXPERTS))
    blocks = (*blocks, (amx_block(), AMX))
    for table, marks in blocks:
        PAGE.write_text(updated(PAGE.read_text("utf-8"), table, *marks), "utf-8")

"""Writes README.md's table of figures from the result files: `python -m benchmarks.readme`."""

import json
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS

README = Path(__file__).parent.parent / "README.md"
BEGIN, END = "<!-- results -->", "<!-- /results -->"
COMPILE, FOOTPRINT = "compile-bert", "footprint-bert-32x128-m40"
WHAT = {
    "minilm-64": "all-MiniLM-L6-v2, real text, batches of 64, no flag",
    "bert-32x128-m40": "BERT-base, 32 x 128, mean length 40",
    "bert-16x256-m100": "BERT-base, 16 x 256, mean length 100",
    "bert-8x384-m150": "BERT-base, 8 x 384, mean length 150",
    "opt-8x128-m40": "OPT-125M shapes, 8 x 128, mean length 40, padded left",
    "t5-8x128-m40": "T5-base encoder, 8 x 128, mean length 40",
    "bert-4x128-full": "BERT-base, 4 x 128, no padding",
}


def results(folder: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """All result files of the cases in the table, by case name, in the table's order."""
    files = {name: folder / f"{name}.json" for name in (*WHAT, COMPILE, FOOTPRINT)}
    return {n: json.loads(f.read_text("utf-8")) for n, f in files.items() if f.exists()}


def block(found: dict[str, dict[str, Any]]) -> str:
    """The table as Markdown.

    Args:
        found: Results by case name, as the benchmark program wrote them.
    """
    rows = ["| workload | pitc, ms per batch | ONNX Runtime, padded | best hand trick or library |"]
    rows.append("|---|---|---|---|")
    for name in WHAT:
        result = found[name]
        gain, best = result["speedup"], result["best_peer"]
        ms = {c["name"]: c["ms"] for c in result["contenders"]}
        rows.append(
            f"| {WHAT[name]} | {ms['pitc']:,.0f} | {gain['ort-padded']:.2f}x "
            f"| {gain[best]:.2f}x ({best}) |"
        )
    machine = found["minilm-64"]["machine"]
    packages = machine["packages"]
    rows += [
        "",
        f"Gains over each; {machine['cpu']}, one core, onnxruntime {packages['onnxruntime']}, "
        f"{machine['date']}. The best peer is chosen from ONNX Runtime and OpenVINO, each padded, "
        "one sequence at a time, and in length-sorted buckets of four.",
        "",
        _footprint(found[COMPILE], found[FOOTPRINT]),
    ]
    return "\n".join(rows)


def _footprint(compiled: dict[str, Any], result: dict[str, Any]) -> str:
    """One sentence on everything but speed."""
    ratios, rows = result["ratios"], result["footprint"]
    return (
        f"BERT-base compiles in {compiled['wall_s']:.0f} s. Beside ONNX Runtime with the source "
        f"model, a session loads in {ratios['load_s']:.2f}x the time, the memory it takes up to "
        f"its first batch of 32 x 128 is {ratios['peak_bytes']:.2f}x, the files are "
        f"{ratios['disk_bytes']:.2f}x as large; a second thread makes it "
        f"{rows['pitc']['two_threads']:.2f}x faster (ONNX Runtime: "
        f"{rows['onnxruntime']['two_threads']:.2f}x)."
    )


def updated(text: str, table: str) -> str:
    """README text with the table put between its marks."""
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{table}\n{END}{tail}"


if __name__ == "__main__":
    README.write_text(updated(README.read_text("utf-8"), block(results())), "utf-8")

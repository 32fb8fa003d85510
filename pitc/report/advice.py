"""What a person may try with a model that gains little: who stops it, and what would help."""

from pitc.ir.report import Report
from pitc.ir.summary import Summary

LITTLE = 0.5  # of the work: less than that runs packed or skips zeros

BY_NODE = (
    "If your program does not read output '{name}', leave it out of the exported model. If it does "
    "and its rows have a mask of padding, multiply by the mask before rows are pooled "
    "(docs/padding.md)."
)
BY_ROWS = (
    "Output '{name}' has a row for each row of the input. If rows of padding mean nothing to your "
    "program, name their mask by --padding MASK (docs/padding.md)."
)
BY_ROWS_PADDED = (
    "pitc cannot prove that output '{name}' holds tokens of the mask in --padding {padding}. If it "
    "has another mask, name both with a comma; else give its sizes the names of the mask's sizes "
    "(docs/export.md)."
)
BY_VALUE = "Look at '{node}': its result needs all rows, including padded ones."
REFUSED = "pitc explain --refused lists the nodes; docs/errors.md explains each code."
PAGES = "docs/case.md says which models have work to skip, and how much."


def advice(report: Report, summary: Summary) -> list[str]:
    """What to try, most telling first; empty where the model gains enough, or has no known work.

    Args:
        report: What was compiled.
        summary: The same in numbers.
    """
    if not summary.all.flops or summary.packed.share + summary.sparse.share >= LITTLE:
        return []
    found = []
    reader = report.whole_reader
    if summary.reason is not None:
        text = summary.reason.text
        found.append(f"{text[:1].upper()}{text[1:]}.")
        if reader is None or reader.text != summary.reason.text:
            found.append(REFUSED)
        elif reader.outputs and reader.node:
            found.append(BY_NODE.format(name=reader.outputs[0]))
        elif reader.outputs:
            rows = BY_ROWS if report.padding is None else BY_ROWS_PADDED
            found.append(rows.format(name=reader.outputs[0], padding=report.padding))
        elif reader.node:
            found.append(BY_VALUE.format(node=reader.node))
    return [*found, PAGES]

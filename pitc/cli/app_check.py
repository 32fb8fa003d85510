"""`pitc run`, `verify` and `bench`: their options. What they do is in modules of these names."""

from pathlib import Path
from typing import Annotated

import typer

from pitc.cli.options import (
    INPUTS,
    OUTPUT,
    CustomOps,
    Either,
    Inputs,
    Json,
    Padding,
    Quiet,
    Seed,
    Shape,
    Target,
    Tolerance,
    register,
)


def run(
    model: Either,
    input: Inputs = None,
    shape: Shape = None,
    seed: Seed = 0,
    padding: Padding = None,
    custom_ops: CustomOps = None,
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npz", help="Write the outputs.", rich_help_panel=OUTPUT),
    ] = None,
    quiet: Quiet = None,
    json: Json = False,
) -> None:
    """Run a model once, on given or random inputs."""
    from pitc.cli import run as action

    register(custom_ops)
    action.run_model(model, input or [], shape or [], seed, padding, save, quiet=quiet, json=json)


def verify(
    model: Either,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="MODEL.onnx",
            help="Reference for an artifact; default: the source graph inside it.",
        ),
    ] = None,
    input: Inputs = None,
    padding: Padding = None,
    target: Target = None,
    facts: Annotated[bool, typer.Option("--facts", help="Also audit every proven fact.")] = False,
    custom_ops: CustomOps = None,
    tolerance: Tolerance = None,
    reduce: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.onnx",
            help="On failure, write the smallest part of the model that still fails, "
            "and its inputs to OUT.npz.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    shape: Shape = None,
    seed: Seed = 0,
    quiet: Quiet = None,
    json: Json = False,
) -> None:
    """Compare the compiled model with ONNX Runtime on random and padded inputs."""
    from pitc.cli import verify as action

    register(custom_ops)
    action.verify_model(
        model,
        against,
        inputs=input or [],
        padding=padding,
        target=target,
        facts=facts,
        tolerance=tolerance,
        reduce=reduce,
        shapes=shape or [],
        seed=seed,
        quiet=quiet,
        json=json,
    )


def bench(
    model: Either,
    input: Inputs = None,
    padding: Padding = None,
    target: Target = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Live tokens of each sequence; the mask is padded on the right.",
            rich_help_panel=INPUTS,
        ),
    ] = None,
    mean: Annotated[
        int | None,
        typer.Option(
            min=1, help="Mean of random lengths; one sequence is full.", rich_help_panel=INPUTS
        ),
    ] = None,
    shape: Shape = None,
    seed: Seed = 0,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PEER",
            help="Only this peer: onnxruntime or openvino; may be repeated. "
            "Default: every installed one.",
            autocompletion=lambda: ["onnxruntime", "openvino"],
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Number of timed rounds.")] = 20,
    seconds: Annotated[
        float, typer.Option(min=0, help="No round starts after this much time.")
    ] = 60.0,
    threads: Annotated[
        int,
        typer.Option(
            min=1, max=1024, metavar="N", help="Threads that share one run, of every peer."
        ),
    ] = 1,
    streams: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1024,
            metavar="S",
            help="Measure throughput: S streams send one request after the other, to one session.",
        ),
    ] = None,
    custom_ops: CustomOps = None,
    tolerance: Tolerance = None,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help="Also show the decision, the predicted and the measured time of each sparse "
            "contraction, and its time when it is dense.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    trace_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.jsonl",
            help="Keep these decisions for pitc explain; implies --trace.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png", help="Draw the result; needs matplotlib.", rich_help_panel=OUTPUT
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write a report with times of nodes before and after, and memory, "
            "to a .json or .html file.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    quiet: Quiet = None,
    json: Json = False,
) -> None:
    """Race the compiled model against ONNX Runtime and other installed peers.

    Answers are compared first. Then: interleaved rounds whose order rotates, on one pinned thread
    in CPU time; with --threads or --streams in wall time.
    """
    from pitc.cli import bench as action

    register(custom_ops)
    action.bench_model(
        model,
        inputs=input or [],
        padding=padding,
        target=target,
        lengths=lengths,
        mean=mean,
        shapes=shape or [],
        seed=seed,
        against=against or [],
        rounds=rounds,
        seconds=seconds,
        threads=threads,
        streams=streams,
        tolerance=tolerance,
        trace=trace or trace_file is not None,
        trace_file=trace_file,
        plot=plot,
        report=report,
        quiet=quiet,
        json=json,
    )

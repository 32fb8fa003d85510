"""The options of each command: a dataclass whose docstring is the command's help.

What several commands share is declared once, at the top. Values are made by the command line
alone: defaults of fields are what it is told. Imports typer only.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Argument, Option

from pitc.cli.command import inputs_option, output_option, sparsity_option


def _register(libraries: list[Path] | None) -> list[Path] | None:
    """Register libraries of operators with all sessions of the command."""
    if libraries:
        from pitc.ir.custom_ops import register_custom_ops

        for library in libraries:
            register_custom_ops(library)
    return libraries


Either = Annotated[
    Path, Argument(metavar="MODEL", help="An ONNX model, or an artifact (a folder *.pitc).")
]
Padding = Annotated[
    str | None,
    sparsity_option(
        metavar="MASK",
        help="Tokens that do not exist: those where the input MASK is 0 (!MASK: is not 0; IDS:1: "
        "token number 1). Several masks with commas. Outputs with a row per token are 0 there.",
    ),
]
Target = Annotated[
    str | None,
    sparsity_option(
        metavar="TARGET",
        help="auto (the default), cpu (AVX-512 and AVX2 kernels), cpu:v4, cpu:v3; cuda (every "
        "GPU architecture), cuda:sm_80,sm_90; or several: cpu,cuda.",
        autocompletion=lambda: ["auto", "cpu", "cpu:v4", "cpu:v3", "cuda", "cpu,cuda"],
    ),
]
Precision = Annotated[
    str | None,
    sparsity_option(
        metavar="TYPE",
        help="float32 (the default), or bf16: products by constant matrices round both operands to "
        "bfloat16, and add up in float32, on CPUs that multiply such numbers (AVX512-BF16).",
        autocompletion=lambda: ["float32", "bf16"],
    ),
]
Json = Annotated[bool, output_option("--json", help="Print one JSON object instead of text.")]
Quiet = Annotated[bool | None, output_option("--quiet", "-q", help="Show no progress.")]
ReportFile = Annotated[
    Path | None,
    output_option(
        "--report",
        metavar="FILE",
        help="Write a report with all decisions and reasons to a .json or .html file.",
    ),
]
Suggest = Annotated[
    bool,
    sparsity_option(
        "--suggest/--no-suggest",
        help="If little is skipped, suggest what would help: the analysis tries padding masks.",
    ),
]
Inputs = Annotated[
    list[str] | None,
    inputs_option(
        "--input",
        metavar="FILE",
        help="A .npz file, or NAME=FILE.npy; may be repeated. Other inputs are random.",
    ),
]
Shape = Annotated[
    list[str] | None,
    inputs_option(
        metavar="NAME=2x16",
        help="Shape of an input, or size of a named dimension (batch=2). May be repeated.",
    ),
]
Tolerance = Annotated[
    float | None,
    Option(
        help="Largest norm-wise relative error of floats; default: by the model's arithmetic, 1e-5 "
        "for float32."
    ),
]
CustomOps = Annotated[
    list[Path] | None,
    inputs_option(
        metavar="LIBRARY",
        help="Library with the model's own operators (OrtCustomOps); may be repeated.",
        callback=_register,
    ),
]
Seed = Annotated[int, inputs_option(help="Seed of the random inputs.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """The last options of every command."""

    quiet: Quiet = None
    json: Json = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Compile(Printed):
    r"""Compile a model to an artifact, a folder that ONNX Runtime loads.

    Defaults come from PITC_* variables, then from pitc.toml or \[tool.pitc] of pyproject.toml.
    """

    example: ClassVar = "pitc compile model.onnx -o model.pitc --padding attention_mask"

    model: Path | None = Argument(None, metavar="MODEL.onnx", help="The ONNX model.")
    output: Path | None = Option(
        None,
        "--output",
        "-o",
        metavar="DIR",
        help="The artifact to make; default: MODEL.pitc here.",
    )
    target: Target = None
    precision: Precision = None
    padding: Padding = None
    tiles: Path | None = sparsity_option(
        None,
        metavar="FILE",
        help="Tile table with the costs of sparse contractions; "
        "default: pitc tune's of this machine, else the shipped one.",
    )
    force: bool = Option(False, "--force", help="Replace an existing artifact.")
    dump_ir: Path | None = output_option(
        None, metavar="DIR", help="Write the graph after each stage, and the sources of kernels."
    )
    custom_ops: CustomOps = None
    check: bool = output_option(
        False, "--check", help="Check the graph after each stage; a violation is a bug in pitc."
    )
    no_cache: bool = Option(
        False, "--no-cache", help="Compile every kernel, and keep none: see pitc cache --help."
    )
    report: ReportFile = None
    suggest: Suggest = True
    dry_run: bool = Option(
        False, "--dry-run", help="Print all decisions; build no kernel and no artifact."
    )
    stop_after: str | None = output_option(
        None,
        metavar="STAGE",
        help="A dry run that ends after normalise, facts, regions or lower; "
        "--dump-ir writes the graphs up to there.",
        autocompletion=lambda: ["normalise", "facts", "regions", "lower"],
    )
    print_config: bool = Option(
        False,
        "--print-config",
        help="Print every option with its origin, as a pitc.toml, and compile nothing.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run(Printed):
    """Run a model once, on given or random inputs."""

    example: ClassVar = "pitc run model.pitc --input batch.npz --save out.npz"

    model: Either
    input: Inputs = None
    shape: Shape = None
    seed: Seed = 0
    padding: Padding = None
    custom_ops: CustomOps = None
    save: Path | None = output_option(None, metavar="FILE.npz", help="Write the outputs.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verify(Printed):
    """Compare the compiled model with ONNX Runtime on random and padded inputs."""

    example: ClassVar = "pitc verify model.onnx --padding attention_mask --facts"

    model: Either
    against: Path | None = Option(
        None,
        metavar="MODEL.onnx",
        help="Reference for an artifact; default: the source graph inside it.",
    )
    input: Inputs = None
    padding: Padding = None
    target: Target = None
    precision: Precision = None
    facts: bool = Option(False, "--facts", help="Also audit every proven fact.")
    custom_ops: CustomOps = None
    tolerance: Tolerance = None
    reduce: Path | None = output_option(
        None,
        metavar="OUT.onnx",
        help="On failure, write the smallest part of the model that still fails, "
        "and its inputs to OUT.npz.",
    )
    shape: Shape = None
    seed: Seed = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench(Printed):
    """Race the compiled model against ONNX Runtime and other installed peers.

    Answers are compared first. Then: interleaved rounds whose order rotates, on one pinned thread
    in CPU time; with --threads or --streams in wall time.
    """

    example: ClassVar = "pitc bench model.onnx --padding attention_mask --lengths 9,40,128"

    model: Either
    input: Inputs = None
    padding: Padding = None
    target: Target = None
    precision: Precision = None
    lengths: str | None = inputs_option(
        None,
        metavar="N,N,...",
        help="Live tokens of each sequence; the mask is padded on the right.",
    )
    mean: int | None = inputs_option(
        None, min=1, help="Mean of random lengths; one sequence is full."
    )
    shape: Shape = None
    seed: Seed = 0
    against: list[str] | None = Option(
        None,
        metavar="PEER",
        help="Only this peer: onnxruntime or openvino; may be repeated. "
        "Default: every installed one.",
        autocompletion=lambda: ["onnxruntime", "openvino"],
    )
    rounds: int = Option(20, min=1, help="Number of timed rounds.")
    seconds: float = Option(60.0, min=0, help="No round starts after this much time.")
    threads: int = Option(
        1, min=1, max=1024, metavar="N", help="Threads that share one run, of every peer."
    )
    streams: int | None = Option(
        None,
        min=1,
        max=1024,
        metavar="S",
        help="Measure throughput: S streams send one request after the other, to one session.",
    )
    custom_ops: CustomOps = None
    tolerance: Tolerance = None
    trace: bool = output_option(
        False,
        "--trace",
        help="Also show the decision, the predicted and the measured time of each sparse "
        "contraction, and its time when it is dense.",
    )
    trace_file: Path | None = output_option(
        None, metavar="FILE.jsonl", help="Keep these decisions for pitc explain; implies --trace."
    )
    plot: Path | None = output_option(
        None, metavar="FILE.png", help="Draw the result; needs matplotlib."
    )
    report: Path | None = output_option(
        None,
        metavar="FILE",
        help="Write a report with times of nodes before and after, and memory, "
        "to a .json or .html file.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Explain(Printed):
    """Show how much of the work is skipped, what stops the rest, and how each node runs."""

    example: ClassVar = "pitc explain model.onnx --padding attention_mask --node 'MatMul*'"

    model: Either
    padding: Padding = None
    target: Target = None
    precision: Precision = None
    node: str | None = Option(
        None,
        metavar="PATTERN",
        help="Only nodes whose name or operator matches, e.g. 'MatMul*'.",
    )
    whole: bool = Option(
        False,
        "--all",
        help="Also show nodes that only compute shapes or move data; names in full.",
    )
    refused: bool = Option(False, "--refused", help="Only nodes with a refusal.")
    facts: bool = Option(
        False,
        "--facts",
        help="Below each node: its facts, engine and tiles, its module and source line.",
    )
    suggest: Suggest = True
    trace: Path | None = Option(
        None,
        metavar="FILE.jsonl",
        help="Also show what sparse contractions decided when the model ran: "
        "a file made by PITC_TRACE or pitc bench.",
    )
    report: ReportFile = None
    plot: Path | None = output_option(
        None, metavar="FILE.png", help="Draw time over density of the decisions; needs matplotlib."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect(Printed):
    """Show the state and the content of an artifact, or the content of a model.

    Of an ONNX model: inputs, outputs, operators, weights. Nothing is compiled.
    """

    example: ClassVar = "pitc inspect model.pitc --ep"

    file: Path | None = Argument(
        None, metavar="FILE", help="An ONNX model, or an artifact (a folder *.pitc)."
    )
    ep: bool = Option(
        False,
        "--ep",
        help="For an artifact: also load it, and show which execution provider runs which nodes.",
    )
    tiles: bool = Option(False, "--tiles", help="Show the tile table in use instead of a file.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Export(Printed):
    """Export a checkpoint of transformers to ONNX, as `pitc.from_pretrained` does.

    It needs torch, onnxscript and transformers, and downloads nothing. `pitc compile` takes the
    model.
    """

    example: ClassVar = "pitc export my-checkpoint -o model.onnx"

    folder: Path = Argument(
        metavar="FOLDER", help="A local checkpoint of transformers: config.json and weights."
    )
    output: Path | None = Option(
        None,
        "--output",
        "-o",
        metavar="FILE.onnx",
        help="The model to make; default: FOLDER.onnx here.",
    )
    force: bool = Option(False, "--force", help="Replace an existing file.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient(Printed):
    """Make a model that computes a loss and its gradients, as `pitc.gradient` does.

    Weights become inputs, with their numbers as defaults; the gradient of W is the output grad.W.
    """

    example: ClassVar = "pitc gradient model.onnx --loss cross_entropy:logits"

    model: Path = Argument(metavar="MODEL.onnx", help="The ONNX model.")
    loss: str = Option(
        metavar="LOSS",
        help="A value of one element; or KIND:SCORES, a loss to add: cross_entropy, nll, mse, bce "
        "or bce_with_logits of the value SCORES.",
    )
    wrt: list[str] | None = Option(
        None,
        metavar="NAME",
        help="An input or weight to differentiate by, or a pattern (encoder.*); may be repeated. "
        "Default: all weights that the loss depends on.",
    )
    labels: str = Option("labels", metavar="NAME", help="The new input of a loss that is added.")
    ignore_index: int = Option(
        -100, metavar="LABEL", help="Of cross_entropy and nll: labels that do not count."
    )
    mask: str | None = Option(
        None,
        metavar="NAME",
        help="An input that is 0 for what does not count: labels, or elements.",
    )
    masks: list[str] | None = Option(
        None,
        "--mask-weight",
        metavar="NAME",
        help="A weight that a new input mask.NAME prunes, or a pattern; may be repeated.",
    )
    keep: list[str] | None = Option(
        None, metavar="NAME", help="Another value that stays an output; may be repeated."
    )
    output: Path | None = Option(
        None,
        "--output",
        "-o",
        metavar="FILE.onnx",
        help="The model to make; default: MODEL.grad.onnx here.",
    )
    force: bool = Option(False, "--force", help="Replace an existing file.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tune(Printed):
    """Measure what sparse contractions cost on this machine.

    Takes minutes, on one core. Ctrl-C stops it; the next start continues from there.
    """

    example: ClassVar = "pitc tune --quick"

    level: str | None = Option(
        None,
        metavar="LEVEL",
        help="CPU level of the kernels: v4, v3, or v4_amx, those of --precision bf16; default: v4 "
        "or v3, whichever runs here.",
        autocompletion=lambda: ["v4_amx", "v4", "v3"],
    )
    quick: bool = Option(False, "--quick", help="Measure fewer points, in about a minute.")
    restart: bool = Option(
        False, "--restart", help="Discard the measurements of an interrupted tuning."
    )
    tiles: Path | None = output_option(
        None,
        metavar="FILE",
        help="Tile table to make or change; default: the user's own, in the cache folder.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInfo(Printed):
    """Show where compiled kernels are kept, how many, and how much room they take."""

    example: ClassVar = "pitc cache info --json"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheClear(Printed):
    """Delete all compiled kernels; the next compilation builds them again."""

    example: ClassVar = "pitc cache clear"


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor(Printed):
    """Check this machine and installation."""

    example: ClassVar = "pitc doctor"

"""What a report may tell beside what the compiler did: how it was made, and what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pitc.measure.bench import Race
from pitc.measure.profile import Profile
from pitc.measure.trace import Contraction, Decision
from pitc.measure.trace_channels import Convolution
from pitc.measure.trace_groups import GroupedProduct
from pitc.measure.trace_pairs import Attention


@dataclass(frozen=True, slots=True)
class Evidence:
    """All of it may be missing.

    Args:
        command: What the user typed.
        versions: Of what made the artifact, where it is one.
        timed: What was timed, in one line.
        live: Live and all tokens of the inputs, where a mask is known.
        race: Times of runs.
        profiles: Times of nodes: of ONNX Runtime on the source graph, and of the compiled model.
        memory: Peak bytes of each, by name of the contender.
        decisions: What each sparse contraction decided, in the order of a trace.
        contractions: The same, summed up; None where there is no trace.
        convolutions: What gated convolutions decided.
        attentions: What attention under masks read.
        grouped: Which matrices grouped products read.
    """

    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    timed: str = ""
    live: tuple[int, int] | None = None
    race: Race | None = None
    profiles: tuple[Profile, Profile] | None = None
    memory: Mapping[str, int] = field(default_factory=dict)
    decisions: Sequence[Decision] = ()
    contractions: Sequence[Contraction] | None = None
    convolutions: Sequence[Convolution] = ()
    attentions: Sequence[Attention] = ()
    grouped: Sequence[GroupedProduct] = ()

"""Targets as users write them."""

import pytest

from pitc.errors import UsageError
from pitc.ir.cuda_target import CUDA_ARCHS
from pitc.options import Level, Targets, parse_target

ALL = tuple(CUDA_ARCHS)
BOTH: tuple[Level, ...] = ("v4", "v3")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("auto", Targets(("cpu",), BOTH, ())),
        ("cpu", Targets(("cpu",), BOTH, ())),
        ("cpu:v3", Targets(("cpu",), ("v3",), ())),
        ("cuda", Targets(("cuda",), (), ALL)),
        ("cuda:sm_90", Targets(("cuda",), (), ("sm_90",))),
        ("cuda:sm_90,sm_80", Targets(("cuda",), (), ("sm_80", "sm_90"))),
        ("cpu,cuda", Targets(("cpu", "cuda"), BOTH, ALL)),
        ("cuda:sm_80,sm_100,cpu:v4", Targets(("cuda", "cpu"), ("v4",), ("sm_80", "sm_100"))),
    ],
)
def test_reads(text: str, wanted: Targets) -> None:
    assert parse_target(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", "gpu", "cpu:", "cpu:v5", "cuda:", "cuda:sm_10", "sm_80", "cpu,sm_80", "auto,cuda"),
        *("cpu,cpu", "cuda,cuda", "cuda:sm_80,sm_80", "cuda,sm_80", "auto:v4", "cpu,", " cpu"),
    ],
)
def test_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="is not one of auto, cpu"):
        parse_target(text)


def test_names_the_architectures_that_there_are() -> None:
    with pytest.raises(UsageError) as error:
        parse_target("cuda:sm_70")
    assert error.value.hint is not None and "sm_80, sm_86, sm_89, sm_90" in error.value.hint

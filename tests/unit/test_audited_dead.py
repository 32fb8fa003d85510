"""The facts of `test_dead_regions` and `test_dead_slack` hold in ONNX Runtime."""

import pytest

from tests.fact_check import proven
from tests.fact_texts import text_model
from tests.unit import test_dead_regions, test_dead_slack

BODIES = {
    *test_dead_regions.DEAD,
    *test_dead_slack.DEAD,
    *test_dead_slack.SLACK,
    *test_dead_slack.ROOM,
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("body", sorted(BODIES))
def test_such_facts_hold(body: str) -> None:
    proven(text_model(body))

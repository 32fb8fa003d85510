"""Pages whose examples need other libraries: every one runs, in its order, in one process."""

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


def run_page(page: str, first: int = 0) -> dict[str, object]:
    """Run the examples of a page, from a number on; what they have named."""
    text = (ROOT / page).read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) > first
    names: dict[str, object] = {}
    for code in blocks[first:]:
        exec(compile(code, page, "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _folders(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, place in (("export", "export"), ("minilm-export", "export"), ("checkpoint",) * 2):
        (tmp_path / name).symlink_to(source.with_name(place))
    monkeypatch.chdir(tmp_path)


def test_integrations() -> None:
    names = run_page("docs/integrations.md")
    np.testing.assert_allclose(names["embeddings"], names["rows"], rtol=0, atol=1e-6)


def test_readme() -> None:
    names = run_page("README.md", first=1)
    encoder = names["encoder"]
    assert encoder.encode(["one text", "and another"]).shape == (2, 384)  # type: ignore[attr-defined]


def test_export() -> None:
    run_page("docs/export.md")
    assert Path("tagger.pitc", "model.onnx").is_file()

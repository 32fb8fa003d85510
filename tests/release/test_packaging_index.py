"""What pip asks an index for when our wheels are installed: nothing that has a name of ours."""

import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from pitc.version import __version__
from tests.released import Bare, one, released, requirements
from tools.parts import COMPILER

pytestmark = pytest.mark.thorough  # both wheels are built

STRANGER = f"pitc_runtime-{__version__}-py3-none-any.whl"


class Index(ThreadingHTTPServer):
    """An index that offers a package of someone else under a name of ours, and notes all requests.

    Args:
        folder: Where its pages lie.
    """

    def __init__(self, folder: Path) -> None:
        page = folder / "pitc-runtime"
        page.mkdir(parents=True)
        (page / "index.html").write_text(f"<a href={STRANGER}>{STRANGER}</a>")
        about = f"Metadata-Version: 2.1\nName: pitc-runtime\nVersion: {__version__}\n"
        with zipfile.ZipFile(page / STRANGER, "w") as wheel:
            name = f"pitc_runtime-{__version__}.dist-info"
            wheel.writestr("stranger.py", "")
            wheel.writestr(f"{name}/METADATA", about)
            wheel.writestr(f"{name}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{name}/RECORD", "")
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))

    @property
    def options(self) -> list[str]:
        """What pip is told."""
        return ["--index-url", f"http://127.0.0.1:{self.server_port}", "--retries", "0"]


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        assert isinstance(self.server, Index)
        self.server.asked.append(self.path)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with Index(tmp_path / "pages") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_both_wheels_ask_no_index_for_our_names(index: Index, tmp_path: Path) -> None:
    bare = Bare(tmp_path / "bare", requirements(COMPILER))
    bare.pip("install", *index.options, *released().glob("*.whl"))
    assert not [path for path in index.asked if "pitc" in path]
    assert "pitc" in bare.run("-c", "import pitc; print(pitc.compile.__module__)")


def test_one_wheel_alone_takes_nothing_from_an_index(index: Index, tmp_path: Path) -> None:
    """pip does ask then; no index takes a version with the label that it asks for."""
    bare = Bare(tmp_path / "bare", requirements(COMPILER))
    compiler = one(released(), "pitc-*.whl")
    with pytest.raises(AssertionError, match=r"No matching distribution found for pitc-runtime=="):
        bare.pip("install", *index.options, compiler)
    assert index.asked
    assert not list(bare.site.glob("stranger.py"))
    # the same index does give it to who asks without the label
    bare.pip("install", *index.options, f"pitc-runtime=={__version__}")
    assert list(bare.site.glob("stranger.py"))

"""What the site has and the folder has not: the reference of the command line, notebooks as pages.

Named in `mkdocs.yml`; nothing else imports it.
"""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+(?!docs/)[^)]+)\)")
_MARKUP = re.compile(r"\[/?(?:bold|green|red|yellow)\]")


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add `cli.md`, every command with its options, and a page for each notebook."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "cli.md", content=command_line()))
    for notebook in sorted(Path(config.docs_dir).glob("notebooks/*.ipynb")):
        page = f"notebooks/{notebook.stem}.md"
        files.append(File.generated(config, page, content=notebook_page(notebook)))
    return files


def notebook_page(path: Path) -> str:
    """A notebook in Markdown: texts as they are, code in fences, no outputs."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    texts = [("".join(cell["source"]), cell["cell_type"] == "code") for cell in cells]
    where = f"The notebook itself is `docs/notebooks/{path.name}`."
    parts = [f"```python\n{text}\n```" if is_code else text for text, is_code in texts]
    return "\n\n".join([*parts, where])


def command_line() -> str:
    """The page of the command line, in Markdown."""
    import typer.cli

    from pitc.cli.app import app

    command = typer.main.get_command(app)
    context = command.make_context("pitc", [], resilient_parsing=True)
    text = typer.cli.get_docs_for_click(obj=command, ctx=context, name="pitc", title="Command line")
    return _MARKUP.sub("", text)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The site has docs/ alone: a link to another file of the checkout names it.

    [host](../examples/host/host.cc) -> host (`examples/host/host.cc`)
    """

    def named(match: re.Match[str]) -> str:
        text, path = match[1], match[2].replace("../", "")
        return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"

    return _OUTSIDE.sub(named, markdown)

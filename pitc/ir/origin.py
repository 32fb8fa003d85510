"""Where a node comes from in the program that was exported: what torch's exporter writes into the
metadata of nodes.

    pkg.torch.onnx.name_scopes    ['', 'encoder', 'encoder.layer.0', 'linear_3']
        ->  module encoder.layer.0
    pkg.torch.onnx.stack_trace    File "/home/me/model.py", line 12, in forward
                                      return self.fc(x)
        ->  line model.py:12 in forward: return self.fc(x)

It is text of a file that anyone may have written: a reader bounds and cleans it, shows it, and
decides nothing by it.
"""

import re
from collections.abc import Mapping

SCOPES = "pkg.torch.onnx.name_scopes"
TRACE = "pkg.torch.onnx.stack_trace"
MOST_READ, MOST_MODULE, MOST_LINE = 1 << 14, 128, 160  # characters

_QUOTED = re.compile(r"'([^'\n]*)'|\"([^\"\n]*)\"")
_FRAME = re.compile(r'File "([^"\n]*)", line (\d{1,9})(?:, in ([^\n]*))?(?:\n([^\n]*))?')
_LIBRARY = re.compile(r"[/\\]torch[/\\](nn|_|fx|export|utils)")


def module_of(metadata: Mapping[str, str]) -> str:
    """The path of the module that called the operator; empty where it is not told, or is the model
    itself. The list ends with the name of the operator.
    """
    text = metadata.get(SCOPES, "")[:MOST_READ]
    scopes = [one or other for one, other in _QUOTED.findall(text)]
    return _cleaned(scopes[-2], MOST_MODULE) if len(scopes) > 1 else ""


def line_of(metadata: Mapping[str, str]) -> str:
    """The source line that called the operator: the innermost one that is not torch's; empty where
    it is not told. Of the file's path the name is left.
    """
    frames = _FRAME.findall(metadata.get(TRACE, "")[-MOST_READ:])
    own = [frame for frame in frames if not _LIBRARY.search(frame[0])] or frames
    if not own:
        return ""
    path, number, function, code = own[-1]
    name = re.split(r"[/\\]", path)[-1]
    where = f"{name}:{number}" + (f" in {function.strip()}" if function.strip() else "")
    code = code.strip()
    told = f"{where}: {code}" if code and not code.startswith("File ") else where
    return _cleaned(told, MOST_LINE)


def _cleaned(text: str, most: int) -> str:
    """Printable text of one line and of bounded length."""
    plain = "".join(c if c.isprintable() else " " for c in text[: 4 * most])
    plain = " ".join(plain.split())
    return plain if len(plain) <= most else f"{plain[: most - 2]}.."

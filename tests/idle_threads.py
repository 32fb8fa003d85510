"""Threads of ONNX Runtime sessions sleep when they have no work.

By default they spin for a while first, on the chance that more work comes. Small models gain
nothing from that, and several test processes share the cores. What a session computes does not
depend on it.
"""

from functools import wraps
from typing import Any

import onnxruntime

ENTRY = "session.intra_op.allow_spinning"


def install() -> None:
    """Sessions that this process makes do not spin, unless their options say that they do."""
    make = onnxruntime.InferenceSession.__init__

    @wraps(make)
    def made(
        self: onnxruntime.InferenceSession,
        path_or_bytes: Any,
        sess_options: Any = None,
        *args: Any,
        **named: Any,
    ) -> None:
        options = onnxruntime.SessionOptions() if sess_options is None else sess_options
        if not _has_entry(options):
            options.add_session_config_entry(ENTRY, "0")
        make(self, path_or_bytes, options, *args, **named)

    vars(onnxruntime)["InferenceSession"].__init__ = made


def _has_entry(options: Any) -> bool:
    try:
        options.get_session_config_entry(ENTRY)
    except RuntimeError:
        return False
    return True

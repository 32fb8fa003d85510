"""weights.bin: the large tensors of both graphs, each distinct one once, aligned for mapping."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from pitc.artifact.manifest import WEIGHTS, FileRecord
from pitc.ir.digest import Digest

#: Smaller tensors stay in the model file, where shape inference can see them.
INLINE_BYTES = 1024
#: Tensors of this size start on a memory page, smaller ones on a cache line.
PAGE_FROM_BYTES = 64 * 1024
PAGE_BYTES = 4096
LINE_BYTES = 64
SAMPLED = 1024  # bytes of a tensor by which it is looked for among those before it
COMPARED = 1 << 16  # bytes that are compared at a time


class WeightFile:
    """A weights file that is being written, one tensor after the other.

    Args:
        folder: The folder that gets `weights.bin`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = (folder / WEIGHTS).open("x+b")
        self._digest = Digest()
        self._hashing = ThreadPoolExecutor(1)  # beside writing: both let go of the interpreter
        self._hashed: Future[None] | None = None
        self._bytes = 0
        self._places: dict[tuple[int, bytes], list[int]] = {}  # of what looks alike
        self._known: dict[int, tuple[Any, int]] = {}  # by identity; the tensor is kept alive
        self._stopped = False

    def __enter__(self) -> "WeightFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._hashing.shutdown()
        self._file.close()

    def record(self) -> FileRecord:
        """Size and checksum of what was written so far."""
        self._wait()
        return FileRecord(bytes=self._bytes, sha256=self._digest.hexdigest())

    @contextmanager
    def externalising(self, models: Sequence[ir.Model]) -> Iterator[None]:
        """`externalise` models, in order, in a thread beside the block, which leaves them alone.

        When the block raises, no further tensor is written. What the thread raises comes first: a
        disk that is full stops others, too.
        """

        def write() -> None:
            for model in models:
                self.externalise(model)

        with ThreadPoolExecutor(1) as beside:
            written = beside.submit(write)
            try:
                yield
            except BaseException:
                self._stopped = True
                raise
            finally:
                written.result()

    def externalise(self, model: ir.Model) -> None:
        """Move the large initializers of all graphs of a model into this file.

        Every other tensor that lies in a foreign file is read into the model. The model is changed
        in place; its tensors are not, so they may be shared with other models.
        """
        for graph in model.graphs():
            for value in graph.initializers.values():
                if self._stopped:
                    return
                if value.const_value is not None:
                    value.const_value = self._place(value.const_value)
        scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
        for nodes in scopes:
            for node in ir.traversal.RecursiveGraphIterator(nodes):
                _inline_attributes(node)

    def _place(self, tensor: Any) -> Any:
        if tensor.dtype == ir.DataType.STRING or tensor.nbytes < INLINE_BYTES:
            return _in_memory(tensor)
        if id(tensor) not in self._known:
            self._known[id(tensor)] = tensor, self._offset(_content(tensor))
        return ir.ExternalTensor(
            WEIGHTS,
            self._known[id(tensor)][1],
            tensor.nbytes,
            tensor.dtype,
            shape=tensor.shape,
            name=tensor.name,
            doc_string=tensor.doc_string,
            metadata_props=dict(tensor.metadata_props),
            base_dir=self._folder,
        )

    def _offset(self, data: memoryview) -> int:
        """Where these bytes lie; they are written unless they were before."""
        step = max(1, data.nbytes // SAMPLED) | 1  # odd: not one and the same byte of each number
        some = data[::step]
        places = self._places.setdefault((data.nbytes, bytes(some)), [])
        for place in places:
            if self._holds(place, data):
                return place
        start = PAGE_BYTES if data.nbytes >= PAGE_FROM_BYTES else LINE_BYTES
        self._write(memoryview(bytes(-self._bytes % start)))
        places.append(self._bytes)
        self._write(data)
        return places[-1]

    def _holds(self, place: int, data: memoryview) -> bool:
        """Whether these bytes were written there."""
        self._file.flush()
        for at in range(0, data.nbytes, COMPARED):
            part = data[at : at + COMPARED]
            if os.pread(self._file.fileno(), part.nbytes, place + at) != bytes(part):
                return False
        return True

    def _write(self, data: memoryview) -> None:
        self._wait()
        self._hashed = self._hashing.submit(self._digest.update, data)
        self._file.write(data)
        self._bytes += data.nbytes

    def _wait(self) -> None:
        """Until all that was written is hashed."""
        if self._hashed is not None:
            self._hashed.result()


def _content(tensor: Any) -> memoryview:
    """The bytes of a tensor as ONNX stores them, without a copy where its memory has that form."""
    if tensor.dtype.bitwidth % 8 == 0:
        array = np.ascontiguousarray(tensor.numpy())
        if array.dtype.byteorder != ">":
            return array.reshape(-1).view(np.uint8).data
    return memoryview(tensor.tobytes())


def _in_memory(tensor: Any) -> Any:
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    return ir.Tensor(
        np.array(tensor.numpy()),
        dtype=tensor.dtype,
        shape=tensor.shape,
        name=tensor.name,
        doc_string=tensor.doc_string,
        metadata_props=dict(tensor.metadata_props),
    )


def _inline_attributes(node: ir.Node) -> None:
    for name, attr in list(node.attributes.items()):
        if attr.is_ref():
            continue
        if attr.type == ir.AttributeType.TENSOR and isinstance(attr.value, ir.ExternalTensor):
            node.attributes[name] = ir.AttrTensor(name, _in_memory(attr.value))
        elif attr.type == ir.AttributeType.TENSORS:
            node.attributes[name] = ir.AttrTensors(name, [_in_memory(t) for t in attr.value])

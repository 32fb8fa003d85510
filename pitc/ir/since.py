"""What came with which set of ONNX's standard operators: who needs it asks by name.

Models keep the set that they import (`docs/adr/0030-models-keep-their-operator-set.md`). How a node
is spelt in it is read through `NodeView` and written through `NodeMaker`.
"""

from enum import IntEnum


class Since(IntEnum):
    """The first operator set that has it."""

    BROADCAST = 7  # operands broadcast from the last dimension
    INFERENCE = 7  # Dropout moves elements unless it is told to train
    LIVE_TESTS = SCANS = 9  # Where and Expand; a Scan without a batch
    SLICES = 10  # a Slice takes its bounds as inputs
    LOOK_UPS = 11  # Range, and a Slice and a Gather that count from the end
    PARTS = 11  # what fused operators consist of: Range, Gemm without a bias, ..
    REDUCED_BYTES = 12  # maxima of bytes
    LISTS = 13  # lists of numbers are inputs; before, and longer for most reductions, attributes
    SOFTMAX_OF_AXIS = 13  # before, all dimensions from the axis on were one line
    ZERO_SIZES = 14  # a Reshape takes a size of 0 as one (`allowzero`)
    SCATTERED_SUMS = 16  # scatters that add
    REDUCED_LISTS = 18  # the axes of all reductions are an input
    DFT_OF_INPUT = 20  # the axis of a DFT is an input
    GELU = 20
    SCALES_PER_CHANNEL = 21  # of GroupNormalization; before, they were per group

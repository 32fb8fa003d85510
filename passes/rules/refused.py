"""Operators without a tensor expression, each with its reason.

Such a node is no error: it runs as it is, and counts as a reader of every element of its operands.
An operator is either here or in the rule table; a test holds this for the installed onnx.
"""

from enum import Enum


class Reason(Enum):
    """Why an operator has no tensor expression; the value completes "OP: ..."."""

    BRANCHES = "becomes `Choose` between the results of its branches, which are opened"
    CONTROL_FLOW = "control flow: its bodies, and how often they run, are not one expression"
    SEQUENCE = "a sequence or optional value: the grammar describes tensors"
    FILE = "decodes an image file"
    STRING = "strings have neither zeros nor arithmetic"
    RANDOM = "random: the result depends on the order in which elements are drawn"
    RECURRENT = "recurrent: every step reads the previous one, so no step can be skipped alone"
    SAMPLING = "image sampling: places are computed from real-valued coordinates"
    SELECTION = "the selected elements, and their places, depend on the data of the whole operand"
    QUANTISED = "quantised arithmetic: zero points and rounding are not products of zeros"
    TRAINING = "loss or training: inference graphs do not contain it"
    CLASSICAL = "classical machine learning on feature rows: trees, kernels, encoders"
    CACHE = "a key and value cache: the result depends on what earlier calls left in a buffer"
    APPENDED = (
        "becomes its parts where sizes say that new keys stand behind those of the past; else its "
        "cache may be longer than what is in it, and written in place"
    )
    LITERAL = "a string or sparse constant; others are known values, not nodes"
    TOO_NEW = "newer than the operator sets of ONNX Runtime, so no expression has been proven"
    UNPROVEN = "no expression has been proven against ONNX Runtime"


_STANDARD = {
    Reason.BRANCHES: "If",
    Reason.CONTROL_FLOW: "Loop Scan SequenceMap",
    Reason.SEQUENCE: (
        "ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt "
        "SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength "
        "SplitToSequence"
    ),
    Reason.STRING: "RegexFullMatch StringConcat StringNormalizer StringSplit",
    Reason.RANDOM: (
        "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
    ),
    Reason.RECURRENT: "GRU LSTM RNN LinearAttention CausalConvWithState",
    Reason.SAMPLING: "DeformConv MaxRoiPool",
    Reason.FILE: "ImageDecoder",
    Reason.SELECTION: "MaxUnpool NonMaxSuppression TfIdfVectorizer Unique",
    Reason.TRAINING: "NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
    Reason.LITERAL: "Constant",
    Reason.TOO_NEW: "SwiGLU",
}

_MICROSOFT = {
    Reason.CONTROL_FLOW: "BeamSearch GreedySearch Sampling WhisperBeamSearch",
    Reason.STRING: "Tokenizer",
    Reason.RANDOM: "SampleOp",
    Reason.RECURRENT: (
        "AttnLSTM CausalConvWithState DynamicQuantizeLSTM DynamicTimeWarping LinearAttention"
    ),
    Reason.SAMPLING: "CropAndResize GridSample",
    Reason.SELECTION: "BifurcationDetector NGramRepeatBlock Unique",
    Reason.QUANTISED: (
        "GatherBlockQuantized MatMulBnb4 MatMulFpQ4 MatMulInteger16 NhwcMaxPool QAttention "
        "QEmbedLayerNormalization QLinearAveragePool QLinearConcat QLinearConv "
        "QLinearGlobalAveragePool"
    ),
    Reason.CACHE: "DecoderMaskedMultiHeadAttention SparseAttention",
    Reason.APPENDED: "GroupQueryAttention",
    Reason.UNPROVEN: (
        "BranchwiseRMSNorm CDist ConvTransposeWithDynamicPads EngramGate ExpandDims GatedAdd "
        "GatedRMSNorm GatherND HyperConnectionPostMix HyperConnectionPreMix Inverse "
        "LinearAttentionGate MaxpoolWithMask MRotaryEmbedding MurmurHash3 NGramHashMapping Pad "
        "Range ScaledSiLU SparseToDenseMatMul Trilu UnfoldTensor VarlenNGramHashMapping "
        "WordConvEmbedding"
    ),
}

_CLASSICAL = (
    "ArrayFeatureExtractor Binarizer CastMap CategoryMapper DictVectorizer FeatureVectorizer "
    "Imputer LabelEncoder LinearClassifier LinearRegressor Normalizer OneHotEncoder "
    "SVMClassifier SVMRegressor Scaler TreeEnsemble TreeEnsembleClassifier "
    "TreeEnsembleRegressor ZipMap"
)

_BY_DOMAIN = {
    "": _STANDARD,
    "com.microsoft": _MICROSOFT,
    "ai.onnx.ml": {Reason.CLASSICAL: _CLASSICAL},
    "ai.onnx.preview": {Reason.CONTROL_FLOW: "FlexAttention"},
    "ai.onnx.preview.training": {Reason.TRAINING: "Adagrad Adam Gradient Momentum"},
}

REFUSED: dict[tuple[str, str], Reason] = {
    (domain, op): reason
    for domain, families in _BY_DOMAIN.items()
    for reason, names in families.items()
    for op in names.split()
}

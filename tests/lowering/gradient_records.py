"""Nodes for the gradients of what the public suite has no float case of."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.lowering.contrib.cases import bytes_of, microsoft
from tests.lowering.elsewhere import Case

ML = "ai.onnx.ml"
RANDOM = np.random.default_rng(7)


def numbers(*shape: int) -> tuple[float, ...]:
    """Coefficients of a model, as an attribute has them."""
    return tuple(RANDOM.standard_normal(shape).reshape(-1).tolist())


def sequence(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    """A sequence of floats."""
    return [RANDOM.standard_normal(shape).astype(np.float32) for shape in shapes]


def learned(op_type: str, *inputs: Any, **attributes: Any) -> Case:
    """A node of ai.onnx.ml on five rows of three features."""
    return Case(op_type, 3, inputs or [(5, 3)], attributes, 2 if "Classifier" in op_type else 1, (), ML)


TENSORS = [
    Case("Cast", 25, [(3, 4)], {"to": 11}),
    Case("CastLike", 25, [(3, 4), np.ones(1)]),
    Case("Trilu", 14, [(3, 4)]),
    Case("Trilu", 14, [(2, 3, 4), np.array(1)], {"upper": 0}),
    Case("Conv", 22, [(1, 4, 5, 5), (6, 2, 3, 3), (6,)], {"group": 2, "pads": (1, 0, 1, 2), "dilations": (1, 2)}),
    Case("ConvTranspose", 22, [(1, 4, 3, 3), (4, 3, 3, 3), (6,)], {"group": 2, "strides": (2, 1)}),
    Case("GlobalLpPool", 22, [(2, 3, 4, 5)]),
    Case("GlobalLpPool", 22, [(2, 3, 4, 5)], {"p": 3}),
    Case("MaxRoiPool", 22, [(1, 2, 6, 6), np.array([[0, 0, 1, 3, 4]], np.float32)], {"pooled_shape": (2, 2)}),
    Case("RNN", 22, [(3, 2, 4), (1, 5, 4), (1, 5, 5), (1, 10), None, (1, 2, 5)], {"hidden_size": 5}, outputs=2),
    Case("GRU", 22, [(3, 2, 4), (1, 15, 4), (1, 15, 5), (1, 30), None, (1, 2, 5)], {"hidden_size": 5}, outputs=2),
    Case(
        "GRU",
        22,
        [(3, 2, 4), (2, 15, 4), (2, 15, 5), (2, 30), np.array([3, 1], np.int32), (2, 2, 5)],
        {"hidden_size": 5, "linear_before_reset": 1, "direction": "bidirectional", "clip": 0.8},
        outputs=2,
    ),
    Case(
        "LSTM",
        22,
        [(3, 2, 4), (2, 20, 4), (2, 20, 5), (2, 40), np.array([3, 1], np.int32), *[(2, 2, 5)] * 2, (2, 15)],
        {"hidden_size": 5, "direction": "bidirectional", "input_forget": 1, "clip": 0.8},
        outputs=3,
    ),
]

SEQUENCES = [
    Case("SequenceConstruct", 11, [(2, 3), (4,)]),
    Case("SequenceAt", 11, [sequence((2, 3), (4,)), np.array(-1)]),
    Case("SequenceInsert", 11, [sequence((2, 3), (4,)), (5,), np.array(1)]),
    Case("SequenceErase", 11, [sequence((2, 3), (4,)), np.array(0)]),
    Case("SplitToSequence", 24, [(5, 3), np.array([2, 3])]),
    Case("ConcatFromSequence", 11, [sequence((2, 3), (4, 3))], {"axis": 0}),
    Case("ConcatFromSequence", 11, [sequence((2, 3), (2, 3))], {"axis": 1, "new_axis": 1}),
    Case("Optional", 15, [(2, 3)]),
    Case("OptionalGetElement", 18, [sequence((2, 3), (4,))]),
    Case("Identity", 25, [sequence((2, 3), (4,))]),
]

MACHINE = {"coefficients": numbers(2, 6), "rho": numbers(3), "support_vectors": numbers(6, 3)}
KERNELS = {"POLY": (0.5, 1.0, 3.0), "RBF": (0.4, 0.0, 0.0), "SIGMOID": (0.3, 0.1, 0.0), "LINEAR": (0.0, 0.0, 0.0)}

MODELS = [
    *(learned("Normalizer", norm=norm) for norm in ("MAX", "L1", "L2")),
    learned("Scaler", scale=numbers(3), offset=numbers(3)),
    learned("Imputer", imputed_value_floats=(5.0,), replaced_value_float=0.0),
    learned("FeatureVectorizer", (5, 3), (5, 2), inputdimensions=(3, 2)),
    *(
        learned("LinearRegressor", coefficients=numbers(6), intercepts=numbers(2), targets=2, post_transform=name)
        for name in ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO")
    ),
    learned("LinearClassifier", coefficients=numbers(9), intercepts=numbers(3), classlabels_ints=(5, 1, 3)),
    learned("LinearClassifier", coefficients=numbers(3), intercepts=numbers(1), classlabels_ints=(0, 1)),
    *(
        learned(
            "SVMRegressor",
            **{**MACHINE, "coefficients": numbers(6)},
            n_supports=6,
            kernel_type=kernel,
            kernel_params=parameters,
        )
        for kernel, parameters in KERNELS.items()
    ),
    learned("SVMRegressor", coefficients=numbers(3), rho=(0.1,)),
    learned(
        "SVMClassifier",
        **MACHINE,
        vectors_per_class=(2, 1, 3),
        kernel_type="RBF",
        kernel_params=KERNELS["RBF"],
        classlabels_ints=(5, 1, 3),
    ),
    learned(
        "SVMClassifier",
        **{**MACHINE, "coefficients": numbers(6)},
        vectors_per_class=(2, 4),
        kernel_type="RBF",
        kernel_params=KERNELS["RBF"],
        classlabels_ints=(0, 1),
        prob_a=(-1.0,),
        prob_b=(0.1,),
    ),
]

FUSED = [microsoft("MatMulNBits", (3, 32), bytes_of(5, 2, 8), (5, 2), (5, 2), K=32, N=5, bits=4, block_size=16)]

RECORDS = [*TENSORS, *SEQUENCES, *MODELS, *FUSED]

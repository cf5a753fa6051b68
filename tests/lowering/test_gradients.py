"""Gradients of every operator with float inputs and outputs, against finite differences in float64.

The cases are those of the public suite, up to four an operator, with their float inputs in float64 and moved a little
so that none sits on a kink. What differs on purpose stands in `gradient_exceptions.toml`, with its reason.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest

import onnxtrain as ot
from onnxtrain import dtypes
from onnxtrain.errors import StaticValueError
from onnxtrain.lowering import registry, static
from tests.lowering.backend_cases import BackendCase, expected_failures, load_cases

CASES_PER_OPERATOR = 4
STEP = 1e-6
EXCEPTIONS = tomllib.loads(Path(__file__).with_name("gradient_exceptions.toml").read_text())

_WIDENED = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}


def _choose_cases() -> dict[str, list[BackendCase]]:
    chosen: dict[str, list[BackendCase]] = defaultdict(list)
    for case in load_cases():
        if case.kind == "node" and "_expanded" not in case.name and case.name not in expected_failures():
            operator = case.operator
            if operator not in EXCEPTIONS and len(chosen[operator]) < CASES_PER_OPERATOR and _has_floats(case.model):
                chosen[operator].append(case)
    return {operator: cases for operator, cases in chosen.items() if cases}


def _has_floats(model: onnx.ModelProto) -> bool:
    real = {*_WIDENED, onnx.TensorProto.DOUBLE}
    return all(
        any(value.type.tensor_type.elem_type in real for value in values)
        for values in (model.graph.input, model.graph.output)
    )


CHOSEN = _choose_cases()


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for cases in CHOSEN.values() for case in cases])
def test_gradient_equals_finite_differences(case: BackendCase, x64: None) -> None:
    model = widen(case.model)
    inputs, _ = next(case.data_sets(model))
    values = dict(zip((value.name for value in model.graph.input), map(_move, inputs), strict=False))
    program = ot.lower(model)
    state = program.stored_state(jax.random.key(0))
    function, point = _scalar_function(program, state, values)
    gradients = jax.jit(jax.grad(function))(point)
    evaluate = jax.jit(function)
    for seed in range(3):
        direction = _direction(point, seed)
        ahead = evaluate({name: value + STEP * direction[name] for name, value in point.items()})
        behind = evaluate({name: value - STEP * direction[name] for name, value in point.items()})
        measured = (ahead - behind) / (2 * STEP)
        along = sum(float(jnp.vdot(gradients[name], direction[name])) for name in point)
        np.testing.assert_allclose(along, measured, rtol=1e-4, atol=1e-6 * max(1.0, float(jnp.abs(ahead))))


def test_every_operator_with_a_rule_has_its_gradient_checked_or_a_reason() -> None:
    """The list of what the harness covers: no operator is left out in silence."""
    operators = {rule.op_type for rule in registry.all_rules() if rule.domain in ("", "ai.onnx.preview.training")}
    assert operators - set(CHOSEN) - set(EXCEPTIONS) - {"Gradient"} == set()


def _scalar_function(program: Any, state: Any, values: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A weighted sum of all float outputs as a function of the float inputs that a rule does not need static."""
    point = {name: value for name, value in values.items() if _is_float(value)}
    while True:
        fixed = {name: value for name, value in values.items() if name not in point}

        def function(variables: Mapping[str, Any], fixed: Mapping[str, Any] = fixed) -> Any:
            outputs = program.infer(state, {**fixed, **variables})
            return sum((_weighted_sum(value) for value in outputs.values() if _is_float(value)), jnp.zeros(()))

        try:
            jax.eval_shape(function, point)
        except StaticValueError as error:
            point = {name: value for name, value in point.items() if name != error.source}
            continue
        assert point, "every float input is static; give the operator a case or an exception"
        return function, point


def _weighted_sum(value: Any) -> Any:
    weights = np.cos(np.arange(value.size, dtype=np.float64)).reshape(value.shape)
    return jnp.sum(static.traced(value).astype(np.float64) * weights)


def _is_float(value: Any) -> bool:
    return hasattr(value, "dtype") and dtypes.is_float(value.dtype) and value.dtype.itemsize > 1


def _direction(point: Mapping[str, Any], seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(value.shape) for name, value in point.items()}


def _move(value: Any) -> Any:
    if not _is_float(value):
        return value
    wide = np.asarray(value, np.float64)
    return wide + 0.003 + 0.01 * np.random.default_rng(wide.size).random(wide.shape)


def widen(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of a one-node model with its float inputs and outputs in float64."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for value in (*wide.graph.input, *wide.graph.output):
        if value.type.tensor_type.elem_type in _WIDENED:
            value.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for node in wide.graph.node:
        if node.op_type == "LayerNormalization":  # the type of its statistics is an attribute
            node.attribute.append(onnx.helper.make_attribute("stash_type", onnx.TensorProto.DOUBLE))
    return wide

"""The gradient of every float input of every operator, against finite differences in float64."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from onnxtrain import dtypes
from onnxtrain.lowering import static
from tests.lowering.gradient_cases import (
    GradientCase,
    covered_inputs,
    differentiable_inputs,
    exceptions,
    gradient_cases,
)

STEP = 1e-6
# Some operators give float32 whatever they are given; a small step would measure its rounding.
STEP_IN_FLOAT32 = 1e-3
# Each function is compiled for a few tiny calls.
QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0}
TOLERANCE = {STEP: 1e-4, STEP_IN_FLOAT32: 1e-2}


@pytest.mark.parametrize("case", gradient_cases(), ids=lambda case: case.name)
def test_gradient_equals_finite_differences(case: GradientCase, x64: None) -> None:
    """Input by input, so that a large gradient hides no small one."""
    narrow = any(_is_float(value) and value.dtype != np.float64 for value in jax.eval_shape(case.run, case.point))
    step = STEP_IN_FLOAT32 if narrow else STEP
    function = jax.value_and_grad(lambda point: _weighted_sum(case.run(point)))
    evaluate = jax.jit(function, compiler_options=QUICK_TO_COMPILE)
    _, gradients = evaluate(case.point)
    for position in case.point:
        direction = _direction(case.point, position)
        ahead, behind = (
            evaluate(jax.tree.map(lambda value, change, size=size: value + size * change, case.point, direction))[0]
            for size in (step, -step)
        )
        along = sum(jax.tree.leaves(jax.tree.map(jnp.vdot, gradients, direction)))
        scale = max(1.0, float(jnp.abs(ahead)))
        np.testing.assert_allclose(
            along,
            (ahead - behind) / (2 * step),
            rtol=TOLERANCE[step],
            atol=TOLERANCE[step] / 100 * scale,
            err_msg=str(case.formal(position)),
        )


def test_every_float_input_of_every_operator_has_its_gradient_checked_or_a_reason() -> None:
    missing = sorted(str(known) for known in differentiable_inputs() - covered_inputs())
    assert [name for name in missing if name not in exceptions()] == []


def test_no_exception_is_stale() -> None:
    assert sorted(exceptions().keys() - {str(known) for known in differentiable_inputs()}) == []


def _weighted_sum(values: list[Any]) -> Any:
    return sum((_weighted(value) for value in values if _is_float(value)), jnp.zeros(()))


def _weighted(value: Any) -> Any:
    weights = np.cos(np.arange(value.size, dtype=np.float64)).reshape(value.shape)
    return jnp.sum(static.traced(value).astype(np.float64) * weights)


def _is_float(value: Any) -> bool:
    return hasattr(value, "dtype") and dtypes.is_float(value.dtype) and value.dtype.itemsize > 1


def _direction(point: Mapping[int, Any], position: int) -> dict[int, Any]:
    """Random in the input at this position, zero in all others."""
    random = np.random.default_rng(position)
    zero = jax.tree.map(np.zeros_like, dict(point))
    return {**zero, position: jax.tree.map(lambda value: random.standard_normal(value.shape), point[position])}

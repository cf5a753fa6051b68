"""Outputs and gradients of single operators are PyTorch's, in float64 and where conventions matter."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.lowering.gradient_cases import GradientCase, covered_inputs

torch = pytest.importorskip("torch", reason="PyTorch is the twin (the extra `oracle`)")

from tests.parity.operators import attention, elementwise, fused, normalization, recurrent, reduction, shape, spatial  # noqa: E402
from tests.parity.operators.records import TorchCase  # noqa: E402

FAMILIES = (attention, elementwise, fused, normalization, recurrent, reduction, shape, spatial)
CASES = [case for family in FAMILIES for case in family.CASES]

WITHOUT_TWIN = Path(__file__).with_name("operators") / "without_twin.toml"

# Each function is compiled for one tiny call.
QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_outputs_and_gradients_are_those_of_pytorch(case: TorchCase, x64: None) -> None:
    node = case.gradient_case()
    point = {position: value for position, value in node.point.items() if position not in case.constants}
    outputs, gradients = jax.jit(_differentiated(node), compiler_options=QUICK_TO_COMPILE)(point)
    given = [_tensor(value, position in point) for position, value in enumerate(node.values)]
    found = case.twin(*given)
    twins = list(found) if isinstance(found, tuple | list) else [found]
    for output, twin in zip(outputs, twins, strict=True):
        np.testing.assert_allclose(output, twin.detach().numpy(), rtol=case.rtol, atol=1e-10, strict=True)
    differentiable = [twin for twin in twins if twin.requires_grad]
    torch.autograd.backward(differentiable, [torch.tensor(_weights(twin.detach().numpy())) for twin in differentiable])
    for position, gradient in gradients.items():
        pairs = zip(jax.tree.leaves(gradient), jax.tree.leaves(_gradient(given[position])), strict=True)
        for own, expected in pairs:
            message = str(node.formal(position))
            np.testing.assert_allclose(own, expected, rtol=case.rtol, atol=1e-10, strict=True, err_msg=message)


def test_every_differentiable_operator_is_compared_or_has_a_reason() -> None:
    compared = {(case.domain, case.op_type) for case in CASES}
    differentiable = {(known.domain, known.op_type) for known in covered_inputs()}
    groups = tomllib.loads(WITHOUT_TWIN.read_text()).values()
    excused = sorted(name for group in groups for name in group["operators"])
    assert excused == sorted(":".join(filter(None, operator)) for operator in differentiable - compared)


def _differentiated(node: GradientCase) -> Callable[[Any], Any]:
    """The outputs, and the gradients of their weighted sum."""

    def run(point: Any) -> Any:
        outputs, pullback = jax.vjp(lambda point: [jnp.asarray(value) for value in node.run(point)], point)
        return outputs, pullback([_weights(output) for output in outputs])[0]

    return run


def _tensor(value: Any, differentiated: bool) -> Any:
    if isinstance(value, list):
        return [_tensor(item, differentiated) for item in value]
    return torch.tensor(value, requires_grad=differentiated) if isinstance(value, np.ndarray) else value


def _gradient(tensor: Any) -> Any:
    """What PyTorch accumulated; nothing where the result does not depend on the tensor."""
    if isinstance(tensor, list):
        return [_gradient(item) for item in tensor]
    return np.zeros(tensor.shape) if tensor.grad is None else tensor.grad.numpy()


def _weights(output: Any) -> Any:
    if not jnp.issubdtype(output.dtype, jnp.floating):
        return np.zeros(output.shape, jax.dtypes.float0)
    return np.random.default_rng(output.size).standard_normal(output.shape).astype(output.dtype)

"""Ensembles of decision trees, in the form of every version: all rows walk down all trees together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from onnxtrain.errors import OperatorError
from onnxtrain.lowering.ml.scores import (
    ML,
    TRANSFORMS,
    as_float,
    choose_labels,
    keep_static,
    transform,
    with_opposite,
)
from onnxtrain.lowering.registry import Array, Floats, Ints, op

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "BRANCH_LEQ": lambda x, split: x <= split,
    "BRANCH_LT": lambda x, split: x < split,
    "BRANCH_GTE": lambda x, split: x >= split,
    "BRANCH_GT": lambda x, split: x > split,
    "BRANCH_EQ": lambda x, split: x == split,
    "BRANCH_NEQ": lambda x, split: x != split,
}
# The numbers that TreeEnsemble has for modes and for aggregate functions.
_MODES = (*_COMPARISONS, "BRANCH_MEMBER")
_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_POPULARITY = frozenset({"nodes_hitrates", "nodes_hitrates_as_tensor"})


@op("TreeEnsembleRegressor", domain=ML, ignores=_POPULARITY)
def tree_ensemble_regressor(
    x: Array,
    *,
    aggregate_function: str,
    base_values: Floats = (),
    base_values_as_tensor: np.ndarray | None = None,
    n_targets: int = 1,
    nodes_falsenodeids: Ints = (),
    nodes_featureids: Ints = (),
    nodes_missing_value_tracks_true: Ints = (),
    nodes_modes: tuple[str, ...] = (),
    nodes_nodeids: Ints = (),
    nodes_treeids: Ints = (),
    nodes_truenodeids: Ints = (),
    nodes_values: Floats = (),
    nodes_values_as_tensor: np.ndarray | None = None,
    post_transform: str,
    target_ids: Ints = (),
    target_nodeids: Ints = (),
    target_treeids: Ints = (),
    target_weights: Floats = (),
    target_weights_as_tensor: np.ndarray | None = None,
) -> Array:
    forest, rows = _read_nodes(
        nodes_treeids,
        nodes_nodeids,
        nodes_truenodeids,
        nodes_falsenodeids,
        nodes_featureids,
        nodes_modes,
        _either(nodes_values_as_tensor, nodes_values),
        nodes_missing_value_tracks_true,
    )
    voters = [rows[key] for key in zip(target_treeids, target_nodeids, strict=True)]
    votes = _Votes(voters, target_ids, _either(target_weights_as_tensor, target_weights), n_targets)
    x = as_float(jnp.asarray(x))
    scores = votes.aggregate(forest.find_leaves(x), forest.size, aggregate_function, x.dtype)
    bases = _either(base_values_as_tensor, base_values)
    if len(bases):
        scores = scores + jnp.asarray(bases, x.dtype)
    return transform(scores, post_transform).astype(np.float32)


@op("TreeEnsembleClassifier", domain=ML, folds=True, ignores=_POPULARITY)
def tree_ensemble_classifier(
    x: Array,
    *,
    base_values: Floats = (),
    base_values_as_tensor: np.ndarray | None = None,
    class_ids: Ints = (),
    class_nodeids: Ints = (),
    class_treeids: Ints = (),
    class_weights: Floats = (),
    class_weights_as_tensor: np.ndarray | None = None,
    classlabels_int64s: Ints = (),
    classlabels_strings: tuple[str, ...] = (),
    nodes_falsenodeids: Ints = (),
    nodes_featureids: Ints = (),
    nodes_missing_value_tracks_true: Ints = (),
    nodes_modes: tuple[str, ...] = (),
    nodes_nodeids: Ints = (),
    nodes_treeids: Ints = (),
    nodes_truenodeids: Ints = (),
    nodes_values: Floats = (),
    nodes_values_as_tensor: np.ndarray | None = None,
    post_transform: str,
) -> tuple[Array, Array]:
    """Two classes of which only one gets votes have one score; the other class has its opposite.

    Unsupported: labels that are strings, unless the input is known while tracing.
    """
    forest, rows = _read_nodes(
        nodes_treeids,
        nodes_nodeids,
        nodes_truenodeids,
        nodes_falsenodeids,
        nodes_featureids,
        nodes_modes,
        _either(nodes_values_as_tensor, nodes_values),
        nodes_missing_value_tracks_true,
    )
    count = max(len(classlabels_int64s), len(classlabels_strings))
    weights = _either(class_weights_as_tensor, class_weights)
    bases = _either(base_values_as_tensor, base_values)
    binary = count == 2 and len(set(class_ids)) == 1
    positive = min(weights) >= 0
    voters = [rows[key] for key in zip(class_treeids, class_nodeids, strict=True)]
    votes = _Votes(voters, (0,) * len(class_ids) if binary else class_ids, weights, 1 if binary else count)

    def classify(x: Any) -> tuple[Any, Any]:
        x = as_float(x)
        scores = votes.aggregate(forest.find_leaves(x), forest.size, "SUM", x.dtype)
        if len(bases):
            scores = scores + jnp.asarray(bases[-1:] if binary else bases, x.dtype)
        if not binary:
            return jnp.argmax(scores, axis=1), transform(scores, post_transform).astype(np.float32)
        chosen = (scores[:, 0] > (0.5 if positive else 0)).astype(np.int32)
        if post_transform == "PROBIT":
            return chosen, transform(scores, post_transform).astype(np.float32)
        complement = positive and post_transform == "NONE"
        return chosen, with_opposite(scores, post_transform, complement=complement).astype(np.float32)

    indices, scores = keep_static(classify, x)
    return choose_labels(indices, classlabels_int64s, classlabels_strings), scores


@op("TreeEnsemble", domain=ML, ignores={"nodes_hitrates"})
def tree_ensemble(
    x: Array,
    *,
    aggregate_function: int,
    leaf_targetids: Ints,
    leaf_weights: np.ndarray,
    membership_values: np.ndarray | None = None,
    n_targets: int | None = None,
    nodes_falseleafs: Ints,
    nodes_falsenodeids: Ints,
    nodes_featureids: Ints,
    nodes_missing_value_tracks_true: Ints = (),
    nodes_modes: np.ndarray,
    nodes_splits: np.ndarray,
    nodes_trueleafs: Ints,
    nodes_truenodeids: Ints,
    post_transform: int,
    tree_roots: Ints,
) -> Array:
    inner, leaves = len(nodes_modes), len(leaf_weights)
    places = np.arange(inner + leaves)
    forest = _Forest(
        roots=np.array(tree_roots),
        features=_pad(nodes_featureids, leaves),
        splits=_pad(nodes_splits, leaves),
        modes=(*(_MODES[mode] for mode in nodes_modes.tolist()), *["LEAF"] * leaves),
        true_children=np.where(_pad(nodes_trueleafs, leaves), inner, 0) + _pad(nodes_truenodeids, leaves),
        false_children=np.where(_pad(nodes_falseleafs, leaves), inner, 0) + _pad(nodes_falsenodeids, leaves),
        missing=_pad(nodes_missing_value_tracks_true or (0,) * inner, leaves),
        members=_read_members(nodes_modes, membership_values, leaves),
    )
    targets = max(leaf_targetids) + 1 if n_targets is None else n_targets
    votes = _Votes(places[inner:].tolist(), leaf_targetids, leaf_weights, targets)
    scores = votes.aggregate(forest.find_leaves(jnp.asarray(x)), forest.size, _AGGREGATES[aggregate_function], x.dtype)
    return transform(scores, TRANSFORMS[post_transform])


@dataclass(frozen=True)
class _Forest:
    """Nodes of all trees, by their place; `members` holds the set of each node that has one, padded with NaN."""

    roots: np.ndarray
    features: np.ndarray
    splits: np.ndarray
    modes: tuple[str, ...]
    true_children: np.ndarray
    false_children: np.ndarray
    missing: np.ndarray
    members: np.ndarray | None = None

    @property
    def size(self) -> int:
        return len(self.modes)

    def find_leaves(self, x: Any) -> Any:
        """The leaf that each row [N, features] reaches in each tree, as a place [N, trees]."""
        modes = np.array(self.modes)
        features, missing = jnp.asarray(self.features, np.int32), jnp.asarray(self.missing, np.bool_)
        splits = jnp.asarray(self.splits, x.dtype)
        children = [jnp.asarray(side, np.int32) for side in (self.true_children, self.false_children)]
        leaves = jnp.asarray(modes == "LEAF")
        rows = jnp.arange(x.shape[0], dtype=np.int32)[:, None]

        def descend(_: Any, place: Any) -> Any:
            values = x[rows, features[place]]
            holds = jnp.isnan(values) & missing[place]
            for mode in sorted(set(self.modes) & set(_COMPARISONS)):
                holds = holds | (jnp.asarray(modes == mode)[place] & _COMPARISONS[mode](values, splits[place]))
            if self.members is not None:
                members = jnp.asarray(self.members, x.dtype)[place]
                holds = holds | jnp.any(values[..., None] == members, axis=-1)
            return jnp.where(leaves[place], place, jnp.where(holds, children[0][place], children[1][place]))

        start = jnp.broadcast_to(jnp.asarray(self.roots, np.int32), (x.shape[0], len(self.roots)))
        return jax.lax.fori_loop(0, self._depth(), descend, start)

    def _depth(self) -> int:
        """The longest way from a root to a leaf."""
        depth, level = 0, set(self.roots.tolist())
        while level := {place for place in level if self.modes[place] != "LEAF"}:
            level = {int(side[place]) for place in level for side in (self.true_children, self.false_children)}
            depth += 1
            if depth > self.size:
                raise OperatorError("The nodes of its trees form a cycle.")
        return depth


@dataclass(frozen=True)
class _Votes:
    """Weights that leaves give to targets; a leaf may vote for several."""

    places: Sequence[int]
    targets: Sequence[int]
    weights: Any
    count: int

    def aggregate(self, leaves: Any, size: int, function: str, dtype: Any) -> Any:
        """The votes of all trees for each target [N, targets]."""
        if function not in _AGGREGATES:
            raise OperatorError(f"Attribute 'aggregate_function' is {function!r}; it must be one of {_AGGREGATES}.")
        absent = {"MIN": np.inf, "MAX": -np.inf}.get(function, 0)
        table = np.full((size, self.count), absent, np.float64)
        combine = {"MIN": np.minimum, "MAX": np.maximum}.get(function, np.add)
        combine.at(table, (np.array(self.places), np.array(self.targets)), np.asarray(self.weights))
        given = jnp.asarray(table, dtype)[leaves]
        reduce = {"MIN": jnp.min, "MAX": jnp.max, "AVERAGE": jnp.mean}.get(function, jnp.sum)
        return reduce(given, axis=1)


def _read_nodes(
    tree_ids: Ints,
    node_ids: Ints,
    true_ids: Ints,
    false_ids: Ints,
    features: Ints,
    modes: tuple[str, ...],
    splits: Any,
    missing: Ints,
) -> tuple[_Forest, dict[tuple[int, int], int]]:
    """The trees of TreeEnsembleClassifier and TreeEnsembleRegressor, and the place of each (tree, node)."""
    places = {key: place for place, key in enumerate(zip(tree_ids, node_ids, strict=True))}
    for mode in set(modes) - {*_COMPARISONS, "LEAF"}:
        raise OperatorError(f"Attribute 'nodes_modes' has {mode!r}; known are {', '.join(_COMPARISONS)} and LEAF.")

    def find(children: Ints) -> np.ndarray:
        pairs = zip(tree_ids, children, modes, range(len(modes)), strict=True)
        return np.array([place if mode == "LEAF" else places[tree, child] for tree, child, mode, place in pairs])

    true_children, false_children = find(true_ids), find(false_ids)
    inner = np.array([mode != "LEAF" for mode in modes])
    reached = {*true_children[inner].tolist(), *false_children[inner].tolist()}
    roots = [place for place in range(len(modes)) if place not in reached]
    return _Forest(
        roots=np.array(roots),
        features=np.array(features),
        splits=np.asarray(splits),
        modes=modes,
        true_children=true_children,
        false_children=false_children,
        missing=np.array(missing or (0,) * len(modes)),
    ), places


def _read_members(modes: np.ndarray, values: np.ndarray | None, leaves: int) -> np.ndarray | None:
    """The sets of the nodes that test membership; they stand one after another, each ended by NaN."""
    if values is None:
        return None
    sets: list[list[float]] = [[]]
    for value in values.tolist():
        if value != value:
            sets.append([])
        else:
            sets[-1].append(value)
    table = np.full((len(modes) + leaves, max(map(len, sets))), np.nan)
    for place, members in zip(np.flatnonzero(modes == _MODES.index("BRANCH_MEMBER")), sets, strict=False):
        table[place, : len(members)] = members
    return table


def _either(tensor: np.ndarray | None, numbers: Floats) -> Any:
    """An attribute in double precision, or else the one in single precision."""
    return np.array(numbers, np.float32) if tensor is None else tensor.reshape(-1)


def _pad(values: Any, leaves: int) -> np.ndarray:
    """Values of the inner nodes, with zeros for the leaves that follow them."""
    values = np.asarray(values)
    return np.concatenate([values, np.zeros(leaves, values.dtype)])

"""Choosing boxes among those that a detector proposes."""

from __future__ import annotations

import numpy as np

from onnxtrain.lowering.registry import Array, Float, Int, Static, op


@op("NonMaxSuppression", since=10, host=True)
def non_max_suppression(
    boxes: Static,
    scores: Static,
    max_output_boxes_per_class: Int = 0,
    iou_threshold: Float = 0.0,
    score_threshold: Float | None = None,
    *,
    center_point_box: bool,
) -> Array:
    """How many boxes are chosen depends on data. Boxes of equal score are taken in their order."""
    corners = _corners(np.asarray(boxes), center_point_box)
    chosen = [
        (batch, label, box)
        for batch in range(scores.shape[0])
        for label in range(scores.shape[1])
        for box in _choose(
            corners[batch], scores[batch, label], max_output_boxes_per_class, iou_threshold, score_threshold
        )
    ]
    return np.array(chosen, np.int64).reshape(-1, 3)


def _choose(
    corners: np.ndarray, scores: np.ndarray, most: int, iou_threshold: float, score_threshold: float | None
) -> list[int]:
    """The boxes of one class, best first: each overlaps none of the better ones by more than the threshold."""
    order = np.argsort(-scores, kind="stable")
    if score_threshold is not None:
        order = order[scores[order] > np.asarray(score_threshold, scores.dtype)]
    chosen: list[int] = []
    for box in order.tolist():
        if len(chosen) == most:
            break
        if not chosen or np.all(_overlap(corners[box], corners[chosen]) <= np.asarray(iou_threshold, scores.dtype)):
            chosen.append(box)
    return chosen


def _corners(boxes: np.ndarray, center_point_box: bool) -> np.ndarray:
    """Boxes [..., 4] as their lowest and highest corner; any two opposite corners may be given, in either order."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if center_point_box:
        return np.concatenate([first - second / 2, first + second / 2], axis=-1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], axis=-1)


def _overlap(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of one box with others [M, 4]; empty boxes overlap nothing."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    shared = np.prod(np.maximum(sides, 0), axis=-1)
    union = np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=-1) - shared
    return np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)

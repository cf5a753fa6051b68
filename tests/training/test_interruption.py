"""Ctrl-C during a run."""

from __future__ import annotations

import signal

import pytest

from onnxtrain.training.interruption import Interruption


def test_the_first_interrupt_is_a_request() -> None:
    with Interruption() as interruption:
        assert not interruption()
        signal.raise_signal(signal.SIGINT)
        assert interruption()


def test_the_second_interrupt_stops_at_once() -> None:
    with Interruption():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_afterwards_interrupts_go_where_they_went_before() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interruption():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before

"""The command line: `onnxtrain --help` says what it can do."""

from onnxtrain.cli.application import app, main

__all__ = ["app", "main"]

"""From a file to graphs: reading, combining, ordering, validating and writing ONNX models. Nothing here needs JAX."""

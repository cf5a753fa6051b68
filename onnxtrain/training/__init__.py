"""Training a session on data: batches, epochs, metrics, progress and learning curves."""

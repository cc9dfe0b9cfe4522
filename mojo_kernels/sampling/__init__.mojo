"""Grid sampling, pooling and windows, with their gradients."""

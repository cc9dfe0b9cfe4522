"""Products, convolutions, norms and embedding gradients on a CPU, compiled once for all sizes."""

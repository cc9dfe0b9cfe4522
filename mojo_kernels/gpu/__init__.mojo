"""Norms, softmax, losses, sums, transposes, flash attention and epilogues on a GPU, each row or column read once."""

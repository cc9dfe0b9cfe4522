"""Elementwise kernels for every device: bits, integer division, float64 functions, optimizer updates."""

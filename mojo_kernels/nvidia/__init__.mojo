"""NVIDIA's own libraries: products by cuBLASLt, convolutions and attention by cuDNN."""

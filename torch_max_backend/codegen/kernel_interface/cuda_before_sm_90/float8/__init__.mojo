"""Conversions from floats of 8 bits on GPUs that have no instruction for them."""
from raw.vectors.float8 import *

"""Vectors, memory, threads over Mojo's standard library; raw/vectors has the same names without it."""
from .types import *
from .arithmetic import *
from .reductions import *
from .memory import *
from .bfloat16 import *
from .float8 import *
from .threads import *

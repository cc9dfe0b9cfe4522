"""Vectors, memory, threads over the compiler's own operations; std_based/vectors has the same names."""
from .types import *
from .arithmetic import *
from .reductions import *
from .memory import *
from .threads import *

"""Vectors, memory, threads for NVIDIA GPUs, over the compiler's own operations.

What a GPU does as a CPU does is raw/vectors, whose modules are imported here. What differs has a module here with the
same names, and the rest is what only a GPU has: where a thread is, barriers, shuffles, shared memory, reductions of
warps and blocks. What is added to memory by many threads differs between architectures: ``additions`` is a package of
which there are two.
"""
from raw.vectors.types import *
from raw.vectors.arithmetic import *
from raw.vectors.reductions import *
from raw.vectors.calls import *
from .libm import *
from raw.vectors.pointers import *
from .memory import *
from raw.vectors.lanes import *
from .gathers import *
from .bfloat16 import *
from .threads import *
from .shuffles import *
from .shared import *
from float8 import *
from additions import *
from .atomics import *
from .errors import *
from .blocks import *
from .clusters import *

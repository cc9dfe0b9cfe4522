"""Vectors, memory, threads over the compiler's own operations; std_based/vectors has the same names."""
from .types import *
from .arithmetic import *
from .reductions import *
from .calls import *
from .libm import *
from .pointers import *
from .memory import *
from .lanes import *
from .gathers import *
from .turns import *
from .bfloat16 import *
from .float8 import *
from .threads import *

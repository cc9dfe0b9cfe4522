"""What generated kernels are written with: `from kernel import *`.

Beneath it is the package `vectors`, which has two forms with the same names: raw/vectors over the compiler's own
operations, with raw/std in place of Mojo's standard library, so that a kernel compiles in tenths of a second; and
std_based/vectors over Mojo's standard library, which takes seconds.

A kernel is `@export def name(t: Table) abi("C")`. Integers (`Int`) and conditions are written as in Python. Constants
are `const[f32, 16](0.1)`, with any decimal spelling; `infinity`, `not_a_number` and `const_bits` are for the others.

In both forms: a plain `if` on a comptime value compiles both branches, so each must be correct for all types; the
dead one is dropped later. `comptime if` crashes the compiler over raw/std, but for a condition whose type is spelled
`!kgen.scalar<bool>` at the parameter. The compiler's `ne` of floats is false for what is not a number; ours is true.
"""
from vectors import *
from .constants import *
from .comparison import *
from .division import *
from .casts import *
from .bits import *
from .threading import *
from .exponential import *
from .logarithm import *
from .trigonometry import *
from .powers import *
from .special import *

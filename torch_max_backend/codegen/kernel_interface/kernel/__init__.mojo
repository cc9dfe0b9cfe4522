"""What generated kernels are written with: `from kernel import *`.

Beneath it is the package `vectors`, which has three forms with the same names: raw/vectors over the compiler's own
operations, with raw/std in place of Mojo's standard library, so that a kernel compiles in tenths of a second;
std_based/vectors over Mojo's standard library, which takes seconds; and cuda/vectors, raw as well, for NVIDIA GPUs,
which has shuffles, shared memory and more beside.

On a CPU a kernel is `@export def name(t: Table) abi("C")`. On a GPU it is `@export def name(a: Ptr[f32], n: Int)
abi("C")`, with any number of parameters of 8 bytes: `Ptr`, `Int`, `Vec[f64, 1]`. Integers (`Int`) and conditions are written as in Python. Constants
are `const[f32, 16](0.1)`, with any decimal spelling; `infinity`, `not_a_number` and `const_bits` are for the others.

In all forms: a plain `if` on a comptime value compiles both branches, so each must be correct for all types; the
dead one is dropped later, and some mistakes in it show only where a function with a `comptime if` is called beside it. `comptime if` crashes the compiler over raw/std, but for a condition whose type is spelled
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

"""The team of threads that runs a kernel: libgomp's, which torch has loaded. Outside of a team there is one thread."""
from .types import *


@always_inline("nodebug")
def c_int[name: StaticString]() -> Int:
    var x: Vec[i32, 1] = __mlir_op.`pop.external_call`[func=name.v, _type=Vec[i32, 1].T]()
    return to_int(cast_plain[i64](x))


@always_inline("builtin")
def on_gpu() -> Bool:
    """Whether these are a GPU's vectors."""
    return __mlir_attr.`false`


@always_inline("nodebug")
def thread_index() -> Int:
    return c_int["omp_get_thread_num"]()


@always_inline("nodebug")
def thread_count() -> Int:
    return c_int["omp_get_num_threads"]()


@always_inline("nodebug")
def barrier():
    __mlir_op.`pop.external_call`[func=__mlir_attr.`"GOMP_barrier" : !kgen.string`, _type=None]()

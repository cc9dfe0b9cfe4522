"""The team of threads that runs a kernel: libgomp's, which torch has loaded. Outside of a team there is one thread."""
from .types import *
from std.ffi import external_call


@always_inline("nodebug")
def on_gpu() -> Bool:
    """Whether these are a GPU's vectors."""
    return False


@always_inline("nodebug")
def thread_index() -> Int:
    return Int(external_call["omp_get_thread_num", Int32]())


@always_inline("nodebug")
def thread_count() -> Int:
    return Int(external_call["omp_get_num_threads", Int32]())


@always_inline("nodebug")
def barrier():
    external_call["GOMP_barrier", NoneType]()

"""A thread's part of the work, and errors that a kernel notes."""
from vectors import *
from .constants import *


@always_inline("nodebug")
def share_chunks(n: Int, chunk: Int) -> Int:
    return ((n + chunk - 1) // chunk + thread_count() - 1) // thread_count() * chunk


@always_inline("nodebug")
def share_begin(n: Int, chunk: Int) -> Int:
    """Where this thread's part of 0..n begins: a multiple of `chunk`, or n."""
    return imin(thread_index() * share_chunks(n, chunk), n)


@always_inline("nodebug")
def share_end(n: Int, chunk: Int) -> Int:
    return imin((thread_index() + 1) * share_chunks(n, chunk), n)


@always_inline("nodebug")
def note_error(p: Ptr[i64], code: Int, value: Int):
    """Store a code and the value that it is about, if none is stored yet."""
    if to_int(load[1](p, 0)) == 0:
        store(p, 1, from_int[i64, 1](value))
        store(p, 0, from_int[i64, 1](code))

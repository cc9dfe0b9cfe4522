"""Indices that a kernel cannot use, told to the host while the GPU runs.

A *report* is four words: its own address, the number of the call path that it is for, the address of a lock in the GPU's
memory, and the address of a record in the host's. A record has a state, that number, the number of the place in the
program, the index and the size. The first index out of range takes the lock and fills the record.
"""
from raw.vectors.types import *
from raw.vectors.arithmetic import *
from raw.vectors.pointers import *
from .memory import load, read_aligned, store
from .atomics import store_first


@always_inline("nodebug")
def word(x: Int) -> Vec[i64, 1]:
    return from_int[i64, 1](x)


@always_inline("nodebug")
def address_at(p: Ptr[i64], i: Int) -> Ptr[i64]:
    """A word of memory as the address that it is."""
    return read_aligned[Ptr[i64], 8](pointer_to[Ptr[i64]](p, i))


@always_inline("nodebug")
def address_of(p: Ptr[i64]) -> Int:
    return Int(__mlir_op.`pop.pointer_to_index`[_type=__mlir_type.index](p.p))


@always_inline("nodebug")
def host_fence():
    """What this thread has written is seen by the host before what it writes from here on."""
    __mlir_op.`pop.call_llvm_intrinsic`[
        intrin=__mlir_attr.`"llvm.nvvm.membar.sys" : !kgen.string`, hasSideEffects=__mlir_attr.`true`, _type=None
    ]()


@always_inline("nodebug")
def note_error(report: Ptr[i64], code: Int, value: Int, size: Int):
    """Fill the record of a report, unless it is in use; ``code`` is the number of the place plus 1.

    With a report at the address 0 nothing is told.
    """
    if address_of(report) == 0:
        return
    var lock = address_at(report, 2)
    if to_int(load[1](lock, 0)) != 0:  # as it is for most, where most are out of range
        return
    if not store_first(lock, 0, word(1)):
        return
    var record = address_at(report, 3)
    store(record, 1, load[1](report, 1))
    store(record, 2, word(code - 1))
    store(record, 3, word(value))
    store(record, 4, word(size))
    host_fence()
    store(record, 0, word(1))

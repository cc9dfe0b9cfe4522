"""Functions of C."""
from .types import *


@always_inline("nodebug")
def call_c[name: StaticString, d: DType](a: Vec[d, 1]) -> Vec[d, 1]:
    return __mlir_op.`pop.external_call`[func=name.v, _type=Vec[d, 1].T](a.v)


@always_inline("nodebug")
def call_c[name: StaticString, d: DType](a: Vec[d, 1], b: Vec[d, 1]) -> Vec[d, 1]:
    return __mlir_op.`pop.external_call`[func=name.v, _type=Vec[d, 1].T](a.v, b.v)

# Launches the kernels of a segment: one call from Python for all of them. Compiled once for a machine.
#
# The plan: the address of cuLaunchKernel, the number of launches, and for each launch: the function, the sizes
# of the grid in x and y and of the block, each of two words; the bytes of shared memory; the number of parameters,
# and for each of them which word of the table it is. A size is `-1, size`, or which word of the table, and what it is
# divided by, rounding up.
from kernel import *

comptime Unsigned = Vec[u32, 1]
comptime LaunchKernel = def(
    Int, Unsigned, Unsigned, Unsigned, Unsigned, Unsigned, Unsigned, Unsigned, Int, Ptr[i64], Int
) thin abi("C") -> Vec[i32, 1]


@always_inline("nodebug")
def word(p: Ptr[i64], i: Int) -> Int:
    return to_int(load[1](p, i))


@always_inline("nodebug")
def size(plan: Ptr[i64], at: Int, table: Ptr[i64]) -> Int:
    var per = word(plan, at + 1)
    if word(plan, at) < 0:
        return per
    return (word(table, word(plan, at)) + per - 1) // per


@always_inline("nodebug")
def unsigned(x: Int) -> Unsigned:
    return from_int[u32, 1](x)


@export
def launch(plan: Ptr[i64], table: Ptr[i64], stream: Int) abi("C") -> Int:
    """The first error of CUDA, or 0; times 2^16 the number of launches before."""
    var launch_kernel = read(pointer_to[LaunchKernel](plan, 0))
    var parameters = Ptr[i64](
        __mlir_op.`pop.stack_allocation`[
            count=__mlir_attr.`512 : index`, _type=Ptr[i64].T, alignment=__mlir_attr.`8 : index`
        ]()
    )
    var one = const[u32, 1](1)
    var at = 2
    var done = 0
    while done < word(plan, 1):
        var grid_x = size(plan, at + 1, table)
        var grid_y = size(plan, at + 3, table)
        var count = word(plan, at + 8)
        if grid_x > 0 and grid_y > 0:
            var k = 0
            while k < count:
                var of = pointer_to[Vec[i64, 1]](table, word(plan, at + 9 + k))
                write(pointer_to[__mlir_type[`!kgen.pointer<`, Vec[i64, 1], `>`]](parameters, k), of)
                k += 1
            var error = launch_kernel(
                word(plan, at),
                unsigned(grid_x),
                unsigned(grid_y),
                one,
                unsigned(size(plan, at + 5, table)),
                one,
                one,
                unsigned(word(plan, at + 7)),
                stream,
                parameters,
                0,
            )
            if condition(ne(error, const[i32, 1](0))):
                return to_int(cast_plain[i64](error)) + done * 65536
        at += 9 + count
        done += 1
    return 0

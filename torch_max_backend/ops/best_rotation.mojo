# op: best_rotation(Tensor covariance) -> Tensor
# covariance: ... 3 3
# result: ... 3 3
# dtypes: float64
#
# The reference, in structures.py, says what it computes; here a thread has a frame, and its matrices in registers.
from kernel import *

comptime Number = Vec[f64, 1]


@always_inline("nodebug")
def dot(a0: Number, b0: Number, a1: Number, b1: Number, a2: Number, b2: Number, a3: Number, b3: Number) -> Number:
    return add(add(mul(a0, b0), mul(a1, b1)), add(mul(a2, b2), mul(a3, b3)))


def best_rotation[d: DType](result: Ptr[d], covariance: Ptr[d], rows: Int):
    var frame = share_begin(rows, 1)
    var end = share_end(rows, 1)
    while frame < end:
        rotation_of(result, covariance, frame * 9)
        frame += 1


@always_inline("nodebug")
def rotation_of[d: DType](result: Ptr[d], covariance: Ptr[d], at: Int):
    var zero = const[f64, 1](0.0)
    var one = const[f64, 1](1.0)
    var two = const[f64, 1](2.0)
    var xx = cast[f64](load[1](covariance, at))
    var xy = cast[f64](load[1](covariance, at + 1))
    var xz = cast[f64](load[1](covariance, at + 2))
    var yx = cast[f64](load[1](covariance, at + 3))
    var yy = cast[f64](load[1](covariance, at + 4))
    var yz = cast[f64](load[1](covariance, at + 5))
    var zx = cast[f64](load[1](covariance, at + 6))
    var zy = cast[f64](load[1](covariance, at + 7))
    var zz = cast[f64](load[1](covariance, at + 8))

    # Horn's matrix, which is symmetric and has a trace of 0
    var p00 = add(add(xx, yy), zz)
    var p01 = sub(yz, zy)
    var p02 = sub(zx, xz)
    var p03 = sub(xy, yx)
    var p11 = sub(sub(xx, yy), zz)
    var p12 = add(xy, yx)
    var p13 = add(xz, zx)
    var p22 = sub(sub(yy, xx), zz)
    var p23 = add(yz, zy)
    var p33 = sub(sub(zz, xx), yy)

    # made positive: eigenvalues from 0 to 1/2
    var beside = add(dot(p01, p01, p02, p02, p03, p03, p12, p12), add(mul(p13, p13), mul(p23, p23)))
    var bound = sqrt(add(dot(p00, p00, p11, p11, p22, p22, p33, p33), mul(two, beside)))
    bound = select(eq(bound, zero), one, bound)  # all points coincide: every rotation is as good
    var quarter = const[f64, 1](0.25)
    p00 = mul(add(div(p00, bound), one), quarter)
    p11 = mul(add(div(p11, bound), one), quarter)
    p22 = mul(add(div(p22, bound), one), quarter)
    p33 = mul(add(div(p33, bound), one), quarter)
    p01 = mul(div(p01, bound), quarter)
    p02 = mul(div(p02, bound), quarter)
    p03 = mul(div(p03, bound), quarter)
    p12 = mul(div(p12, bound), quarter)
    p13 = mul(div(p13, bound), quarter)
    p23 = mul(div(p23, bound), quarter)

    # as often as the reference does it: 13 times 4
    var round = 0
    while round < 13:
        var squaring = 0
        while squaring < 4:
            var q00 = dot(p00, p00, p01, p01, p02, p02, p03, p03)
            var q01 = dot(p00, p01, p01, p11, p02, p12, p03, p13)
            var q02 = dot(p00, p02, p01, p12, p02, p22, p03, p23)
            var q03 = dot(p00, p03, p01, p13, p02, p23, p03, p33)
            var q11 = dot(p01, p01, p11, p11, p12, p12, p13, p13)
            var q12 = dot(p01, p02, p11, p12, p12, p22, p13, p23)
            var q13 = dot(p01, p03, p11, p13, p12, p23, p13, p33)
            var q22 = dot(p02, p02, p12, p12, p22, p22, p23, p23)
            var q23 = dot(p02, p03, p12, p13, p22, p23, p23, p33)
            p33 = dot(p03, p03, p13, p13, p23, p23, p33, p33)
            p00 = q00
            p01 = q01
            p02 = q02
            p03 = q03
            p11 = q11
            p12 = q12
            p13 = q13
            p22 = q22
            p23 = q23
            squaring += 1
        var scale = div(one, add(add(p00, p11), add(p22, p33)))
        p00 = mul(p00, scale)
        p01 = mul(p01, scale)
        p02 = mul(p02, scale)
        p03 = mul(p03, scale)
        p11 = mul(p11, scale)
        p12 = mul(p12, scale)
        p13 = mul(p13, scale)
        p22 = mul(p22, scale)
        p23 = mul(p23, scale)
        p33 = mul(p33, scale)
        round += 1

    # the longest column, of length 1, is the quaternion
    var w = p00
    var x = p01
    var y = p02
    var z = p03
    var longest = dot(w, w, x, x, y, y, z, z)
    var length = dot(p01, p01, p11, p11, p12, p12, p13, p13)
    var is_longer = gt(length, longest)
    longest = select(is_longer, length, longest)
    w = select(is_longer, p01, w)
    x = select(is_longer, p11, x)
    y = select(is_longer, p12, y)
    z = select(is_longer, p13, z)
    length = dot(p02, p02, p12, p12, p22, p22, p23, p23)
    is_longer = gt(length, longest)
    longest = select(is_longer, length, longest)
    w = select(is_longer, p02, w)
    x = select(is_longer, p12, x)
    y = select(is_longer, p22, y)
    z = select(is_longer, p23, z)
    length = dot(p03, p03, p13, p13, p23, p23, p33, p33)
    is_longer = gt(length, longest)
    longest = select(is_longer, length, longest)
    w = select(is_longer, p03, w)
    x = select(is_longer, p13, x)
    y = select(is_longer, p23, y)
    z = select(is_longer, p33, z)
    var root = sqrt(longest)
    w = div(w, root)
    x = div(x, root)
    y = div(y, root)
    z = div(z, root)

    var ww = mul(w, w)
    var xx2 = mul(x, x)
    var yy2 = mul(y, y)
    var zz2 = mul(z, z)
    store(result, at, cast[d](sub(sub(add(ww, xx2), yy2), zz2)))
    store(result, at + 1, cast[d](mul(two, add(mul(x, y), mul(w, z)))))
    store(result, at + 2, cast[d](mul(two, sub(mul(x, z), mul(w, y)))))
    store(result, at + 3, cast[d](mul(two, sub(mul(x, y), mul(w, z)))))
    store(result, at + 4, cast[d](sub(add(sub(ww, xx2), yy2), zz2)))
    store(result, at + 5, cast[d](mul(two, add(mul(y, z), mul(w, x)))))
    store(result, at + 6, cast[d](mul(two, add(mul(x, z), mul(w, y)))))
    store(result, at + 7, cast[d](mul(two, sub(mul(y, z), mul(w, x)))))
    store(result, at + 8, cast[d](add(sub(sub(ww, xx2), yy2), zz2)))

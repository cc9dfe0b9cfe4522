"""The bits of a tensor as another dtype."""

import extensibility
from extensibility import InputTensor, OutputTensor, foreach
from max.gpu.host import DeviceContext
from std.memory import bitcast
from std.utils.coord import Coord


@extensibility.register("tmb_bitcast")
struct Bitcast:
    """The same bits as another dtype of the same width."""

    @staticmethod
    def execute[
        target: StaticString
    ](result: OutputTensor, a: InputTensor[rank=result.rank, ...], ctx: DeviceContext) raises:
        def element[width: Int](at: Coord[...]) {var a} -> SIMD[result.dtype, width]:
            return bitcast[result.dtype, width](a.load[width](at))

        foreach[target=target](element, result, ctx)

"""Accumulators of reductions and scans: what they begin with, how a value is added, how several become one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from torch_max_backend.codegen.expression_writer import ExpressionWriter, Value, literal
from torch_max_backend.loops.expr import SHORT, Const, Op
from torch_max_backend.loops.index import Var
from torch_max_backend.loops.program import Scan
from torch_max_backend.schedule import cost
from torch_max_backend.schedule.nest import StageNest, Statement
from torch_max_backend.schedule.wide_extremes import EXTREMES

CHAIN = 16
"""Additions one after the other in an accumulator of float32, before it is added to a total in float64: the rounding
errors of long sums grow with them."""

_FIRST = {"sum": "0", "product": "1", "any": "0", "all": "1"}
COMBINE = {
    "sum": "add",
    "product": "mul",
    "any": "bit_or",
    "all": "bit_and",
    "maximum": "maximum",
    "minimum": "minimum",
}
"""The operation on two values by which each combiner works."""
SCALED_NEARLY: Mapping[torch.dtype, str] = {torch.float32: "exp_nearly"}
"""The processor's own exponentials, by which a GPU's kernels scale sums of exponentials."""
_ACROSS = {
    "sum": "reduce_add",
    "product": "reduce_mul",
    "any": "reduce_or",
    "all": "reduce_and",
    "maximum": "reduce_max",
    "minimum": "reduce_min",
}
_FAR = 2**31
"""Places below this are kept in 32 bits, where these are as long as values."""


class Accumulator(NamedTuple):
    """The names of a value and, if it has one, of its place; and their lanes.

    A sum of exponentials is a greatest value, and in ``place`` the sum of ``exp(x - greatest)``. That of a reduction
    (``sum_exp``) has one greatest value for all lanes.
    """

    value: str
    place: str = ""
    lanes: int = 1


Accumulators = dict[str, Accumulator]
"""By statement."""


@dataclass(frozen=True)
class Reduction:
    """A stage's reduced loops, and where their results gather.

    Attributes:
        along: The reduced variable along which vectors run, if any.
        wide: Accumulators of vectors along it. Several of them do not wait for each other; one may be there several
            times, for as many vectors.
        narrow: Accumulators of single elements, or of vectors along another loop; none where all elements are in wide
            ones.
        totals: Sums in float64 of what accumulators hold from time to time.
    """

    stage: StageNest
    along: Var | None
    wide: list[Accumulators]
    narrow: Accumulators
    totals: dict[str, Value]

    @property
    def chains(self) -> int:
        """How many different accumulators of vectors there are."""
        return len({id(x) for x in self.wide})


class AccumulatorWriter(ExpressionWriter):
    """Writes what becomes of accumulators, which is the same whatever loops run around it."""

    reducing: tuple[Var, ...] = ()
    """The reduced variables of the stage at work."""
    one_more: Mapping[str, str] = {**COMBINE, "maximum": "maximum_so_far", "minimum": "minimum_so_far"}
    """The operation by which an accumulator takes one more value."""
    short_places = True
    """Whether places of extremes are kept in 32 bits where these hold them."""
    scaled_by: Mapping[torch.dtype, str] = {}
    """The exponential that scales sums of exponentials of a dtype, where it is not the exact one."""

    def _accumulators(self, stage: StageNest, lanes: int) -> Accumulators:
        """New accumulators for what a stage reduces or scans."""
        found: Accumulators = {}
        for s in stage.statements:
            if not s.combiner or self._with_place(stage, s) is not None:
                continue
            kept = self._lanes_kept(s, lanes)
            of_value = 1 if s.combiner == "sum_exp" else kept
            value, _ = self._new("a", _initial(s.combiner, s.body.dtype, of_value), of_value)
            place = ""
            if s.place is not None:  # what nothing is better than is at the first place, whatever else there is
                place, _ = self._new("at", f"const[{self._place_dtype(s)}, {kept}](0)", kept)
            elif s.combiner in ("log_sum_exp", "sum_exp"):
                place, _ = self._new("sum", f"const[{SHORT[s.body.dtype]}, {kept}](0)", kept)
            found[s.name] = Accumulator(value, place, kept)
        return found

    def _lanes_kept(self, s: Statement, lanes: int) -> int:
        """The lanes of a statement's accumulator for values of so many lanes."""
        return lanes

    def _with_place(self, stage: StageNest, s: Statement) -> Statement | None:
        """The statement that finds the extreme that another one is beside its place, or exponentials below it."""
        wanted = {"maximum": ("argmax", "sum_exp"), "minimum": ("argmin",)}.get(s.combiner, ())
        if s.how is not None:
            return None
        return next((t for t in stage.statements if t.combiner in wanted and t.how is None and t.body == s.body), None)

    def _place_dtype(self, s: Statement) -> str:
        """The integers in which an accumulator has its place."""
        assert s.place is not None
        is_short = self.short_places and s.how is None and s.place.bounds[1] < _FAR and s.body.dtype.itemsize <= 4
        return "i32" if is_short else "i64"

    def _totals(self, stage: StageNest, accumulators: list[Accumulators]) -> dict[str, Value]:
        """Sums in float64 of what accumulators in float32 hold from time to time, where these would add up too much."""
        found: dict[str, Value] = {}
        lanes = next(iter(accumulators[0].values())).lanes if accumulators[0] else 1
        each = lanes * len({id(x) for x in accumulators}) if stage.vector in stage.reduced else 1
        if cost.most(stage.reduced) <= CHAIN * each:
            return found
        for s in stage.statements:
            if s.combiner == "sum" and s.body.dtype is torch.float32:
                found[s.name] = self._new("total", f"const[f64, {lanes}](0)", lanes)
        return found

    def _added_product(self, s: Statement, accumulator: Accumulator) -> bool:
        """Add a product to a sum of floats in one rounding, where it is nothing else; whether that was done."""
        x, lanes = s.body, accumulator.lanes
        if s.combiner != "sum" or s.how is not None or not isinstance(x, Op) or x.name != "mul":
            return False
        if x.dtype not in (torch.float32, torch.float64) or self.masked or self._known(x) is not None:
            return False
        left, right = (self._widened(self._scalar(y), lanes) for y in x.args)
        self._line(f"{accumulator.value} = fma({left}, {right}, {accumulator.value})")
        return True

    def _accumulate(self, s: Statement, accumulator: Accumulator, value: str) -> None:
        """Combine an accumulator with one more value of as many lanes."""
        name, place, lanes = accumulator
        if self.masked and lanes > 1 and self.vector in self.reducing:
            here = f"first_lanes[{lanes}]({self.masked})"
            value, _ = self._new("m", f"select({here}, {value}, {_initial(s.combiner, s.body.dtype, lanes)})", lanes)
        if isinstance(s.how, Scan) and lanes == 1 and s.combiner in EXTREMES:
            with self._block(f"if condition({better(s, value, name)}):"):  # seldom, and processors guess that
                self._line(f"{name} = {value}")
                if s.place is not None:
                    self._line(f"{place} = {self._widened(self._from_index(s.place), lanes)}")
            return
        if s.combiner == "sum_exp":
            self._add_below(s, accumulator, value)
            return
        if s.combiner == "log_sum_exp":
            one = f"const[{SHORT[s.body.dtype]}, {lanes}](1)"
            self._add_exponentials(s, accumulator, accumulator, Accumulator(value, one, lanes))
            return
        if s.place is None:
            self._line(f"{name} = {self.one_more[s.combiner]}({name}, {value})")
            return
        position = self._widened(self._from_index(s.place, self._place_dtype(s)), lanes)
        chosen, _ = self._new("c", better(s, value, name), lanes)
        self._line(f"{name} = select({chosen}, {value}, {name})")
        self._line(f"{place} = select({chosen}, {position}, {place})")

    def _prefixes(self, s: Statement, before: Accumulator, value: str) -> Accumulator:
        """A vector along a scan, each lane combined with those before it and with all earlier vectors; these follow.

        Most vectors have nothing that is beyond the extreme so far.
        """
        lanes = self.lanes
        own = Accumulator(self._new("a", value, lanes)[0], "", lanes)
        wide = self._each(before, lanes, lambda x, _: f"splat[{lanes}]({x})")
        if s.combiner not in EXTREMES:
            return self._prefixes_in_vector(s, before, own, wide)
        with self._block(f"if condition(reduce_or({better(s, own.value, wide.value)})):"):
            found = self._prefixes_in_vector(s, before, own, wide)
            for x, y in zip(wide[:2], found[:2], strict=True):
                if x:
                    self._line(f"{x} = {y}")
        return wide

    def _prefixes_in_vector(
        self, s: Statement, before: Accumulator, own: Accumulator, wide: Accumulator
    ) -> Accumulator:
        """In each of four steps, lanes are combined with what those 1, 2, 4 and 8 before them have; then with what is
        before the vector, which ``wide`` has in every lane."""
        lanes = self.lanes
        nothing = Accumulator(self._new("b", _initial(s.combiner, s.body.dtype, lanes), lanes)[0], "", lanes)
        if s.place is not None:  # within the vector: these take 32 bits
            own = own._replace(place=self._new("at", f"iota[i32, {lanes}]()", lanes)[0])
            nothing = nothing._replace(place=f"const[i32, {lanes}](0)")
        by = 1
        while by < lanes:
            self._follow(s, own, self._each(own, lanes, lambda x, y: f"moved_up[{by}]({y}, {x})", nothing))  # noqa: B023
            by *= 2
        if s.place is not None:
            begin = f"from_int[i64, {lanes}]({self._index(s.place)})"
            own = own._replace(place=self._new("at", f"add({begin}, cast[i64]({own.place}))", lanes)[0])
        last = self._each(own, 1, lambda x, _: f"lane_at({x}, {lanes - 1})")
        self._follow(s, own, wide)
        self._follow(s, last, before)  # for one element, which is all that the next vector waits for
        for x, y in zip(before[:2], last[:2], strict=True):
            if x:
                self._line(f"{x} = {y}")
        return own

    def _each(
        self, a: Accumulator, lanes: int, of: Callable[[str, str], str], b: Accumulator | None = None
    ) -> Accumulator:
        """A new accumulator, of functions of the value and of the place that one has, or two have."""
        value, _ = self._new("b", of(a.value, b.value if b else ""), lanes)
        place = self._new("at", of(a.place, b.place if b else ""), lanes)[0] if a.place else ""
        return Accumulator(value, place, lanes)

    def _follow(self, s: Statement, own: Accumulator, before: Accumulator) -> None:
        """Combine a prefix with the one before it."""
        if s.place is not None:
            stays, _ = self._new("c", better(s, own.value, before.value), own.lanes)
            for x, y in zip(own[:2], before[:2], strict=True):
                self._line(f"{x} = select({stays}, {x}, {y})")
        elif s.combiner == "log_sum_exp":
            self._add_exponentials(s, own, before, own)
        else:  # the last of equals stays, as zeros of both signs are
            self._line(f"{own.value} = {COMBINE[s.combiner]}({own.value}, {before.value})")

    def _flush(self, r: Reduction) -> None:
        """Add the accumulators to their totals, and begin again."""
        for name, (total, lanes) in r.totals.items():
            parts = list(dict.fromkeys(a[name].value for a in r.wide or [r.narrow]))
            sums = parts[0]
            for part in parts[1:]:
                sums = f"add({sums}, {part})"
            self._line(f"{total} = add({total}, cast[f64]({sums}))")
            for part in parts:
                self._line(f"{part} = const[f32, {lanes}](0)")

    def _result(self, r: Reduction, s: Statement) -> Accumulator:
        """All accumulators of a statement as one; of one lane, unless vectors run along another loop."""
        narrow = r.narrow.get(s.name)
        if s.name in r.totals:
            total, lanes = r.totals[s.name]
            if r.along is not None:
                total, lanes = f"reduce_add({total})", 1
            if r.along is not None and narrow is not None:
                total = f"add({total}, cast[f64]({narrow.value}))"
            return Accumulator(self._new("a", f"cast[{SHORT[gathered_dtype(s)]}]({total})", lanes)[0], "", lanes)
        result = narrow
        wide = list(dict.fromkeys(accumulators[s.name] for accumulators in r.wide))
        for accumulator in reversed(self._paired(s, wide)):
            result = self._merged(s, accumulator, result)
        assert result is not None
        if gathered_dtype(s) is not s.body.dtype:
            value, _ = self._new("a", f"cast[{SHORT[gathered_dtype(s)]}]({result.value})", result.lanes)
            return result._replace(value=value)
        return result

    def _paired(self, s: Statement, wide: list[Accumulator]) -> list[Accumulator]:
        """All accumulators as one of as many lanes: lanes are combined once, which takes longer than vectors."""
        while len(wide) > 1:
            pairs = [wide[k : k + 2] for k in range(0, len(wide), 2)]
            wide = [self._pair(s, *pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return wide

    def _pair(self, s: Statement, a: Accumulator, b: Accumulator) -> Accumulator:
        if s.place is not None:
            return self._better_of(s, a, b)
        return a._replace(value=self._new("a", f"{COMBINE[s.combiner]}({a.value}, {b.value})", a.lanes)[0])

    def _merged(self, s: Statement, wide: Accumulator, narrow: Accumulator | None) -> Accumulator:
        """Two accumulators as one, of one lane."""
        value, place, lanes = wide
        if s.combiner == "sum_exp":
            one = Accumulator(value, self._new("b", f"reduce_add({place})", 1)[0] if lanes > 1 else place)
            return one if narrow is None else self._both_below(s, one, narrow)
        if s.place is None:
            across = value if lanes == 1 else f"{_ACROSS[s.combiner]}({value})"
            if narrow is None:
                return Accumulator(self._new("a", across, 1)[0])
            name, _ = self._new("a", f"{COMBINE[s.combiner]}({across}, {narrow[0]})", 1)
            return Accumulator(name)
        largest = "reduce_max" if s.combiner == "argmax" else "reduce_min"
        top, _ = self._new("a", f"{largest}({value})", 1)
        here = f"eq({value}, splat[{lanes}]({top}))"
        if s.body.dtype.is_floating_point:
            here = f"bit_or({here}, bit_and(is_nan({value}), is_nan(splat[{lanes}]({top}))))"
        short = self._place_dtype(s)
        last = f"const[{short}, {lanes}]({_FAR - 1 if short == 'i32' else 2**63 - 1})"
        least, _ = self._new("at", f"reduce_min(select({here}, {place}, {last}))", 1)
        one = Accumulator(top, least)
        return one if narrow is None else self._better_of(s, one, narrow)

    def _better_of(self, s: Statement, a: Accumulator, b: Accumulator) -> Accumulator:
        """The better of two: the earlier one of equals."""
        equal = f"eq({a.value}, {b.value})"
        if s.body.dtype.is_floating_point:
            equal = f"bit_or({equal}, bit_and(is_nan({a.value}), is_nan({b.value})))"
        wins = f"bit_or({better(s, b.value, a.value)}, bit_and({equal}, lt({b.place}, {a.place})))"
        chosen, _ = self._new("c", wins, a.lanes)
        value, _ = self._new("a", f"select({chosen}, {b.value}, {a.value})", a.lanes)
        place, _ = self._new("at", f"select({chosen}, {b.place}, {a.place})", a.lanes)
        return Accumulator(value, place, a.lanes)

    def _add_exponentials(self, s: Statement, to: Accumulator, a: Accumulator, b: Accumulator) -> None:
        """Let ``to``, which may be one of them, be the sum of two sums of exponentials.

        The lesser greatest value is scaled by a factor of at most 1, so that the processor's own exponential is as good
        as an exact one. Two equal infinities have the factor 1.
        """
        lanes, short = a.lanes, SHORT[s.body.dtype]
        high, _ = self._new("a", f"maximum({a.value}, {b.value})", lanes)
        low, _ = self._new("a", f"minimum({a.value}, {b.value})", lanes)
        exp = self.scaled_by.get(s.body.dtype, "exp")
        is_one, one = f"eq({high}, {low})", f"const[{short}, {lanes}](1)"
        factor, _ = self._new("b", f"select({is_one}, {one}, {exp}(sub({low}, {high})))", lanes)
        first, second = f"fma({a.place}, {factor}, {b.place})", f"fma({b.place}, {factor}, {a.place})"
        total, _ = self._new("b", f"select(gt({b.value}, {a.value}), {first}, {second})", lanes)
        self._line(f"{to.value} = {high}")
        self._line(f"{to.place} = {total}")

    def _add_below(self, s: Statement, accumulator: Accumulator, value: str) -> None:
        """Add the exponentials of a vector below the greatest value so far. Of minus infinity they are 0.

        The processor's own exponential is good enough: it is the less exact the farther below, where less depends on
        it.
        """
        greatest, total, lanes = accumulator
        top = value if lanes == 1 else f"reduce_max({value})"
        high, _ = self._new("a", f"maximum({greatest}, {top})", 1)
        level, exp = self._level(s, high), self.scaled_by.get(s.body.dtype, "exp")
        factor, _ = self._new("b", f"{exp}(sub({greatest}, {level}))", 1)
        wide, factors = (self._widened((x, 1), lanes) for x in (level, factor))
        self._line(f"{total} = fma({total}, {factors}, {exp}(sub({value}, {wide})))")
        self._line(f"{greatest} = {high}")

    def _level(self, s: Statement, greatest: str) -> str:
        """What exponentials are below: the greatest value, or 0 if all are minus infinity."""
        short = SHORT[s.body.dtype]
        is_least = f"eq({greatest}, neg(infinity[{short}, 1]()))"
        return self._new("b", f"select({is_least}, const[{short}, 1](0), {greatest})", 1)[0]

    def _below(self, s: Statement, own: Accumulator, greatest: str, total: str) -> Accumulator:
        """A sum of exponentials, of one lane, below a greatest value of others, too."""
        high, _ = self._new("a", greatest, 1)
        exp = self.scaled_by.get(s.body.dtype, "exp")
        scaled = f"mul({total}, {exp}(sub({own.value}, {self._level(s, high)})))"
        return Accumulator(high, self._new("b", scaled, 1)[0])

    def _both_below(self, s: Statement, a: Accumulator, b: Accumulator) -> Accumulator:
        """Two sums of exponentials as one, of one lane."""
        high, _ = self._new("a", f"maximum({a.value}, {b.value})", 1)
        parts = [self._below(s, x, high, x.place).place for x in (a, b)]
        return Accumulator(high, self._new("b", f"add({', '.join(parts)})", 1)[0])

    def _taken(self, s: Statement, accumulator: Accumulator) -> Value:
        """What a statement gives: the place, or the value in its own dtype."""
        value, place, lanes = accumulator
        if s.combiner == "sum_exp":
            return place, lanes
        if s.place is not None:
            return (place if self._place_dtype(s) == "i64" else f"cast[i64]({place})"), lanes
        if s.combiner == "log_sum_exp":
            value = f"add({value}, log({place}))"
        if gathered_dtype(s) is not s.dtype:
            return f"cast[{SHORT[s.dtype]}]({value})", lanes
        return value, lanes

    def _combined(self, s: Statement, combiner: str, value: str, have: int) -> Value:
        """A value combined with what is in memory at its address."""
        assert s.address is not None
        old, lanes = self._read(s.name, s.address)
        new = self._widened((value, have), lanes)
        if s.dtype is torch.bool:
            return f"{'bit_or' if combiner in ('sum', 'maximum') else 'bit_and'}({old}, {new})", lanes
        if s.dtype in (torch.float16, torch.bfloat16):
            return f"cast[{SHORT[s.dtype]}]({COMBINE[combiner]}(cast[f32]({old}), cast[f32]({new})))", lanes
        return f"{COMBINE[combiner]}({old}, {new})", lanes


def gathered_dtype(s: Statement) -> torch.dtype:
    """The dtype in which a statement's accumulators become one."""
    wide = s.combiner == "sum" and s.dtype is torch.float64 and not isinstance(s.how, Scan)
    return torch.float64 if wide else s.body.dtype


def _initial(combiner: str, dtype: torch.dtype, lanes: int) -> str:
    short = SHORT[dtype]
    if combiner in _FIRST:
        return f"const[{short}, {lanes}]({_FIRST[combiner]})"
    smallest = combiner in ("maximum", "argmax", "log_sum_exp", "sum_exp")
    if dtype.is_floating_point:
        return f"neg(infinity[{short}, {lanes}]())" if smallest else f"infinity[{short}, {lanes}]()"
    info = torch.iinfo(dtype)
    return literal(Const(info.min if smallest else info.max, dtype), lanes)


def better(s: Statement, new: str, old: str) -> str:
    """Whether a new value is beyond the best one so far; NaN is beyond all numbers. In a scan an equal one is, too."""
    if isinstance(s.how, Scan):
        beyond = f"{'ge' if s.combiner in ('argmax', 'maximum') else 'le'}({new}, {old})"
        return f"bit_or({beyond}, is_nan({new}))" if s.body.dtype.is_floating_point else beyond
    if s.body.dtype.is_floating_point:  # one comparison finds what is beyond or NaN
        behind = f"{'le' if s.combiner == 'argmax' else 'ge'}({new}, {old})"
        return f"bit_and(bit_not({behind}), bit_not(is_nan({old})))"
    return f"{'gt' if s.combiner == 'argmax' else 'lt'}({new}, {old})"

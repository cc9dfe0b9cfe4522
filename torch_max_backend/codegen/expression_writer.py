"""Scalars and indices as Mojo text: what stands inside of a kernel's loops, whoever runs these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from torch_max_backend.base.dtypes import FLOAT8
from torch_max_backend.codegen.source import ERRORS, Slot
from torch_max_backend.loops.expr import (
    CASTS,
    SHORT,
    Checked,
    Const,
    FromIndex,
    Guarded,
    Load,
    Op,
    Scalar,
    loads,
    variables,
    walk,
)
from torch_max_backend.loops.index import Atom, Computed, Div, Index, Least, Mod, Product, Var, product
from torch_max_backend.schedule.nest import EVERY

Value = tuple[str, int]
"""The text of a value, and its number of lanes."""
FEWEST = 4
"""Lanes, at least, that are picked from whole vectors."""


class ExpressionWriter:
    """Writes scalars and indices at one place of a kernel: inside blocks and loops, maybe in vectors along one of them.

    The attributes say where it is. Whoever writes loops sets ``place`` and the vector, and takes them back. What is
    computed in a block has a name there, and is not computed again inside it.
    """

    picks_lanes = False
    """Whether elements in short steps are picked from whole vectors."""

    def __init__(self, tensors: Sequence[str], slots: Mapping[str, Slot]) -> None:
        self.tensors, self.slots = list(tensors), slots
        self.pointers = {name: f"p{k}" for k, name in enumerate(self.tensors)}
        """What a tensor is called in the kernel."""
        self.numbers: dict[Index, str] = {}
        """What is known before any loop runs, by symbolic sizes; arguments of the kernel."""
        self.lines: list[str] = []
        self.depth = 1
        """By how many steps lines are indented."""
        self.count = 0
        """How many names there are: they are numbered."""
        self.scopes: list[dict[Scalar, Value]] = []
        """What is computed in each of the blocks here, the outermost first."""
        self.place: dict[Var, str] = {}
        """The text of each variable that has a value here."""
        self.registers: dict[str, Value] = {}
        """The results of statements that are at hand, by name."""
        self.vector: Var | None = None
        """The variable along which vectors run here, if any."""
        self.lanes = 1
        """Of these vectors."""
        self.masked = ""
        """The number of lanes that count, as text; empty if all do."""
        self.where = ""
        """A vector of the lanes that read memory, as text; empty if all that count do."""

    # -- text ------------------------------------------------------------------------------------------------
    def _line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def _new(self, prefix: str, value: str, lanes: int) -> Value:
        self.count += 1
        name = f"{prefix}{self.count}"
        self._line(f"var {name} = {value}")
        return name, lanes

    @contextmanager
    def _scope(self) -> Iterator[None]:
        self.scopes.append({})
        yield
        self.scopes.pop()

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._line(head)
        self.depth += 1
        mark = len(self.lines)
        with self._scope():
            yield
        if len(self.lines) == mark:
            self._line("pass")
        self.depth -= 1

    # -- scalars ---------------------------------------------------------------------------------------------
    def _known(self, x: Scalar) -> Value | None:
        for scope in reversed(self.scopes):
            if x in scope:
                return scope[x]
        return None

    def _scalar(self, x: Scalar) -> Value:
        """The text of an expression's value, and its number of lanes."""
        if isinstance(x, Const):
            return literal(x, 1), 1
        if isinstance(x, Load) and not x.index:
            return self.registers[x.source]
        known = self._known(x)
        if known is None:
            known = self._computed(x)
            self.scopes[-1][x] = known
        return known

    def _computed(self, x: Scalar) -> Value:
        if isinstance(x, Load):
            return self._load(x)
        if isinstance(x, FromIndex):
            text, lanes = self._from_index(x.index)
            return self._new("n", text, lanes)
        if isinstance(x, Guarded):
            return self._guarded(x)
        if isinstance(x, Checked):
            value, lanes = self._scalar(x.value)
            call, size = f"{'wrapped' if x.wraps else 'checked'}_index", self._index(Index.of(x.size))
            return self._new("at", f"{call}({self.pointers[ERRORS]}, {value}, {size}, {x.site + 1})", lanes)
        assert isinstance(x, Op)
        values = [self._scalar(a) for a in x.args]
        lanes = max(n for _, n in values)
        args = ", ".join(self._widened(v, lanes) for v in values)
        return self._new("v", f"{self._spelled(x)}({args})", lanes)

    def _spelled(self, x: Op) -> str:
        return _spelled(x)

    def _widened(self, value: Value, lanes: int) -> str:
        text, have = value
        if have == lanes:
            return text
        if text.startswith("const["):
            return text.replace(", 1](", f", {lanes}](", 1)
        return f"splat[{lanes}]({text})"

    # -- memory ----------------------------------------------------------------------------------------------
    def _joined(self, lanes: list[str], short: str) -> str:
        """The name of a vector of these elements."""
        text, _ = self._new("w", f"const[{short}, {len(lanes)}](0)", len(lanes))
        for k, lane in enumerate(lanes):
            self._line(f"{text} = with_lane({text}, {k}, {lane})")
        return text

    def _load(self, x: Load) -> Value:
        return self._read(x.source, x.index[0])

    def _read(self, source: str, address: Index) -> Value:
        pointer = self.pointers[source]
        step = self._step(address)
        if step == 0 or self.lanes == 1:
            return self._new("x", f"load[1]({pointer}, {self._index(address)})", 1)
        if self.where and step == 1:
            text = f"load_where[{self.lanes}]({pointer}, {self._index(address)}, {self.where})"
            return self._new("x", text, self.lanes)
        if self.where:
            text = f"load_at_where[{self.lanes}]({pointer}, {self._index_vector(address)}, {self.where})"
            return self._new("x", text, self.lanes)
        if step is None and self.masked:
            here = f"first_lanes[{self.lanes}]({self.masked})"
            text = f"load_at_where[{self.lanes}]({pointer}, {self._index_vector(address)}, {here})"
            return self._new("x", text, self.lanes)
        if step is None:
            return self._new("x", f"load_at[{self.lanes}]({pointer}, {self._index_vector(address)})", self.lanes)
        if step == 1 and self.masked:
            other = f"const[{SHORT[self.slots[source].dtype]}, {self.lanes}](0)"
            where = f"{pointer}, {self._index(address)}, {self.masked}"
            return self._new("x", f"load_masked[{self.lanes}]({where}, {other})", self.lanes)
        if step == 1:
            load = self._whole("load", address)
            return self._new("x", f"{load}[{self.lanes}]({pointer}, {self._index(address)})", self.lanes)
        if self.picks_lanes and not self.masked and self.lanes >= FEWEST and step in EVERY:
            width = self.lanes if step == 2 else 2 * self.lanes
            where = f"{step}, {width}, {(self.lanes - 1) * int(step) + 1 - width}, {self.lanes}"
            return self._new("x", f"load_every[{where}]({pointer}, {self._index(address)})", self.lanes)
        masked = ("_masked", f", {self.masked}") if self.masked else ("", "")
        text = f"load_strided{masked[0]}[{self.lanes}]({pointer}, {self._index(address)}, {step}{masked[1]})"
        return self._new("x", text, self.lanes)

    def _whole(self, access: str, address: Index) -> str:
        """What loads or stores a whole vector of neighbours."""
        return access

    # -- conditions ------------------------------------------------------------------------------------------
    def _condition(self, x: Guarded) -> Value:
        return self._scalar(x.condition)

    def _guarded(self, x: Guarded) -> Value:
        condition, lanes_of_condition = self._condition(x)
        wide = self.vector is not None and self.vector in variables(x)
        in_registers = [self.registers[y.source][1] for y in loads(x) if not y.index]
        lanes = max(self.lanes if wide else 1, lanes_of_condition, *in_registers, 1)
        if lanes_of_condition > 1:
            return self._by_lanes(x, condition, lanes)
        other = (literal(Const(0, x.dtype), 1), 1) if self._alternates(x) else self._scalar(x.other)
        name, _ = self._new("g", self._widened(other, lanes), lanes)
        with self._block(f"if condition({condition}):"):
            self._line(f"{name} = {self._widened(self._scalar(x.value), lanes)}")
        if self._alternates(x):
            with self._block("else:"):
                self._line(f"{name} = {self._widened(self._scalar(x.other), lanes)}")
        return name, lanes

    def _alternates(self, x: Guarded) -> bool:
        """Whether the other value reads or checks what is not known yet, and must not be computed for nothing."""
        reads = (y for y in walk(x.other) if isinstance(y, Checked) or (isinstance(y, Load) and y.index))
        return any(self._known(y) is None for y in reads)

    def _by_lanes(self, x: Guarded, condition: str, lanes: int) -> Value:
        """A condition that differs from lane to lane: both sides for the lanes that take them, and then a choice."""
        counted = f"bit_and({condition}, first_lanes[{lanes}]({self.masked}))" if self.masked else condition
        outer, last = self.where, not self._alternates(x)
        here, _ = self._new("here", f"bit_and({counted}, {outer})" if outer else counted, lanes)
        other = self._scalar(x.other) if last else (literal(Const(0, x.dtype), 1), 1)
        name, _ = self._new("g", self._widened(other, lanes), lanes)
        sides = [(here, x.value)]
        if not last:
            rest = f"bit_and({outer}, bit_not({condition}))" if outer else f"bit_not({condition})"
            rest = f"bit_and({rest}, first_lanes[{lanes}]({self.masked}))" if self.masked else rest
            sides.append((self._new("here", rest, lanes)[0], x.other))
        for lanes_here, side in sides:
            with self._block(f"if condition(reduce_or({lanes_here})):"):
                self.where = lanes_here
                self._line(f"{name} = select({lanes_here}, {self._widened(self._scalar(side), lanes)}, {name})")
                self.where = outer
        return name, lanes

    # -- indices ---------------------------------------------------------------------------------------------
    def _step(self, index: Index) -> int | str | None:
        """By how much an index grows from lane to lane, as a number or as text; ``None`` where that differs."""
        if self.vector is None or self.lanes == 1:
            return 0
        for atom, _ in index.terms:
            factors = atom.factors if isinstance(atom, Product) else (atom,)
            if any(not isinstance(f, Var) and self._differs(f) for f in factors):
                return None
        step = index.stride(self.vector)
        if step is None:
            return None
        return step.constant if step.is_constant else f"({self._index(step)})"

    def _differs(self, atom: Atom) -> bool:
        """Whether an atom has another value in each lane: by the loop's variable, or by a vector in registers."""
        computed = [a.value for a in Index.of(atom).atoms if isinstance(a, Computed)]
        return self.vector in reach(atom) or any(
            self.registers[x.source][1] > 1 for x in loads(*computed) if not x.index
        )

    def _index(self, index: Index) -> str:
        """The text of an index, in the first lane."""
        parts = []
        for atom, k in index.terms:
            parts.append(self._term(atom, k))
        if index.constant or not parts:
            parts.append(str(index.constant))
        return " + ".join(parts)

    def _term(self, atom: Atom, k: int) -> str:
        """The text of a term of an index, an atom ``k`` times."""
        text = self._atom(atom)
        return text if k == 1 else f"{k} * {text}"

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, Var):
            return self.place[atom]
        if Index.of(atom).is_fixed:
            return self._number(Index.of(atom))
        if isinstance(atom, Computed):
            text, _ = self._scalar(atom.value)
            return f"to_int({text})"
        if isinstance(atom, Product):
            fixed = [Index.of(f) for f in atom.factors if Index.of(f).is_fixed]
            texts = [self._number(product(fixed))] if fixed else []
            texts += [self._atom(f) for f in atom.factors if not Index.of(f).is_fixed]
            return "(" + " * ".join(texts) + ")"
        if isinstance(atom, Least):
            return f"imin({self._index(atom.left)}, {self._index(atom.right)})"
        assert isinstance(atom, Div | Mod)
        return self._division(atom)

    def _number(self, x: Index) -> str:
        """The kernel's argument for what symbolic sizes give."""
        return self.numbers.setdefault(x, f"s{len(self.numbers)}")

    def _division(self, atom: Div | Mod) -> str:
        """``Int``'s own division is one of unsigned numbers. A dividend that may be negative is made positive first."""
        dividend, divisor, low = atom.dividend, atom.divisor, atom.dividend.bounds[0]
        sign = "//" if isinstance(atom, Div) else "%"
        if low >= 0:
            return f"(({self._index(dividend)}) {sign} ({self._index(divisor)}))"
        if divisor.is_constant and math.isfinite(low):
            times = math.ceil(-low / divisor.constant)
            text = f"(({self._index(dividend + times * divisor.constant)}) {sign} {divisor.constant})"
            return f"({text} - {times})" if isinstance(atom, Div) else text
        name = "floor_div" if isinstance(atom, Div) else "remainder"
        return f"to_int({name}(from_int[i64, 1]({self._index(dividend)}), from_int[i64, 1]({self._index(divisor)})))"

    def _from_index(self, index: Index, dtype: str = "i64") -> Value:
        """An index as a number of an integer type that holds it."""
        step = self._step(index)
        if step is None:
            text = self._index_vector(index)
            return text if dtype == "i64" else f"cast[{dtype}]({text})", self.lanes
        text = self._index(index)
        if step == 0:
            return f"from_int[{dtype}, 1]({text})", 1
        ramp = f"iota[{dtype}, {self.lanes}]()"
        if step != 1:
            wide = f"const[{dtype}, {self.lanes}]" if isinstance(step, int) else f"from_int[{dtype}, {self.lanes}]"
            ramp = f"mul({ramp}, {wide}({step}))"
        return f"add(from_int[{dtype}, {self.lanes}]({text}), {ramp})", self.lanes

    def _index_vector(self, index: Index) -> str:
        """An index in every lane, as a vector of int64."""
        lanes = self.lanes
        total = f"const[i64, {lanes}]({index.constant})"
        for atom, k in index.terms:
            text = self._atom_vector(atom)
            text = text if k == 1 else f"mul({text}, const[i64, {lanes}]({k}))"
            total = f"add({total}, {text})"
        return self._new("n", total, lanes)[0]

    def _atom_vector(self, atom: Atom) -> str:
        lanes = self.lanes
        if not self._differs(atom):
            return f"from_int[i64, {lanes}]({self._atom(atom)})"
        if isinstance(atom, Var):
            return f"add(from_int[i64, {lanes}]({self.place[atom]}), iota[i64, {lanes}]())"
        if isinstance(atom, Computed):
            return self._widened(self._scalar(atom.value), lanes)
        if isinstance(atom, Div | Mod):
            name = "floor_div" if isinstance(atom, Div) else "remainder"
            return f"{name}({self._index_vector(atom.dividend)}, {self._index_vector(atom.divisor)})"
        if isinstance(atom, Least):
            return f"minimum({self._index_vector(atom.left)}, {self._index_vector(atom.right)})"
        assert isinstance(atom, Product)
        parts = [self._atom_vector(f) for f in atom.factors]
        text = parts[0]
        for part in parts[1:]:
            text = f"mul({text}, {part})"
        return text


def _spelled(x: Op) -> str:
    """What the kernel interface calls an operation."""
    if x.name in CASTS and x.args[0].dtype in FLOAT8:
        return f"{SHORT[x.args[0].dtype].removeprefix('f8_')}_to_{SHORT[x.dtype]}"
    if x.name in (*CASTS, "bitcast"):
        return f"{'bitcast' if x.name == 'bitcast' else 'cast'}[{SHORT[x.dtype]}]"
    if x.name == "pow":  # Mojo's own name would win over an imported one
        return "power" if x.dtype.is_floating_point else "integer_power"
    return x.name


def reach(atom: Atom) -> set[Var]:
    """Every variable in an atom, those inside computed integers included."""
    index = Index(0, ((atom, 1),))
    found = set(index.variables)
    for a in index.atoms:
        if isinstance(a, Computed):
            found |= variables(a.value)
    return found


def literal(x: Const, lanes: int, short: str = "") -> str:
    """A number in every lane, of another dtype if one is given."""
    short = short or SHORT[x.dtype]
    if x.dtype is torch.bool:
        return f"const[{short}, {lanes}]({int(x.value)})"
    if isinstance(x.value, float) and not math.isfinite(x.value):
        if math.isnan(x.value):
            return f"not_a_number[{short}, {lanes}]()"
        return f"infinity[{short}, {lanes}]()" if x.value > 0 else f"neg(infinity[{short}, {lanes}]())"
    if isinstance(x.value, float):
        return f"const[{short}, {lanes}]({x.value!r})"
    return f"const[{short}, {lanes}]({x.value})"

"""A GPU for generated kernels, in torch on the CPU: their very text is run, by all threads of a grid at the same time.

Beside the results it finds what a GPU would not show, or only now and then:

- an access outside of its tensor, or to an address that is no multiple of its vector;
- an element that two threads write, or that one thread reads and another one writes without a barrier between;
- a barrier, a shuffle or a reduction of threads at which not all of them are; a value for a block of a cluster that may
  not run yet;
- a number that is divided as one of 32 bits, and is none; a remainder of a negative number;
- a result of a thread without an element of its own: such a one computes another's, and must keep that to itself.

What is written is filled with a pattern first, so that an element that no thread writes differs from what is wanted.
"""

from __future__ import annotations

import ast
import ctypes
import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.utils._pytree import tree_map

from torch_max_backend.base.dtypes import FLOAT8
from torch_max_backend.codegen.program_writer import WrittenProgram
from torch_max_backend.loops.expr import OPERATIONS, SHORT
from torch_max_backend.loops.interpreter import _TORCH
from torch_max_backend.runtime import program as program_module
from torch_max_backend.runtime.grid_program import GridLibrary, KernelLaunch, realigned
from torch_max_backend.runtime.sole_owner import references

WARP = 32
DTYPES = {short: torch.uint8 if dtype in FLOAT8 else dtype for dtype, short in SHORT.items()}
PATTERN = 0x5A
"""Of bytes that nothing has written."""
MANY = -2
"""In the place of a thread: several of them."""


class WrongKernelError(AssertionError):
    """A kernel does what a GPU must not."""


@dataclass(frozen=True)
class Pointer:
    """A kernel's parameter: the bytes from an address to the end of its memory, and who touched them."""

    name: str
    dtype: torch.dtype
    memory: torch.Tensor
    touched: Touched
    address: int
    shared: int = 0
    """For memory of a block, how many elements a block has."""
    idle: torch.Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """Of a block's memory, what threads without an element have written."""

    @property
    def elements(self) -> torch.Tensor:
        """As a flat tensor."""
        width = self.dtype.itemsize
        return self.memory[: len(self.memory) // width * width].view(self.dtype)


class Touched:
    """Who wrote and read each place of memory in a launch, and in which time between barriers."""

    def __init__(self, places: int) -> None:
        self.records = {
            kind: {name: torch.full((places,), -1) for name in ("thread", "warp", "block", "in_block", "in_warp")}
            for kind in ("written", "read")
        }

    def note(self, kind: str, places: torch.Tensor, who: dict[str, torch.Tensor]) -> None:
        """Threads touch places, each of which may be there several times. What is behind a barrier is forgotten."""
        passed = self._is_before(kind, places, who)
        for name, record in self.records[kind].items():
            if name in ("in_block", "in_warp"):
                record.scatter_reduce_(0, places, who[name], "amax")
                continue
            before, now = torch.where(passed, -1, record[places]), who[name]
            record[places] = now
            record[places[(record[places] != now) | ((before >= 0) & (before != now)) | (before == MANY)]] = MANY

    def conflicts(self, kind: str, places: torch.Tensor, who: dict[str, torch.Tensor]) -> torch.Tensor:
        """Where another thread did so, and no barrier was between."""
        last = self.records[kind]["thread"][places]
        return (last != -1) & (last != who["thread"]) & ~self._is_before(kind, places, who)

    def _is_before(self, kind: str, places: torch.Tensor, who: dict[str, torch.Tensor]) -> torch.Tensor:
        """Where a barrier is between the last who did so, all of one block or warp, and now."""
        last = {name: record[places] for name, record in self.records[kind].items()}
        found = (last["block"] == who["block"]) & (last["in_block"] < who["in_block"])
        return found | ((last["warp"] == who["warp"]) & (last["in_warp"] < who["in_warp"]))


class Grid:
    """A launch: all threads of all blocks, of which ``mask`` says which are at work."""

    def __init__(self, blocks: int, threads: int) -> None:
        self.blocks, self.threads = blocks, threads
        self.every = torch.arange(blocks * threads)
        self.mask = torch.ones(len(self.every), dtype=torch.bool)
        self.block, self.thread = self.every // threads, self.every % threads
        warps = -(-threads // WARP)
        self.warp = self.block * warps + self.thread // WARP
        self.in_block, self.in_warp = torch.zeros_like(self.every), torch.zeros_like(self.every)
        self.idle = torch.zeros_like(self.mask)
        """For which threads the statement at work is about another thread's element."""
        self.variables: dict[str, Any] = {}
        self.line = ""
        self.cluster_has_begun = self.cluster_has_waited = False

    # -- checks ------------------------------------------------------------------------------------------------
    def check(self, holds: torch.Tensor | bool, what: str) -> None:
        """For all threads at work."""
        wrong = ~torch.as_tensor(holds).expand(self.mask.shape) & self.mask
        if wrong.any():
            k = int(wrong.nonzero()[0])
            values = {n: int(self.number(x)[k]) for n, x in self.variables.items() if _is_count(x)}
            place = f"block {self.block[k]}, thread {self.thread[k]} of {self.threads}"
            raise WrongKernelError(f"{what}: {self.line.strip()}\n  {place}: {values}")

    def together(self, groups: torch.Tensor, what: str) -> None:
        """All threads of a warp or a block must be at work if one is."""
        some = torch.zeros(int(groups.max()) + 1, dtype=torch.bool)
        some[groups[self.mask]] = True
        wrong = some[groups] & ~self.mask
        if wrong.any():
            k = int(wrong.nonzero()[0])
            at = f"block {self.block[k]}, thread {self.thread[k]}"
            raise WrongKernelError(f"not all threads are at {what}: {at} is not\n  {self.line.strip()}")

    @property
    def who(self) -> dict[str, torch.Tensor]:
        """The threads, and the times that barriers separate."""
        return {
            "thread": self.every, "warp": self.warp, "block": self.block,
            "in_block": self.in_block, "in_warp": self.in_warp,
        }  # fmt: skip

    # -- barriers ----------------------------------------------------------------------------------------------
    def block_barrier(self) -> None:
        self.together(self.block, "a barrier of the block")
        self.in_block = self.in_block + self.mask
        self.in_warp = self.in_warp + self.mask

    def warp_barrier(self) -> None:
        self.together(self.warp, "a barrier of the warp")
        self.in_warp = self.in_warp + self.mask

    # -- values of other threads -------------------------------------------------------------------------------
    def folded(self, function: str, x: torch.Tensor, width: int, threads: int = 1) -> torch.Tensor:
        """``width`` neighbouring values as one, of which each has so many threads."""
        x = x.expand(len(self.every) // threads, 1).reshape(-1, width)
        every = width * threads
        self.idle = self.idle.reshape(-1, every).any(1, keepdim=True).expand(-1, every).reshape(-1)
        return _FOLDS[function](x).to(x.dtype).reshape(-1, 1).expand(-1, every).reshape(-1, 1)

    def of_warp(self, function: str, width: int, x: torch.Tensor) -> torch.Tensor:
        self.together(self.warp, "a reduction of the warp")
        self.check(self.threads % WARP == 0, "a block of other than whole warps")
        return self.folded(function, x, width)

    def of_block(self, function: str, x: torch.Tensor) -> torch.Tensor:
        self.block_barrier()
        self.check(self.threads % WARP == 0, "a block of other than whole warps")
        return self.folded(function, x, self.threads)

    def of_cluster(self, function: str, blocks: int, x: torch.Tensor) -> torch.Tensor:
        """The values of a cluster's blocks as one; all threads of a block have the same."""
        self.check(self.cluster_has_waited, "a value is told to a block that may not run yet")
        self.together(self.block // blocks, "a reduction of the cluster")
        self.block_barrier()
        x = x.expand(len(self.every), 1).reshape(-1, self.threads)
        self.check((x == x[:, :1]).all() | x.isnan().any(), "a block tells more than one value")
        return self.folded(function, x[:, :1].reshape(-1, 1), blocks, self.threads)

    def shuffled(self, x: torch.Tensor, lane: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """The values of other lanes; of its own, where there is no such lane."""
        self.together(self.warp, "a shuffle")
        own = self.thread % WARP
        wanted = lane(own)
        inside = (wanted >= 0) & (wanted < WARP)
        of = self.every + torch.where(inside, wanted - own, 0)
        self.idle = self.idle[of]
        return x.expand(len(self.every), 1)[of]

    # -- memory ------------------------------------------------------------------------------------------------
    def places(self, p: Pointer, i: Any, lanes: int, aligned: bool = False) -> torch.Tensor:
        """The elements of a vector that begins at ``i``."""
        i = self.number(i)
        if aligned:
            size = min(16, lanes * p.dtype.itemsize)
            self.check((p.address + i * p.dtype.itemsize) % size == 0, "an address that is not aligned")
        return i[:, None] + torch.arange(lanes)

    def load(self, p: Pointer, places: torch.Tensor, here: torch.Tensor | None = None) -> torch.Tensor:
        """Elements; ``here`` says which lanes are read, the others are zero."""
        taken = self.touching(p, places, here)
        written = p.touched.conflicts("written", places[taken] * p.dtype.itemsize, self.of_lanes(taken))
        racing = torch.zeros(places.shape, dtype=torch.bool)
        racing[taken] = written
        self.check(~racing.any(1) | self.idle, "a race")
        counted = taken & ~self.idle[:, None]
        p.touched.note("read", places[counted] * p.dtype.itemsize, self.of_lanes(counted))
        if p.shared:
            self.idle = self.idle | self.somewhere(taken, p.idle[places[taken]])
        result = torch.zeros(places.shape, dtype=p.dtype)
        result[taken] = p.elements[places[taken]]
        result[racing] = _pattern(p.dtype.itemsize).view(p.dtype)  # must be of no use as an index, too
        return result

    def store(self, p: Pointer, places: torch.Tensor, x: torch.Tensor, here: torch.Tensor | None = None) -> None:
        """Write elements, each of which no other thread may touch at this time."""
        taken = self.touching(p, places, here)
        if p.shared:
            p.idle[places[taken]] = self.idle[:, None].expand(taken.shape)[taken]
        else:
            self.check(~self.idle, "a result of a thread without an element is written")
        at, who = places[taken] * p.dtype.itemsize, self.of_lanes(taken)
        for kind in ("written", "read"):
            self.check(~self.somewhere(taken, p.touched.conflicts(kind, at, who)), "a race")
        p.touched.note("written", at, who)
        twice = p.touched.records["written"]["thread"][at] == MANY
        self.check(~self.somewhere(taken, twice), "an element that two threads write")
        assert x.dtype is p.dtype, f"{self.line}: {x.dtype} for {p.dtype}"
        p.elements[places[taken]] = x.expand(places.shape)[taken]

    def touching(self, p: Pointer, places: torch.Tensor, here: torch.Tensor | None) -> torch.Tensor:
        """Which lanes of which threads touch memory, all of it inside of the tensor."""
        lanes = torch.ones(places.shape, dtype=torch.bool) if here is None else here.expand(places.shape)
        inside = ((places >= 0) & (places < len(p.elements))) | ~lanes
        self.check(inside.all(1), f"outside of {p.name}, which has {len(p.elements)} elements")
        return lanes & self.mask[:, None]

    def of_lanes(self, taken: torch.Tensor) -> dict[str, torch.Tensor]:
        return {name: x[:, None].expand(taken.shape)[taken] for name, x in self.who.items()}

    def somewhere(self, taken: torch.Tensor, found: torch.Tensor) -> torch.Tensor:
        """Which threads have a lane for which ``found`` holds, which has the lanes that are taken."""
        every = torch.zeros(taken.shape, dtype=torch.bool)
        every[taken] = found
        return every.any(1)

    def number(self, x: Any) -> torch.Tensor:
        """A number as each thread has it."""
        return torch.as_tensor(x, dtype=torch.int64).expand(self.mask.shape)


def _is_count(x: Any) -> bool:
    return isinstance(x, int) or (isinstance(x, torch.Tensor) and x.dtype is torch.int64 and x.ndim == 1)


_FOLDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "add": lambda x: x.sum(1, keepdim=True, dtype=x.dtype),
    "mul": lambda x: x.prod(1, keepdim=True, dtype=x.dtype),
    "max": lambda x: x.amax(1, keepdim=True),
    "min": lambda x: x.amin(1, keepdim=True),
    "and": lambda x: functools.reduce(torch.bitwise_and, x.unbind(1)).unsqueeze(1),
    "or": lambda x: functools.reduce(torch.bitwise_or, x.unbind(1)).unsqueeze(1),
}
_SIGNS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Lt: operator.lt, ast.LtE: operator.le,
    ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip


class Kernel:
    """A kernel's text, ready to be run."""

    def __init__(self, text: str) -> None:
        head, _, body = text.partition("\n")
        found = re.fullmatch(r'def (\w+)\((.*)\) abi\("C"\):', head.strip())
        assert found, head
        self.name = found[1]
        self.parameters = [p.split(": ") for p in found[2].split(", ")] if found[2] else []
        self.lines = ["def kernel():", *re.sub(r"\bvar (\w+)(: Int)? = ", r"\1 = ", body).rstrip().splitlines()]
        self.tree = ast.parse("\n".join(self.lines)).body[0]

    def run(self, grid: Grid, arguments: Sequence[Any]) -> None:
        """Run it by all threads of a grid."""
        Threads(self, grid, arguments).block(self.tree.body)  # type: ignore[attr-defined]


class Threads:
    """A kernel at work."""

    def __init__(self, kernel: Kernel, grid: Grid, arguments: Sequence[Any]) -> None:
        self.kernel, self.grid = kernel, grid
        self.names: dict[str, Any] = {name: x for (name, _), x in zip(kernel.parameters, arguments, strict=True)}
        grid.variables = self.names
        self.idle: dict[str, torch.Tensor] = {}
        """For which threads a variable is about another thread's element."""

    # -- statements --------------------------------------------------------------------------------------------
    def block(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self.grid.line = self.kernel.lines[statement.lineno - 1]
            self.grid.idle = self.idle.get("part", torch.zeros_like(self.grid.mask))
            self.statement(statement)

    def statement(self, s: ast.stmt) -> None:
        if isinstance(s, ast.Assign):
            value = self.value(s.value)
            self.grid.idle = self.grid.idle | self.moved(s.value)
            self.assign(s.targets[0].id, value)  # type: ignore[attr-defined]
        elif isinstance(s, ast.AugAssign):
            name = s.target.id  # type: ignore[union-attr]
            old = self.value(ast.Name(name))
            self.assign(name, self.signed(s.op, old, self.value(s.value)))
        elif isinstance(s, ast.Expr):
            self.value(s.value)
        elif isinstance(s, ast.If):
            before, holds = self.grid.mask, self.holds(s.test)
            for mask, body in ((before & holds, s.body), (before & ~holds, s.orelse)):
                self.grid.mask = mask
                if mask.any():
                    self.block(body)
            self.grid.mask = before
        elif isinstance(s, ast.While):
            before, known = self.grid.mask, {*self.idle}
            while True:
                self.grid.line = self.kernel.lines[s.lineno - 1]
                self.grid.mask = self.grid.mask & self.holds(s.test)
                if not self.grid.mask.any():
                    break
                self.block(s.body)
                self.idle = {name: idle for name, idle in self.idle.items() if name in known}  # the loop's own are new
            self.grid.mask = before
        else:
            raise NotImplementedError(ast.unparse(s))

    def assign(self, name: str, value: Any) -> None:
        """Threads that are not at work keep what they have."""
        old, mask = self.names.get(name), self.grid.mask
        if old is not None and not mask.all() and isinstance(value, torch.Tensor | int):
            old, value = (self.grid.number(x) if isinstance(x, int) else x for x in (old, value))
            if old.ndim == value.ndim and old.dtype is value.dtype:  # else another variable of that name
                value = torch.where(mask[:, None] if value.ndim == 2 else mask, value, old)
        self.names[name] = value
        self.idle[name] = torch.where(mask, self.grid.idle, self.idle.get(name, self.grid.idle))

    def moved(self, x: ast.expr) -> torch.Tensor:
        """The threads that take another one's outer index or element, as they have none."""
        names = {n.id for n in ast.walk(x) if isinstance(n, ast.Name)}
        if not (isinstance(x, ast.Call) and "imin" in names and names & {"row", "mine"}):
            return torch.zeros_like(self.grid.mask)
        return self.grid.number(self.value(x.args[0])) > self.grid.number(self.value(x.args[1]))

    # -- expressions -------------------------------------------------------------------------------------------
    def holds(self, test: ast.expr) -> torch.Tensor:
        return torch.as_tensor(self.value(test)).expand(self.grid.mask.shape)

    def value(self, x: ast.expr) -> Any:
        if isinstance(x, ast.Constant):
            return x.value
        if isinstance(x, ast.Name):
            if x.id in self.idle:
                self.grid.idle = self.grid.idle | self.idle[x.id]
            return DTYPES[x.id] if x.id in DTYPES else self.names[x.id]
        if isinstance(x, ast.BinOp):
            return self.signed(x.op, self.value(x.left), self.value(x.right))
        if isinstance(x, ast.Compare) and len(x.ops) == 1:
            return self.signed(x.ops[0], self.value(x.left), self.value(x.comparators[0]))
        if isinstance(x, ast.UnaryOp) and isinstance(x.op, ast.USub):
            return -self.value(x.operand)
        if isinstance(x, ast.IfExp):
            sides = (self.value(y) for y in (x.body, x.orelse))
            a, b = (self.grid.number(y) if isinstance(y, int) else y for y in sides)
            holds = self.holds(x.test)
            return torch.where(holds[:, None] if a.ndim == 2 else holds, a, b)
        if isinstance(x, ast.Tuple):
            return tuple(map(self.value, x.elts))
        if isinstance(x, ast.Call):
            function, fixed = (x.func, ()) if isinstance(x.func, ast.Name) else (x.func.value, x.func.slice)  # type: ignore[attr-defined]
            fixed = self.value(fixed) if isinstance(fixed, ast.expr) else fixed
            fixed = fixed if isinstance(fixed, tuple) else (fixed,)
            return self.call(function.id, fixed, [self.value(a) for a in x.args])  # type: ignore[attr-defined]
        raise NotImplementedError(ast.unparse(x))

    def signed(self, sign: ast.AST, a: Any, b: Any) -> Any:
        """Of numbers; division is one of numbers without a sign."""
        if not isinstance(sign, ast.FloorDiv | ast.Mod):
            return _SIGNS[type(sign)](a, b)
        a, b = self.grid.number(a), self.grid.number(b)
        self.grid.check((a >= 0) & (b > 0), "a division of a negative number, or by none")
        b = torch.where(self.grid.mask, b, 1)
        return a // b if isinstance(sign, ast.FloorDiv) else a % b

    def call(self, name: str, fixed: tuple[Any, ...], args: list[Any]) -> Any:
        grid = self.grid
        own = getattr(self, f"_{name}", None)
        if own is not None:
            return own(*fixed, *args)
        kind, _, rest = name.partition("_")
        if kind in ("warp", "block") and rest in _FOLDS:
            return grid.of_warp(rest, *fixed, *args) if kind == "warp" else grid.of_block(rest, *args)
        if kind == "cluster" and rest in _FOLDS:
            return grid.of_cluster(rest, *fixed, *args)
        if kind == "reduce":
            return _FOLDS[rest](args[0]).to(args[0].dtype)
        exact = name.removesuffix("_nearly").removesuffix("_closely")
        if exact in OPERATIONS or exact in _TORCH or exact in ("power", "integer_power"):
            return self.operation({"power": "pow", "integer_power": "pow"}.get(exact, exact), args)
        raise NotImplementedError(f"{name}, in {grid.line.strip()}")

    def operation(self, name: str, args: list[torch.Tensor]) -> torch.Tensor:
        lanes = {x.shape[1] for x in args}
        operands = args[1:] if name == "select" else args
        assert len(lanes) == 1 and len({x.dtype for x in operands}) == 1, f"{self.grid.line}: {lanes}"
        function = _TORCH.get(name) or getattr(torch, name)
        if name in ("floor_div", "trunc_div", "remainder", "fmod") and not args[0].dtype.is_floating_point:
            safe = torch.where(args[1] == 0, torch.ones_like(args[1]), args[1])
            return torch.where(args[1] == 0, torch.zeros_like(args[1]), function(args[0], safe))
        return function(*args)

    # -- the kernel interface ----------------------------------------------------------------------------------
    def _block_index(self) -> torch.Tensor:
        return self.grid.block

    def _thread_in_block(self) -> torch.Tensor:
        return self.grid.thread

    def _imin32(self, a: Any, b: Any) -> torch.Tensor:
        return torch.minimum(*self.of_32_bits(a, b))

    def _imax32(self, a: Any, b: Any) -> torch.Tensor:
        return torch.maximum(*self.of_32_bits(a, b))

    def of_32_bits(self, a: Any, b: Any) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = self.grid.number(a), self.grid.number(b)
        self.grid.check(torch.maximum(a.abs(), b.abs()) < 1 << 31, "no numbers of 32 bits")
        return a, b

    def _imin(self, a: Any, b: Any) -> torch.Tensor:
        return torch.minimum(self.grid.number(a), self.grid.number(b))

    def _imax(self, a: Any, b: Any) -> torch.Tensor:
        return torch.maximum(self.grid.number(a), self.grid.number(b))

    def _div32(self, a: Any, b: Any) -> torch.Tensor:
        return self.narrow(a, b)[0]

    def _rem32(self, a: Any, b: Any) -> torch.Tensor:
        return self.narrow(a, b)[1]

    def _small(self, a: Any) -> torch.Tensor:
        a = self.grid.number(a)
        self.grid.check((a >= 0) & (a < 1 << 32), "no number of 32 bits")
        return a

    def narrow(self, a: Any, b: Any) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = self.grid.number(a), self.grid.number(b)
        self.grid.check((a >= 0) & (a < 1 << 32) & (b > 0) & (b < 1 << 32), "no numbers of 32 bits")
        b = torch.where(self.grid.mask, b, 1)
        return a // b, a % b

    def _condition(self, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1] == 1 and x.dtype is torch.bool
        return x[:, 0]

    def _const(self, dtype: torch.dtype, lanes: int, value: float) -> torch.Tensor:
        return torch.full((1, lanes), value, dtype=torch.float64 if isinstance(value, float) else torch.int64).to(dtype)

    def _infinity(self, dtype: torch.dtype, lanes: int) -> torch.Tensor:
        return torch.full((1, lanes), float("inf"), dtype=dtype)

    def _not_a_number(self, dtype: torch.dtype, lanes: int) -> torch.Tensor:
        return torch.full((1, lanes), float("nan"), dtype=dtype)

    def _fma(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """In one rounding, as far as float64 gives it."""
        return (a.double() * b.double() + c.double()).to(c.dtype)

    def _splat(self, lanes: int, x: torch.Tensor) -> torch.Tensor:
        assert x.shape[1] == 1
        return x.expand(-1, lanes)

    def _iota(self, dtype: torch.dtype, lanes: int) -> torch.Tensor:
        return torch.arange(lanes).to(dtype)[None]

    def _from_int(self, dtype: torch.dtype, lanes: int, x: Any) -> torch.Tensor:
        return self.grid.number(x)[:, None].expand(-1, lanes).to(dtype)

    def _to_int(self, x: torch.Tensor) -> torch.Tensor:
        return self.grid.number(x[:, 0])

    def _cast(self, dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype)

    def _e4m3fn_to_f32(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(torch.float8_e4m3fn).float()

    def _bitcast(self, dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
        return x.contiguous().view(dtype)

    def _lane_at(self, x: torch.Tensor, k: int) -> torch.Tensor:
        return x[:, k : k + 1]

    def _with_lane(self, x: torch.Tensor, k: int, value: torch.Tensor) -> torch.Tensor:
        result = x.expand(len(self.grid.every), -1).clone()
        result[:, k] = value[:, 0]
        return result

    def _checked_index(self, _: Any, x: torch.Tensor, size: Any, code: int) -> torch.Tensor:
        return torch.minimum(x.clamp(min=0), self.grid.number(size)[:, None] - 1)

    def _wrapped_index(self, errors: Any, x: torch.Tensor, size: Any, code: int) -> torch.Tensor:
        return self._checked_index(errors, torch.where(x < 0, x + self.grid.number(size)[:, None], x), size, code)

    # memory
    def _load(self, lanes: int, p: Pointer, i: Any) -> torch.Tensor:
        return self.grid.load(p, self.grid.places(p, i, lanes))

    def _load_aligned(self, lanes: int, p: Pointer, i: Any) -> torch.Tensor:
        return self.grid.load(p, self.grid.places(p, i, lanes, aligned=True))

    _load_once = _load_aligned

    def _load_strided(self, lanes: int, p: Pointer, i: Any, step: Any) -> torch.Tensor:
        ramp = torch.arange(lanes) * self.grid.number(step)[:, None]
        return self.grid.load(p, self.grid.number(i)[:, None] + ramp)

    def _load_at(self, lanes: int, p: Pointer, at: torch.Tensor) -> torch.Tensor:
        return self.grid.load(p, at.expand(len(self.grid.every), lanes))

    def _load_where(self, lanes: int, p: Pointer, i: Any, here: torch.Tensor) -> torch.Tensor:
        return self.grid.load(p, self.grid.places(p, i, lanes), here)

    def _load_at_where(self, lanes: int, p: Pointer, at: torch.Tensor, here: torch.Tensor) -> torch.Tensor:
        return self.grid.load(p, at.expand(len(self.grid.every), lanes), here)

    def _store(self, p: Pointer, i: Any, x: torch.Tensor) -> None:
        self.grid.store(p, self.grid.places(p, i, x.shape[1]), x)

    def _store_aligned(self, p: Pointer, i: Any, x: torch.Tensor) -> None:
        self.grid.store(p, self.grid.places(p, i, x.shape[1], aligned=True), x)

    def _store_strided(self, p: Pointer, i: Any, step: Any, x: torch.Tensor) -> None:
        ramp = torch.arange(x.shape[1]) * self.grid.number(step)[:, None]
        self.grid.store(p, self.grid.number(i)[:, None] + ramp, x)

    def _store_at(self, p: Pointer, at: torch.Tensor, x: torch.Tensor) -> None:
        self.grid.store(p, at.expand(len(self.grid.every), x.shape[1]), x)

    def _as_words(self, p: Pointer) -> Pointer:
        return Pointer(p.name, torch.uint16, p.memory, p.touched, p.address)

    def _atomic(self, p: Pointer, i: Any, x: torch.Tensor, reduce: str) -> None:
        places = self.grid.places(p, i, x.shape[1], aligned=x.shape[1] > 1)
        taken = self.grid.touching(p, places, None)
        p.elements.index_reduce_(0, places[taken], x.expand(places.shape)[taken], reduce) if reduce != "add" else (
            p.elements.index_add_(0, places[taken], x.expand(places.shape)[taken])
        )

    def _atomic_add(self, p: Pointer, i: Any, x: torch.Tensor) -> None:
        self._atomic(p, i, x, "add")

    def _atomic_add_vector(self, p: Pointer, i: Any, x: torch.Tensor) -> None:
        self._atomic(p, i, x, "add")

    def _atomic_mul(self, p: Pointer, i: Any, x: torch.Tensor) -> None:
        self._atomic(p, i, x, "prod")

    def _atomic_max(self, p: Pointer, i: Any, x: torch.Tensor) -> None:
        self._atomic(p, i, x, "amax")

    def _atomic_min(self, p: Pointer, i: Any, x: torch.Tensor) -> None:
        self._atomic(p, i, x, "amin")

    # memory of a block, and other threads
    def _shared(self, dtype: torch.dtype, count: int) -> Pointer:
        places = self.grid.blocks * count
        size, idle = places * dtype.itemsize, torch.zeros(places, dtype=torch.bool)
        return Pointer("shared memory", dtype, _pattern(size), Touched(size), 0, count, idle)

    def in_block(self, p: Pointer, i: Any, lanes: int) -> torch.Tensor:
        i = self.grid.number(i)
        self.grid.check((i >= 0) & (i + lanes <= p.shared), f"outside of memory of {p.shared} elements")
        return (self.grid.block * p.shared + i)[:, None] + torch.arange(lanes)

    def _shared_load(self, lanes: int, p: Pointer, i: Any) -> torch.Tensor:
        return self.grid.load(p, self.in_block(p, i, lanes))

    def _shared_store(self, p: Pointer, i: Any, x: torch.Tensor) -> None:
        self.grid.store(p, self.in_block(p, i, x.shape[1]), x)

    def _shared_load_aligned(self, lanes: int, p: Pointer, i: Any) -> torch.Tensor:
        self.grid.check(self.grid.number(i) % lanes == 0, "a vector of shared memory that is not aligned")
        return self._shared_load(lanes, p, i)

    def _shared_store_aligned(self, p: Pointer, i: Any, x: torch.Tensor) -> None:
        self.grid.check(self.grid.number(i) % x.shape[1] == 0, "a vector of shared memory that is not aligned")
        self._shared_store(p, i, x)

    def _anew(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def _cluster_begin(self) -> None:
        self.grid.together(torch.zeros_like(self.grid.block), "the beginning of clusters")
        self.grid.cluster_has_begun = True

    def _cluster_wait(self) -> None:
        self.grid.check(self.grid.cluster_has_begun, "a wait for a cluster that has not begun")
        self.grid.together(torch.zeros_like(self.grid.block), "a wait for the cluster")
        self.grid.cluster_has_waited = True

    def _block_barrier(self) -> None:
        self.grid.block_barrier()

    def _warp_barrier(self) -> None:
        self.grid.warp_barrier()

    def _shuffle_xor(self, x: torch.Tensor, by: int) -> torch.Tensor:
        return self.grid.shuffled(x, lambda lane: lane ^ by)

    def _shuffle_up(self, x: torch.Tensor, by: Any) -> torch.Tensor:
        return self.grid.shuffled(x, lambda lane: lane - by)

    def _shuffle_down(self, x: torch.Tensor, by: Any) -> torch.Tensor:
        return self.grid.shuffled(x, lambda lane: lane + by)

    def _shuffle_from(self, x: torch.Tensor, lane: Any) -> torch.Tensor:
        return self.grid.shuffled(x, lambda own: torch.full_like(own, lane))


def _pattern(size: int) -> torch.Tensor:
    return torch.full((size,), PATTERN, dtype=torch.uint8)


class EmulatedLibrary(GridLibrary):
    """Kernels that this emulator runs."""

    def __init__(self, source: str) -> None:
        texts = source.split("@export\n")[1:]
        self.kernels = {k.name: k for k in (Kernel(_without_comments(text)) for text in texts)}
        self.memory: dict[int, torch.Tensor] = {}
        """The bytes of each tensor in use, by address."""

    def own(self, x: Any) -> Any:
        """An argument, whose memory kernels may touch if it is a tensor, or a list of tensors."""
        for t in x if isinstance(x, list) else [x]:
            if isinstance(t, torch.Tensor) and len(t.untyped_storage()):
                storage = t.untyped_storage()
                self.memory[storage.data_ptr()] = torch.empty(0, dtype=torch.uint8).set_(storage)
        return x

    def owning(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A library call, whose results kernels may touch."""
        return lambda *args, **kwargs: tree_map(self.own, function(*args, **kwargs))

    def launches(self, launches: Sequence[KernelLaunch]) -> Callable[[int, int], None]:
        """As a GPU's library."""
        return lambda table, _: [self._launch(x, table) for x in launches].clear()

    def _launch(self, x: KernelLaunch, table: int) -> None:
        words = [ctypes.c_int64.from_address(table + 8 * k).value for k in range(1 + max(_words(x), default=0))]
        blocks = x.blocks if isinstance(x.blocks, int) else -(-words[x.blocks[0]] // x.blocks[1])
        if not blocks:
            return
        assert 0 < blocks < 1 << 31 and 0 < x.threads <= 1024, x
        kernel = self.kernels[x.kernel]
        touched: dict[int, Touched] = {}
        arguments: list[Any] = []
        for (name, kind), k in zip(kernel.parameters, x.parameters, strict=True):
            found = re.fullmatch(r"Ptr\[(\w+)\]", kind)
            arguments.append(self._pointer(name, DTYPES[found[1]], words[k], touched) if found else words[k])
        kernel.run(Grid(blocks, x.threads), arguments)

    def _pointer(self, name: str, dtype: torch.dtype, address: int, touched: dict[int, Touched]) -> Pointer:
        """What is behind an address. Tensors in the same memory share what is known of it."""
        base = max((a for a in self.memory if a <= address), default=address)
        memory = self.memory.get(base, torch.empty(0, dtype=torch.uint8))[address - base :]
        if address not in touched:
            touched[address] = Touched(len(memory))
        return Pointer(name, dtype, memory, touched[address], address)


def _words(x: KernelLaunch) -> list[int]:
    return [*x.parameters, *([] if isinstance(x.blocks, int) else [x.blocks[0]])]


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def _of_one_variable(library: EmulatedLibrary) -> tuple[int, ...]:
    """What holds a tensor that nobody but a variable and the library has."""
    x = library.own(torch.empty(1))
    return references(x)


def emulated(written: WrittenProgram) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A program for a GPU as a function of CPU tensors."""
    library = EmulatedLibrary(written.source)
    values = {name: library.owning(x) if callable(x) else x for name, x in written.spec.values.items()}

    def empty(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        x = torch.empty_strided(size, stride, dtype=dtype)
        torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage()).fill_(PATTERN)
        return library.own(x)

    names = {
        "empty": empty,
        "block_of": lambda size: library.own(_pattern(size)),
        "stream": lambda gpu: 0,
        "current": lambda: 0,
        "realigned": lambda run, args, written: realigned(
            lambda *copies: run(*map(library.own, copies)), args, written
        ),
        "references": references,
        "of_one_variable": lambda: _of_one_variable(library),
        "errors": torch.zeros(1, dtype=torch.int64),
    }
    with mock.patch.object(program_module, "grid_names", return_value=names):
        run = dataclasses.replace(written.spec, values=values).bind(library)

    def call(*args: Any) -> tuple[torch.Tensor, ...]:
        library.memory.clear()
        return run(*map(library.own, args))

    return call

"""Partition: which nodes form MAX regions, and what torch runs between them.

Every node gets a *level*: the number of times a path to it changes from MAX to torch and back. All MAX nodes of one
level form one region, and the torch nodes of that level run after it. That is the smallest number of regions that keeps
every torch node outside. (A large one that falls apart, as an optimizer's step does, is cut by
``partition/connected_components.py``.) Nodes that cost nothing to repeat (constants, views of inputs) have no level:
they are copied into every region that reads them.
"""

from __future__ import annotations

import collections
import itertools
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from torch_max_backend.aten_functions.torch_executed.collectives import COLLECTIVES, STARTS, WAITS
from torch_max_backend.capture.fake_tensors import order_of, storage_key, symbols_of, tensors_of, user_line, value_of
from torch_max_backend.capture.fx_nodes import is_getitem
from torch_max_backend.capture.view_ops import FREE_VIEWS
from torch_max_backend.partition.backward_stages import homes, stages
from torch_max_backend.partition.classify import MayHaveLoops, Runner, Verdict, classify
from torch_max_backend.partition.connected_components import Part, split
from torch_max_backend.partition.executors import by_device, split_by_executor
from torch_max_backend.partition.island import Island
from torch_max_backend.partition.late_nodes import first_reader
from torch_max_backend.partition.optimizer_updates import Update, take_updates
from torch_max_backend.partition.region import Port, Region
from torch_max_backend.runtime.frozen import Frozen


@dataclass
class Plan:
    """An FX graph cut into steps: regions and torch nodes, in the order in which they run.

    ``copies`` are writes into inputs that torch does at the end, because no region can. ``alias`` gives, for an
    output that is a view, the node whose memory it views. ``only_loops`` are the nodes in regions that MAX's graph
    compiler cannot run, with its limits. ``verdicts`` say of every node who runs it.
    """

    steps: list[Region | fx.Node]
    copies: list[fx.Node] = field(default_factory=list)
    islands: list[Island] = field(default_factory=list)
    alias: dict[fx.Node, fx.Node] = field(default_factory=dict)
    only_loops: dict[fx.Node, str] = field(default_factory=dict)
    verdicts: Mapping[fx.Node, Verdict] = field(default_factory=dict)

    @property
    def regions(self) -> list[Region]:
        """The regions, in order."""
        return [s for s in self.steps if isinstance(s, Region)]


def partition(
    graph: fx.Graph,
    refused: Mapping[fx.Node, str] | None = None,
    torch_executed: Collection[str] = (),
    min_block_size: int = 1,
    without_loops: Collection[fx.Node] = (),
    may_have_loops: MayHaveLoops = lambda node: False,
) -> Plan:
    """Cut ``graph`` into regions and torch nodes.

    Args:
        refused: Nodes that lowerings declined, with the reason.
        torch_executed: Names of ops that torch shall run.
        min_block_size: Where there are islands, regions with fewer nodes than this join them.
        without_loops: MAX nodes that only MAX's graph compiler can run: they share no region with others.
        may_have_loops: Whether a node that MAX's graph compiler cannot run goes into a region all the same.
    """
    called = [n for n in graph.nodes if n.op == "call_function"]
    verdicts = {n: classify(n, refused or {}, torch_executed, may_have_loops) for n in called}
    has_islands = any(v.runner is Runner.ISLAND for v in verdicts.values())
    while True:
        cut = _Cut(graph, verdicts, frozenset(without_loops))
        small = cut.small_regions(min_block_size) if has_islands else []
        if not small:
            return cut.plan()
        for node in small:
            verdicts[node] = Verdict(Runner.TORCH, f"a region of fewer than {min_block_size} ops beside islands")


class _Cut:
    """Levels, regions and steps for given verdicts."""

    def __init__(
        self, graph: fx.Graph, verdicts: Mapping[fx.Node, Verdict], without_loops: frozenset[fx.Node] = frozenset()
    ) -> None:
        self.graph, self.verdicts, self.without_loops = graph, verdicts, without_loops
        self.order = {n: i for i, n in enumerate(graph.nodes)}
        self.outputs = list(graph.output_node().all_input_nodes)
        self.alias = _output_aliases(graph, self.outputs)
        self.returned = {self.alias.get(n, n) for n in self.outputs}
        self.floating = self._floating()
        self.level = self._levels()

    def runner(self, node: fx.Node) -> Runner | None:
        """The runner of a node; ``None`` for placeholders and attributes."""
        verdict = self.verdicts.get(node)
        return verdict.runner if verdict else None

    def _floating(self) -> set[fx.Node]:
        """MAX nodes that may be repeated: constants, and views of inputs and of other floating nodes.

        Not those that take a number which a torch node reads from a tensor: it is known only after that node.
        """
        found: set[fx.Node] = set()
        known = {s for n in self.graph.nodes if n.op == "placeholder" for s in symbols_of(value_of(n))}
        for node in self.graph.nodes:
            if self.runner(node) is not Runner.MAX or self.verdicts[node].reason or node in self.without_loops:
                continue
            tensors = [n for n in node.all_input_nodes if tensors_of(value_of(n))]
            free = all(n in found or n.op in ("placeholder", "get_attr") for n in tensors)
            free = free and all(symbols_of(value_of(n)) <= known for n in node.all_input_nodes)
            if free and (not tensors or node.target in FREE_VIEWS):
                found.add(node)
        return found

    def _levels(self) -> dict[fx.Node, int]:
        level: dict[fx.Node, int] = collections.defaultdict(int)
        last_random = last_collective = 0
        for node in self.graph.nodes:
            runner = self.runner(node)
            if runner is None or node in self.floating or runner is Runner.STORE:
                continue
            after = 1 if runner in (Runner.MAX, Runner.HOST) else 0
            for source in node.all_input_nodes:
                torch_runs = self.runner(source) in (Runner.TORCH, Runner.ISLAND)
                level[node] = max(level[node], level[source] + (after if torch_runs else 0))
            if runner in (Runner.TORCH, Runner.ISLAND) and _is_impure(node):
                level[node] = last_random = max(level[node], last_random)
            if node.target in STARTS:  # every rank of a group has them in the graph's order
                level[node] = last_collective = max(level[node], last_collective)
        for node in self.returned:  # a constant that is an output must be made somewhere
            if node in self.floating:
                level[node] = 0
        self._join(level)
        self._postpone(level)
        return level

    def _postpone(self, level: dict[fx.Node, int]) -> None:
        """Move MAX nodes to the level of their first reader where that saves memory, and nothing is written between."""
        runners = {n: self.runner(n) for n in self.graph.nodes}
        if Runner.STORE in runners.values() or any(map(self._may_write, runners)):
            return
        for node in reversed(self.graph.nodes):
            if runners[node] is Runner.MAX and node not in self.floating and node not in self.returned:
                level[node] = max(level[node], first_reader(node, level) or 0)

    def _join(self, level: dict[fx.Node, int]) -> None:
        """Move the MAX nodes of a level to the next one where torch's nodes need not run between the two."""
        members: dict[int, list[fx.Node]] = collections.defaultdict(list)
        between: dict[int, list[fx.Node]] = collections.defaultdict(list)
        for node in level:
            if node in self.floating and node not in self.returned:
                continue
            if self.runner(node) is Runner.MAX:
                members[level[node]].append(node)
            elif self.runner(node) is not None:
                between[level[node]].append(node)
        for low, high in itertools.pairwise(sorted(members)):
            here = set(members[low])
            skipped = [n for i in range(low, high) for n in between[i]]
            if any(self._may_write(n) or not here.isdisjoint(n.all_input_nodes) for n in skipped):
                continue
            members[high] += members.pop(low)
            level.update(dict.fromkeys(here, high))

    def _may_write(self, node: fx.Node) -> bool:
        """Whether a node may write into a tensor that others read, or has its place among collectives."""
        if node.target in COLLECTIVES:
            return True
        if self.runner(node) not in (Runner.TORCH, Runner.ISLAND) or is_getitem(node):
            return False
        if isinstance(node.target, Frozen):
            return False
        return getattr(getattr(node.target, "_schema", None), "is_mutable", True)

    # -- regions -----------------------------------------------------------------------------------------------
    def _region_nodes(self) -> dict[int, list[fx.Node]]:
        members: dict[int, list[fx.Node]] = collections.defaultdict(list)
        for node in self.graph.nodes:
            if self.runner(node) is Runner.MAX and (node not in self.floating or node in self.returned):
                members[self.level[node]].append(node)
        return members

    def small_regions(self, least: int) -> list[fx.Node]:
        """Nodes of the regions that are too small to be worth leaving torch for."""
        small = []
        for nodes in self._region_nodes().values():
            if sum(not is_getitem(n) for n in nodes) < least:
                small += nodes
        return small

    def plan(self) -> Plan:
        """The steps in running order."""
        members = self._region_nodes()
        stores, copies = self._place_stores(members)
        torch_nodes: dict[int, list[fx.Node]] = collections.defaultdict(list)
        for node in self.graph.nodes:
            if self.runner(node) in (Runner.TORCH, Runner.ISLAND):
                torch_nodes[self.level[node]].append(node)
        updates = {level: self._updates(members[level], stores.get(level, [])) for level in members}
        parts = {}
        for level in members:
            if members[level]:
                parts[level], late = self._parts(members[level], stores.get(level, []))
                copies += late
        for part in (part for of_level in parts.values() for part in of_level):
            copies += _left_to_torch(part[1])
        copies.sort(key=self.order.__getitem__)
        wanted = self._read_outside([nodes for of_level in parts.values() for nodes, _ in of_level], copies)
        steps: list[Region | fx.Node] = []
        done: set[fx.Node] = set()
        for level in sorted({*members, *torch_nodes}):
            steps += updates.get(level, [])
            for nodes, writes in parts.get(level, []):
                region = self._region(nodes, wanted, writes)
                if region.outputs or region.stores or any(n.target in COLLECTIVES for n in nodes):
                    steps.append(region)
            for node in torch_nodes[level]:
                for needed in self._floating_needed([node]):
                    if needed not in done:
                        done.add(needed)
                        steps.append(needed)
                steps.append(node)
        for copy in copies:
            steps += [n for n in self._floating_needed([copy]) if n not in done]
        only_loops = {n: v.reason for n, v in self.verdicts.items() if v.runner is Runner.MAX and v.reason}
        return Plan(steps, copies, self._islands(), self.alias, only_loops, self.verdicts)

    def _floating_needed(self, nodes: Iterable[fx.Node]) -> list[fx.Node]:
        """Floating nodes that ``nodes`` read, directly or through each other, in graph order."""
        found: set[fx.Node] = set()
        stack = list(nodes)
        while stack:
            for source in stack.pop().all_input_nodes:
                if source in self.floating and source not in found:
                    found.add(source)
                    stack.append(source)
        return sorted(found, key=self.order.__getitem__)

    def _parts(self, nodes: list[fx.Node], stores: list[fx.Node]) -> tuple[list[Part], list[fx.Node]]:
        """The nodes of a level as those of one region or several, in running order, and writes left to torch."""
        parts: list[Part] = []
        late: list[fx.Node] = []
        for own in by_device(nodes):
            here = set(own)
            writes = [s for s in stores if s.args[1] in here]
            by_executor, later = split_by_executor(own, writes, self.without_loops, self._floating_needed)
            parts += [part for piece in by_executor for part in self._pieces(*piece)]
            late += later
        return parts, late

    def _pieces(self, nodes: list[fx.Node], stores: list[fx.Node]) -> list[Part]:
        parts = split(nodes, stores, self._floating_needed)
        if len(parts) > 1 or stores:
            return parts
        return [(stage, []) for stage in stages(nodes)]

    def _updates(self, nodes: list[fx.Node], stores: list[fx.Node]) -> list[Region]:
        """Regions of the updates among the nodes of a level, which are taken out of it."""
        return [
            self._region_of_updates(updates)
            for updates in take_updates(nodes, stores, self._floating_needed, self.returned.__contains__)
        ]

    def _region_of_updates(self, updates: list[Update]) -> Region:
        stores = [(s.args[0], s.args[1]) for u in updates for s in u.stores]
        targets = {t for t, _ in stores}
        reads = dict.fromkeys(n for u in updates for n in u.operands)
        inputs = [Port(n, order_of(value_of(n)) or _identity(n), n in targets) for n in reads]
        return Region([n for u in updates for n in u.nodes], inputs, [], stores, tuple(updates))

    def _read_outside(self, parts: list[list[fx.Node]], copies: list[fx.Node]) -> set[fx.Node]:
        """MAX nodes whose values must leave their region."""
        home = homes(parts)
        wanted = set(self.returned)
        for node in self.graph.nodes:
            runner = self.runner(node)
            for source in node.all_input_nodes:
                if source not in home or is_getitem(node):
                    continue
                if runner in (Runner.TORCH, Runner.ISLAND) or (
                    runner is Runner.MAX and home.get(node, home[source]) != home[source]
                ):
                    wanted.add(source)
        wanted |= {c.args[1] for c in copies}
        return wanted

    def _region(self, nodes: list[fx.Node], wanted: set[fx.Node], stores: list[fx.Node]) -> Region:
        pairs = [(s.args[0], s.args[1]) for s in stores]
        targets = [t for t, _ in pairs]
        nodes = sorted({*nodes, *self._floating_needed([*nodes, *stores])}, key=self.order.__getitem__)
        inside = set(nodes)
        reads = {n for node in [*nodes, *stores] for n in node.all_input_nodes if n not in inside}
        tensors = sorted((n for n in reads if tensors_of(value_of(n))), key=self.order.__getitem__)
        inputs = [Port(n, order_of(value_of(n)) or _identity(n), n in targets) for n in tensors]
        leaving = [n for n in nodes if n in wanted and isinstance(value_of(n), torch.Tensor)]
        outputs = [Port(n, order_of(value_of(n)) or _identity(n)) for n in leaving]
        return Region(nodes, inputs, outputs, pairs)

    # -- writes into inputs ------------------------------------------------------------------------------------
    def _place_stores(self, members: Mapping[int, list[fx.Node]]) -> tuple[dict[int, list[fx.Node]], list[fx.Node]]:
        """Writes that a region does in place (by level), and those that torch does at the end.

        A region may write an input if the region makes the value, the input is dense, and nobody reads the old value
        of the input afterwards.
        """
        home = {n: level for level, nodes in members.items() for n in nodes}
        stores: dict[int, list[fx.Node]] = collections.defaultdict(list)
        copies = []
        for node in self.graph.nodes:
            if self.runner(node) is not Runner.STORE:
                continue
            target, source = node.args[0], node.args[1]
            level = home.get(source)
            dense = order_of(value_of(target)) is not None
            same = _same_kind(value_of(target), value_of(source))
            if level is not None and dense and same and self._last_read(target) <= (level, 0):
                stores[level].append(node)
            else:
                copies.append(node)
        return stores, copies

    def _last_read(self, target: fx.Node) -> tuple[int, int]:
        """The last step that reads an input, directly or through floating views: (level, 1 if torch reads it)."""
        last = (-1, 0)
        for user in target.users:
            if self.runner(user) is Runner.STORE:
                continue
            if user in self.floating:
                last = max(last, self._last_read(user))
            elif user.op == "output":
                continue  # an output that is the input itself shows the new value, as in eager
            else:
                last = max(last, (self.level[user], 0 if self.runner(user) is Runner.MAX else 1))
        return last

    def _islands(self) -> list[Island]:
        return [
            Island(str(n.target), v.reason, user_line(n))
            for n, v in self.verdicts.items()
            if v.runner is Runner.ISLAND and not is_getitem(n)
        ]


MANY_STORES = 16
SMALL_BYTES = 16 * 1024


def _left_to_torch(stores: list[fx.Node]) -> list[fx.Node]:
    """Take the writes of small tensors out of ``stores`` if there are many: running statistics, counters.

    MAX's compile time grows much faster than their number (see ``docs/compile-time.md``), and a copy of so few
    bytes costs torch about a microsecond.
    """
    if len(stores) <= MANY_STORES:
        return []
    small = [s for s in stores if _bytes(value_of(s)) <= SMALL_BYTES]
    stores[:] = [s for s in stores if s not in small]
    return small


def _bytes(value: object) -> float:
    """The size of a tensor; infinite if it is symbolic."""
    numel = value.numel() if isinstance(value, torch.Tensor) else math.inf
    return numel * value.element_size() if isinstance(numel, int) else math.inf  # type: ignore[attr-defined]


def _identity(node: fx.Node) -> tuple[int, ...]:
    return tuple(range(value_of(node).dim()))  # type: ignore[attr-defined]


def _is_impure(node: fx.Node) -> bool:
    """Whether the order of the node among others of its kind matters: random numbers, writes, unknown effects."""
    schema = getattr(node.target, "_schema", None)
    tags = getattr(node.target, "tags", ())
    return schema is None or schema.is_mutable or torch.Tag.nondeterministic_seeded in tags


def _same_kind(a: object, b: object) -> bool:
    return (
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and a.dtype == b.dtype
        and a.device == b.device
        and a.dim() == b.dim()
        and all(str(x) == str(y) for x, y in zip(a.shape, b.shape, strict=True))
    )


def _output_aliases(graph: fx.Graph, outputs: list[fx.Node]) -> dict[fx.Node, fx.Node]:
    """For each output that views another node's memory, that node: the first one in the graph with the storage.

    Torch's views share memory with their base, and have its strides; so the base is what a region returns, and the
    view is taken from it. The base itself is in the result if an output views it only in part or not at all.
    """
    first: dict[int, fx.Node] = {}
    for node in graph.nodes:
        value = value_of(node)
        if isinstance(value, torch.Tensor):
            key = storage_key(value)
            if key is not None and node.target in WAITS:
                first[key] = node
            elif key is not None:
                first.setdefault(key, node)
    alias = {}
    for node in outputs:
        value = value_of(node)
        if not isinstance(value, torch.Tensor) or node.op == "placeholder":
            continue
        base = first.get(storage_key(value))  # type: ignore[arg-type]
        if base is None or base is node or base.op == "get_attr" or not _reads_alike(value_of(base), value):
            continue
        if base.op == "placeholder" or _is_whole(value_of(base)):
            alias[node] = base
    return alias


def _reads_alike(base: object, value: torch.Tensor) -> bool:
    """Whether the same bytes are the same numbers to both: one dtype, and the same lazy conj and neg bits."""
    return (
        isinstance(base, torch.Tensor)
        and base.dtype == value.dtype
        and base.is_conj() == value.is_conj()
        and base.is_neg() == value.is_neg()
    )


def _is_whole(base: object) -> bool:
    """Whether the base's elements are its whole storage, so that any view of the storage is a view of the base."""
    if not isinstance(base, torch.Tensor) or order_of(base) is None:
        return False
    offset = base.storage_offset()
    return isinstance(offset, int) and offset == 0

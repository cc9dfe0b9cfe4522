"""Specialisation: giving a symbolic size its value, so that a lowering which must know it can be built.

Reading the value adds a guard: torch compiles again when a later call brings another one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import sympy
import torch
from torch import fx

from torch_max_backend.base.torch_logs import PERF_HINTS, show
from torch_max_backend.capture.fake_tensors import expr_of, tensors_of, user_line, value_of

log = logging.getLogger("torch_max_backend")


def symbolic_numbers(node: fx.Node) -> frozenset[sympy.Symbol]:
    """The symbols in the numbers that ``node`` takes as arguments (not in the sizes of its tensors)."""
    values = (value_of(n) for n in node.all_input_nodes)
    return frozenset(s for v in values if _is_symbolic(v) for s in expr_of(v).free_symbols)


def specialize(node: fx.Node, symbols: frozenset[sympy.Symbol]) -> str:
    """Give the sizes and numbers around ``node`` that contain ``symbols`` the values they had while tracing.

    Returns:
        What was specialised, as ``s0 = 3``; empty if nothing could be, because a value depends on data, or because
        torch takes no more guards (a backward graph that is compiled at its first call).
    """
    done: dict[str, str] = {}
    for value in _numbers_around(node):
        expr = expr_of(value)
        if not (expr.free_symbols & symbols) or value.node.shape_env.frozen or not value.node.has_hint():
            continue
        number = int(value) if isinstance(value, torch.SymInt) else float(value)
        for symbol in sorted(expr_of(value).free_symbols, key=str):  # that of n // 2, whose value does not tell n
            value.node.shape_env.evaluate_expr(symbol)
        if expr_of(value).is_number:
            done[str(expr)] = str(number)
    text = ", ".join(f"{name} = {number}" for name, number in done.items())
    if text:
        where = user_line(node)
        log.info("specialised on %s for %s%s; other values compile again", text, node.target, where and f" at {where}")
        hint = "size fixed: %s for %s%s, which needs to know it; other values compile again"
        show(PERF_HINTS, hint, text, node.target, where and f" at {where}")
    return text


def may_be_negative(node: fx.Node, expr: sympy.Expr) -> bool:
    """Whether ``expr``, among the numbers that ``node`` takes, may be below zero in a later call.

    Where torch takes guards, what is not negative now is guarded to stay so.
    """
    value = next(v for v in _numbers_around(node) if expr.free_symbols & expr_of(v).free_symbols)
    environment = value.node.shape_env
    if environment.bound_sympy(expr).lower >= 0:
        return False
    if environment.frozen or not value.node.has_hint():
        return True
    return not environment.evaluate_expr(sympy.Ge(expr, 0))


def _numbers_around(node: fx.Node) -> Iterator[torch.SymInt | torch.SymFloat]:
    """Symbolic arguments of a node, then the symbolic sizes of its operands and results."""
    values = [value_of(n) for n in node.all_input_nodes]
    yield from (v for v in values if _is_symbolic(v))
    for tensor in (t for v in [*values, value_of(node)] for t in tensors_of(v)):
        yield from (s for s in tensor.shape if _is_symbolic(s))


def _is_symbolic(value: object) -> bool:
    return isinstance(value, torch.SymInt | torch.SymFloat) and not expr_of(value).is_number

"""Python text for what symbolic sizes give."""

from __future__ import annotations

from collections.abc import Sequence

from torch_max_backend.loops.index import Atom, Div, Index, Least, Mod, Product, Sym


class SizeFormulas:
    """What a program's text has for indices: formulas have names, and are computed once, at the beginning.

    ``lines`` compute them, from the symbols in ``used``.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.used: set[Sym] = set()
        self._names: dict[Index, str] = {}

    def text(self, x: Index) -> str:
        """An integer, a symbol, or the name of a formula."""
        self.used |= {a for a in x.atoms if isinstance(a, Sym)}
        if x.is_constant or x in set(map(Index.of, self.used)):
            return str(x)
        if x not in self._names:
            self._names[x] = f"m{len(self._names)}"
            self.lines.append(f"{self._names[x]} = {_formula(x)}")
        return self._names[x]

    def tuple_of(self, sizes: Sequence[Index]) -> str:
        """A tuple of them."""
        return f"({', '.join(map(self.text, sizes))}{',' if len(sizes) == 1 else ''})"


def _formula(x: Index) -> str:
    """Python text of what symbolic sizes give."""
    parts = [_term(atom, k) for atom, k in x.terms]
    return " + ".join([*parts, str(x.constant)] if x.constant or not parts else parts)


def _term(atom: Atom, k: int = 1) -> str:
    if isinstance(atom, Product):
        text = " * ".join(map(_term, atom.factors))
    elif isinstance(atom, Least):
        text = f"min({_formula(atom.left)}, {_formula(atom.right)})"
    elif isinstance(atom, Div | Mod):
        divisor = _formula(atom.divisor)
        if atom.divisor.bounds[0] < 1:  # what is divided by a size of 0 is not used
            divisor = f"max(1, {divisor})"
        text = f"(({_formula(atom.dividend)}) {'//' if isinstance(atom, Div) else '%'} ({divisor}))"
    else:
        assert isinstance(atom, Sym)
        text = atom.name
    return text if k == 1 else f"{k} * {text}"

"""The files of a benchmark: refused before anything is measured, written when all has been."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch_max_backend.base.errors import EvidenceError
from torch_max_backend.evidence import record
from torch_max_backend.evidence.plot import check_plot, draw
from torch_max_backend.evidence.regressions import Change, changes, check_same
from torch_max_backend.evidence.settings import Settings
from torch_max_backend.evidence.study import Study
from torch_max_backend.measurement.machine import identity


@dataclass(frozen=True)
class Files:
    """Where a study is saved, told and drawn, and what it is compared with; each by the option that gives it."""

    save: Path | None = None
    markdown: Path | None = None
    plot: Path | None = None
    compare: Path | None = None

    def check(self) -> None:
        """Refuse what could not be written.

        Raises:
            EvidenceError: A folder is missing, or nothing draws into such a file.
        """
        for name, file in (("--save", self.save), ("--markdown", self.markdown), ("--plot", self.plot)):
            if file is not None:
                with _named(f"{name} "):
                    record.check_folder(file)
        if self.plot is not None:
            check_plot(self.plot)

    def load(self, settings: Settings) -> Study | None:
        """The study to compare with.

        Raises:
            EvidenceError: It cannot be read, or is of another machine or of other settings.
        """
        if self.compare is None:
            return None
        with _named("--compare "):
            before = record.load(self.compare)
        with _named(f"--compare {self.compare}: "):
            check_same(identity(settings.device), dataclasses.asdict(settings), before)
        return before

    def changes(self, found: Study, before: Study | None) -> list[Change]:
        """What has changed since the study to compare with; nothing without one.

        Raises:
            EvidenceError: The two have nothing in common.
        """
        if before is None:
            return []
        with _named(f"--compare {self.compare}: "):
            return changes(found, before)

    def write(self, found: Study, text: str) -> None:
        """Write a study's text and draw it."""
        if self.markdown is not None:
            self.markdown.write_text(text, encoding="utf-8")
        if self.plot is not None:
            draw(found, self.plot)


@contextmanager
def _named(argument: str) -> Iterator[None]:
    """Put an argument before what is said of it."""
    try:
        yield
    except EvidenceError as error:
        raise EvidenceError(f"{argument}{error}") from error

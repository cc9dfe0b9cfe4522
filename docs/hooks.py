"""For mkdocs: pages that live outside ``docs/``, and links between them and the pages inside.

On a code host a link such as ``docs/caching.md`` in README.md leads to a file. On the site all pages lie side by side,
so links are rewritten. A link to a file that is no page, such as an example, becomes its text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = {
    "README.md": "usage.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    ".claude/skills/aten-ops/SKILL.md": "aten-ops.md",
    ".claude/skills/mojo-gpu-kernels/SKILL.md": "mojo-gpu-kernels.md",
}
"""Files of the repository, and the pages that they become."""

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages from outside."""
    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite the links of a page; those in fenced blocks are left alone."""
    sources = {name: source for source, name in OUTSIDE.items()}
    folder = (ROOT / sources.get(page.file.src_uri, f"docs/{page.file.src_uri}")).parent
    parts, end = [], 0
    for block in _FENCED.finditer(markdown):
        parts += [_LINK.sub(lambda m: _rewritten(m, folder), markdown[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, _LINK.sub(lambda m: _rewritten(m, folder), markdown[end:])])


def _rewritten(link: re.Match[str], folder: Path) -> str:
    mark, text, target = link.groups()
    path, _, anchor = target.partition("#")
    if "://" in target or not path:
        return link[0]
    file = (folder / path).resolve()
    if not file.exists():
        return link[0]  # mkdocs says that it is missing
    inside = file.relative_to(ROOT).as_posix()
    if inside in OUTSIDE:
        inside = f"docs/{OUTSIDE[inside]}"
    if not inside.startswith("docs/"):
        return text
    return f"{mark}[{text}]({inside.removeprefix('docs/')}{'#' + anchor if anchor else ''})"

"""The README's Python examples, for tests that run them.

A block counts if its fence says ``python`` and nothing else. Each is a program of its own, as a
reader would copy it. `examples(url)` puts the address of a test's cluster in the place of the one
that the README prints.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
README_URL = "postgresql://127.0.0.1:5433/postgres"
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Example:
    """One code block: ``source`` starts at ``line`` of the README."""

    line: int
    source: str


def examples(url: str = README_URL) -> list[Example]:
    """All blocks, in the README's order, with ``url`` as the cluster's address."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [
        Example(
            line=text.count("\n", 0, match.start(1)) + 1,
            source=match[1].replace(README_URL, url),
        )
        for match in _BLOCK.finditer(text)
    ]

"""The home's transcripts: each block of commands, ``---``, and what the home did.

``POLARLESS_REWRITE=1 pytest tests/golden/test_home_transcripts.py`` writes them anew: read the
difference before you keep it. A block ends at an empty line; lines with ``#`` are for people.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.golden.home_script import Script

FOLDER = Path(__file__).parent / "home"
REWRITE = os.environ.get("POLARLESS_REWRITE") == "1"


def play(text: str) -> str:
    """The transcript as this home would write it."""
    script = Script()
    blocks = []
    for block in text.strip().split("\n\n"):
        commands = block.split("\n---")[0].splitlines()
        output: list[str] = []
        for line in commands:
            if line and not line.startswith("#"):
                output += script.run(line)
        silent = all(line.startswith("#") for line in commands)
        blocks.append("\n".join(commands if silent else [*commands, "---", *output]))
    return "\n\n".join(blocks) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    played = play(text)
    if REWRITE:
        path.write_text(played, encoding="utf-8")
    assert played == text


def test_there_are_transcripts() -> None:
    assert len(list(FOLDER.glob("*.txt"))) >= 10

"""Each byte of a small storage folder is damaged in turn: never is a wrong answer given.

A damaged copy either gives every page and the whole log as they were, or an error. Only a log that
was not closed may end earlier, and only by what came after the last position that it knows to have
been durable: nothing tells a torn write from a flipped bit there (storage/log/segment.py).

LMDB trusts its own pages: a flipped offset within one can end the process by a signal. That is an
error, too, as long as the process says so before it ends.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.faults.small_store import (
    BLOCK_BYTES,
    CUT,
    FLIP,
    LOST,
    RIGHT,
    SECTOR_BYTES,
    SHORTER,
    STALE,
    WRONG,
    ZERO,
    build,
)

ROOT = Path(__file__).parent.parent.parent
# Locks hold no content, and a spare is room and nothing else.
NO_CONTENT = ("LOCK", "lock.mdb", "STATE.spare")
# Damages that crash LMDB are few.
CRASHES_MAX = 40


def damages(folder: Path, step: int) -> list[str]:
    """Each damage a line: every byte of every file flipped, made zero, cut off; every step-th.

    And always: each sector lost, each block of the pages overwritten by the one before it.
    """
    lines: list[str] = []
    always: list[str] = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name not in NO_CONTENT:
            name = path.relative_to(folder)
            sparse = 64 if path.suffix == ".mdb" else 1
            size = path.stat().st_size
            lines += [f"{name} {FLIP} {place}" for place in range(size)]
            lines += [f"{name} {ZERO} {place}" for place in range(0, size, sparse)]
            lines += [f"{name} {CUT} {place}" for place in range(0, size, sparse)]
            if path.suffix == ".mdb":
                # Where LMDB says which pages are current, and how many there are.
                always += [f"{name} {FLIP} {place}" for place in range(120, 152)]
                always += [f"{name} {FLIP} {4096 + place}" for place in range(120, 152)]
                always += [f"{name} {CUT} {place}" for place in range(0, size, 1024)]
                blocks = range(BLOCK_BYTES, size, BLOCK_BYTES)
                always += [f"{name} {STALE} {place}" for place in blocks]
            always += [f"{name} {LOST} {place}" for place in range(0, size, SECTOR_BYTES)]
    return always + lines[step // 2 :: step]


def examined(folder: Path, truth: Path, lines: list[str]) -> tuple[list[str], list[str]]:
    """The answer to each damage, and those that crashed."""
    answers: list[str] = []
    crashed: list[str] = []
    while lines:
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.small_store", str(folder), str(truth)],
            input="\n".join(lines) + "\n", capture_output=True, text=True, cwd=ROOT, check=False,
        )  # fmt: skip
        answered = done.stdout.splitlines()
        answers += answered
        if len(answered) == len(lines):
            assert done.returncode == 0, done.stderr
            break
        guilty = lines[len(answered)]
        assert done.returncode < 0, f"{guilty}: {done.stderr}"
        assert "Fatal Python error" in done.stderr, f"{guilty}: it ended without a word"
        crashed.append(guilty)
        lines = lines[len(answered) + 1 :]
    return answers, crashed


def check(folder: Path, *, folded: bool, clean: bool, step: int) -> None:
    """Damage a folder of this kind in every step-th way."""
    folder.mkdir()
    truth = asyncio.run(build(folder / "store", folded=folded, clean=clean))
    (folder / "truth").write_text(json.dumps(truth), encoding="utf-8")
    lines = damages(folder / "store", step)
    answers, crashed = examined(folder / "store", folder / "truth", lines)
    wrong = [answer for answer in answers if WRONG in answer]
    assert not wrong, wrong[:5]
    assert len(answers) + len(crashed) == len(lines)
    assert all("data.mdb" in line for line in crashed), crashed
    assert len(crashed) <= CRASHES_MAX, crashed
    kinds = Counter(answer.split()[3] for answer in answers)
    # A test that damages nothing, or opens nothing, would be content as well.
    assert kinds[RIGHT] > 20 and kinds["refused"] > 20, kinds
    newest = max(path.name for path in (folder / "store" / "log").glob("*.log"))
    shorter = [answer for answer in answers if answer.split()[3] == SHORTER]
    assert all(newest in answer and not clean for answer in shorter), shorter


@pytest.mark.parametrize("clean", [True, False], ids=["closed", "crashed"])
@pytest.mark.parametrize("folded", [True, False], ids=["folded", "log only"])
@pytest.mark.allow_log("the log's state record")
def test_damage_gives_the_right_answer_or_an_error(
    tmp_path: Path, folded: bool, clean: bool
) -> None:
    check(tmp_path / "all", folded=folded, clean=clean, step=23)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "crashed"])
@pytest.mark.parametrize("folded", [True, False], ids=["folded", "log only"])
def test_damage_to_every_byte_gives_the_right_answer_or_an_error(
    tmp_path: Path, folded: bool, clean: bool
) -> None:
    check(tmp_path / "all", folded=folded, clean=clean, step=1)

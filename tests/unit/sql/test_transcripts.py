"""Each statement of the transcripts is answered as PostgreSQL 15 answered it."""

from __future__ import annotations

from pathlib import Path

import pytest

from polarless.errors import PolarlessError
from tests.unit.sql.harness import Client, database
from tests.unit.sql.transcripts import FOLDER, answer_lines, error_lines, read


async def answer(client: Client, statement: str) -> list[str]:
    """Our answer in the transcripts' form."""
    try:
        result = await client.run(statement)
    except PolarlessError as error:
        return error_lines(error.sqlstate, error.message)
    columns = [(column.name, column.oid, column.typmod) for column in result.columns]
    return answer_lines(columns, list(result), result.tag)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
async def test_transcript(path: Path) -> None:
    wrong: list[str] = []
    async with database() as found:
        client = found.client()
        for block in read(path):
            ours = await answer(client, block.statement)
            if ours != block.answer:
                wrong.append("\n".join([block.statement, *block.answer, "--- ours:", *ours]))
    assert not wrong, f"{len(wrong)} answers differ:\n\n" + "\n\n".join(wrong)

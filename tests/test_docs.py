"""The documents and the tree name each other, both ways.

* Every path that ARCHITECTURE.md or the README names exists.
* Every folder with code has a section in ARCHITECTURE.md, headed by its path, and the first
  paragraph of that section is the docstring of the folder's ``__init__.py``.
* Every decision is listed, and every decision that code refers to is there.
* The README's Python examples compile. (They are run where there is a cluster.)
"""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

import pytest

from tests.readme_examples import Example, examples

ROOT = Path(__file__).parent.parent
PACKAGES = ("polarless", "memory_pool", "storage", "compute", "bench", "tests")

HEADING = re.compile(r"^#+ `([\w/]+/)`$", re.MULTILINE)
# In backticks: a folder with its slash, or a file with one of the endings that the tree has.
# `<name>` and `*` are placeholders, `~` and `/` at the start are not ours.
NAMED_PATH = re.compile(r"`((?:[\w.-]+/)*(?:[\w.-]+/|[\w.-]+\.(?:py|md|toml|sh|typed)|Makefile))`")
LINK = re.compile(r"\]\(((?!https?:|#)[^)#]+)(?:#[^)]*)?\)")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def sections() -> dict[str, str]:
    """Folder -> text of its section, in the order of ARCHITECTURE.md."""
    parts = HEADING.split(read("ARCHITECTURE.md"))
    bodies = [re.split(r"^#", body, maxsplit=1, flags=re.MULTILINE)[0] for body in parts[2::2]]
    return dict(zip(parts[1::2], bodies, strict=True))


def folders_with_code() -> list[str]:
    """Folders that hold a module with something in it."""
    found = {
        path.parent.relative_to(ROOT).as_posix() + "/"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.read_text(encoding="utf-8").strip()
    }
    return sorted(found)


def paths(text: str) -> list[str]:
    """The paths that ``text`` names in backticks."""
    return NAMED_PATH.findall(text)


def has_own_section(folder: str) -> bool:
    """tests/unit/ mirrors the tree; its subfolders need no words of their own."""
    return not re.match(r"tests/\w+/\w+/", folder)


def plain(text: str) -> str:
    """One line, single spaces: how a paragraph is wrapped makes no difference."""
    return " ".join(text.split())


# -------------------------------------------------------------------------------- ARCHITECTURE.md


def test_every_folder_with_code_has_a_section() -> None:
    missing = {f for f in folders_with_code() if has_own_section(f)} - sections().keys()
    assert not missing, f"ARCHITECTURE.md has no section headed by {sorted(missing)}"


def test_every_path_that_a_section_names_exists() -> None:
    missing = [folder for folder in sections() if not (ROOT / folder).is_dir()]
    for folder, body in sections().items():
        missing += [
            folder + name
            for name in paths(body)
            # In the section's folder, or from the root.
            if not (ROOT / folder / name).exists() and not (ROOT / name).exists()
        ]
    assert not missing, f"ARCHITECTURE.md names what does not exist: {missing}"


@pytest.mark.parametrize("folder", sections())
def test_package_docstring_is_the_first_paragraph_of_its_section(folder: str) -> None:
    source = read(folder + "__init__.py")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    paragraph = sections()[folder].strip().split("\n\n")[0]
    expected = '"""' + textwrap.fill(plain(paragraph), 100 - 3) + '"""'
    # The docstring may go on after that paragraph.
    assert plain(docstring.split("\n\n")[0]) == plain(paragraph), (
        f"{folder}__init__.py should begin:\n{expected}"
    )


# ------------------------------------------------------------------------------------ the others


@pytest.mark.parametrize(
    "document",
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/README.md"],
)
def test_every_link_and_path_of_a_document_leads_somewhere(document: str) -> None:
    text, base = read(document), (ROOT / document).parent
    for target in LINK.findall(text):
        assert (base / target).exists(), f"{document} links to {target}"
    if document in ("README.md", "CONTRIBUTING.md"):
        for name in paths(text):
            anywhere = (ROOT / name).exists() or "/" not in name
            assert anywhere, f"{document} names {name}"


def test_every_decision_is_listed() -> None:
    index = read("docs/decisions/README.md")
    pages = sorted((ROOT / "docs/decisions").glob("[0-9]*.md"))
    numbers = [page.name[:4] for page in pages]
    assert len(set(numbers)) == len(numbers), f"a number is used twice: {numbers}"
    for page in pages:
        assert re.fullmatch(r"\d{4}(-[a-z0-9]+)+\.md", page.name), page.name
        assert f"({page.name})" in index, f"docs/decisions/README.md does not list {page.name}"
        title = page.read_text(encoding="utf-8").partition("\n")[0]
        assert title.startswith(f"# {page.name[:4]}: "), f"{page.name} begins with {title!r}"
    for target in LINK.findall(index):
        assert (ROOT / "docs/decisions" / target).exists(), f"the list names {target}"


def test_every_decision_that_code_refers_to_exists() -> None:
    numbers = {page.name[:4] for page in (ROOT / "docs/decisions").glob("[0-9]*.md")}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            for number in re.findall(r"docs/decisions/(\d{4})", path.read_text(encoding="utf-8")):
                assert number in numbers, f"{path.relative_to(ROOT)} refers to decision {number}"


@pytest.mark.parametrize("example", examples(), ids=lambda example: f"line {example.line}")
def test_readme_example_compiles(example: Example) -> None:
    compile(example.source, f"README.md:{example.line}", "exec")

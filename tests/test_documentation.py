"""The documentation's code runs, its links lead somewhere, and it quotes messages that exist."""

import ast
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import gpflow_gpnet as gpn

ROOT = Path(__file__).parents[1]
PAGES = sorted(ROOT.glob("docs/**/*.md"))
MARKDOWN = [*sorted(ROOT.glob("*.md")), *PAGES]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize(
    "name", [name for name, page in zip(NAMES, PAGES, strict=True) if python_blocks(page)]
)
@pytest.mark.filterwarnings("ignore:The model over-fits")
def test_python_blocks_of_a_page_run(name):
    """One after the other, with fewer steps; blocks that would take long are marked py instead."""
    scope: dict = {}
    for block in python_blocks(ROOT / name):
        exec(block.replace("num_steps=200", "num_steps=2"), scope)
    plt.close("all")
    assert scope["gpn"] is gpn


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page):
    text = re.sub(r"^:.*$", "", page.read_text(), flags=re.MULTILINE)  # options of directives
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" in target:
            continue
        # The site copies the notebooks there.
        target = re.sub(r"^(tutorials|\.)/(\d\d_)", r"../notebooks/\2", target)
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_pages_included_from_the_readme_find_their_marks():
    """Sphinx includes from the mark to the end if the second is missing, in silence."""
    readme = (ROOT / "README.md").read_text()
    marks = [
        mark
        for page in PAGES
        for mark in re.findall(r':(?:start-after|end-before): "(.*)"', page.read_text())
    ]
    assert len(marks) > 10
    assert [mark for mark in marks if readme.count(mark) != 1] == []


def test_troubleshooting_quotes_messages_that_exist():
    """Each heading's parts between … are in one string of the package."""
    headings = re.findall(
        r"^### `(.*)`$", (ROOT / "docs" / "troubleshooting.md").read_text(), re.MULTILINE
    )
    assert len(headings) > 20
    messages = [
        message
        for path in ROOT.glob("gpflow_gpnet/**/*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (message := text_of(node))
    ]
    for heading in headings:
        pattern = re.compile(".*".join(map(re.escape, heading.split("…"))))
        assert any(pattern.search(message) for message in messages), heading


def text_of(node: ast.AST) -> str | None:
    """A string with … for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(
            part.value if isinstance(part, ast.Constant) else "…" for part in node.values
        )
    return None


def test_every_public_name_is_in_the_reference():
    reference = "\n".join((ROOT / page).read_text() for page in NAMES if "api" in page)
    named = set(re.findall(r"\.\. auto(?:class|function|data|module):: (\S+)", reference))
    missing = [
        name
        for name in set(gpn.__all__) - {"__version__"}
        if not {name, f"gpflow_gpnet.{name}", getattr(getattr(gpn, name), "__module__", "")} & named
    ]
    assert missing == []

# SPDX-License-Identifier: BSD-3-Clause
"""Pages and docstrings: their Python runs, links lead somewhere, generated pages are current."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import meshfuse

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGE = ROOT / "python" / "meshfuse"
MODULES = [p for p in sorted(PACKAGE.rglob("*.py")) if ">>> " in p.read_text()]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[str]:
    """Return the Python blocks of a page; their lines keep their numbers in tracebacks."""
    text = page.read_text()
    found = BLOCK.finditer(text)
    return ["\n" * text[: block.start(1)].count("\n") + block.group(1) for block in found]


@pytest.mark.cpu_only("pages show results on the CPU")
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p)], ids=name_of)
def test_python_of_page_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run one after the other, in one namespace."""
    monkeypatch.setattr(meshfuse.FusionCache, "_instance", None)
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in blocks(page):
        exec(compile(block, page, "exec"), namespace)


@pytest.mark.cpu_only("docstrings show results on the CPU")
@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_examples_of_docstrings(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meshfuse.FusionCache, "_instance", None)  # not that of other tests
    parts = module.relative_to(PACKAGE.parent).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    with torch.device("cpu"):  # as tensors are printed
        result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0 and result.failed == 0


def test_pages_name_nothing_private() -> None:
    """But for names of others: sched._set_device_mesh of nvFuser, and os._exit."""
    found = {word for page in PAGES for word in re.findall(r"\w\._[a-z]\w+", page.read_text())}
    assert found <= {"d._set_device_mesh", "s._exit"}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_of_page_exist(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    targets = [t for t in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text) if "://" not in t]
    assert [t for t in targets if not (page.parent / t).exists()] == []


def test_api_page_has_all_public_names() -> None:
    """The page is written by hand, in an order that a reader can follow."""
    page = (ROOT / "docs" / "api.rst").read_text()
    listed = set(re.findall(r"^\.\. auto\w+:: meshfuse\.(\w+)$", page, re.MULTILINE))
    listed |= set(re.findall(r"``(\w+)``", page))  # other names of a class
    assert set(meshfuse.__all__) - listed == set()


@pytest.mark.cpu_only("the site is the same everywhere")
def test_site_builds_without_warnings(tmp_path: Path) -> None:
    """`make docs` installs Sphinx; every page is in the table of contents, every link leads on."""
    for package in ("sphinx", "furo", "myst_parser"):
        pytest.importorskip(package)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", ROOT / "docs", tmp_path]
    built = subprocess.run(command, capture_output=True, text=True)
    assert (built.returncode, built.stderr) == (0, "")
    assert (tmp_path / "picture.html").exists()


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_list_of_messages_has_those_of_the_sources() -> None:
    """The page is filled when the site is built."""
    found = load(ROOT / "docs" / "message_list.py").messages()
    assert [heading for heading, messages in found.items() if not messages] == []
    wrong_size = (
        "…: axis … of … has size … but axis … of … has size …; both are '…' of the operation."
    )
    assert f"{wrong_size} Give operands whose sizes agree." in found["Operations"]
    assert (
        "cat: Attempting to concatenate empty list of tensors. Give at least one."
        in found["Operations"]
    )


@pytest.mark.parametrize("page", ["ops.md", "passes.md"])
def test_generated_page_is_current(page: str) -> None:
    """`make docs` writes them again."""
    expected = load(ROOT / "tools" / "gen_docs.py").pages()
    assert (ROOT / "docs" / page).read_text() == expected[page]

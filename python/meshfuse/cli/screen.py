# SPDX-License-Identifier: BSD-3-Clause
"""What is printed for people: colours and tables on a terminal, plain text elsewhere."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from .output import say, stdout

_FILE_WIDTH = 160  # where output goes to a file, lines are not cut to a terminal's width
_LEAST_WIDTH = 80
_THEME = Theme(
    {
        "mf.kind": "bold yellow",
        "mf.axis": "cyan",
        "mf.line": "blue",
        "mf.bytes": "bold",
        "mf.ok": "green",
        "mf.warning": "yellow",
        "mf.failed": "bold red",
        "mf.skipped": "dim",
    }
)


class _Words(RegexHighlighter):
    """Colours for kinds of communication, mesh axes, bytes and source lines."""

    base_style = "mf."
    highlights = [  # noqa: RUF012 - rich's own type
        r"(?P<kind>\b(all-reduce|all-gather|reduce-scatter|all-to-all|broadcast|send-recv)\b)",
        r"(?P<axis>\bmesh_[xyz]\b|(?<=@)[xyz]\b)",
        r"(?P<bytes>\b\d+ bytes\b)",
        r"(?P<line>\S+\.py:\d+)",
    ]


class _Page(io.StringIO):
    """What will be written to standard output, of which it has the properties."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return stdout().encoding or "ascii"

    def isatty(self) -> bool:
        return stdout().isatty()


def console() -> Console:
    """Return a console whose ``file`` keeps what is for standard output."""
    file = _Page()
    found = Console(file=file, theme=_THEME, highlight=False)
    # Tables of a narrow terminal are its to wrap: columns of single letters are hard to read.
    found.width = max(found.width, _LEAST_WIDTH) if file.isatty() else _FILE_WIDTH
    return found


def has_colours() -> bool:
    """Return whether standard output is a terminal with colours that are wanted (NO_COLOR)."""
    out = console()
    return out.color_system is not None and not out.no_color


def show_text(text: str) -> None:
    """Print a report, with colours on a terminal."""
    _print(_Words()(Text(text)))


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[str | Text]], right: Sequence[str] = ()
) -> None:
    """Print a table; columns named in ``right`` are numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    out = console()
    out.print(table)
    say("\n".join(re.sub(r" +$", "", line) for line in _written(out).splitlines()))


def styled(text: str, style: str) -> Text:
    """Return a text in one of the styles of this module, ``"ok"`` for example."""
    return Text(text, f"mf.{style}")


def show_findings(found: Iterable[tuple[str, str, str, str]]) -> None:
    """Print checks as (name, status, fact, cure), a line each and one for its cure."""
    for name, status, fact, cure in found:
        line = Text(f"{name:14} ")
        line.append(f"{status:8} ", f"mf.{status}")
        line.append(fact)
        if cure:
            line.append(f"\n{'':24}cure: {cure}", "bold")
        _print(line)


def _print(text: Text) -> None:
    out = console()
    out.print(text, soft_wrap=True)
    say(_written(out), end="")


def _written(out: Console) -> str:
    assert isinstance(out.file, _Page)
    return out.file.getvalue()

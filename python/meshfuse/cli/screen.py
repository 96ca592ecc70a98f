# SPDX-License-Identifier: BSD-3-Clause
"""What is printed for people: colours and tables on a terminal, plain text elsewhere."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence

from rich import box
from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

_FILE_WIDTH = 160  # where output goes to a file, lines are not cut to a terminal's width
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


def console(stderr: bool = False) -> Console:
    """Return a console of the present standard output (or error)."""
    file = sys.stderr if stderr else sys.stdout
    return Console(
        file=file,
        theme=_THEME,
        highlight=False,
        width=None if file.isatty() else _FILE_WIDTH,
    )


def show_text(text: str) -> None:
    """Print a report, with colours on a terminal."""
    console().print(_Words()(Text(text)), soft_wrap=True)


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
    with out.capture() as captured:
        out.print(table)
    lines = captured.get().splitlines()
    out.file.write("".join(f"{re.sub(r' +$', '', line)}\n" for line in lines))


def styled(text: str, style: str) -> Text:
    """Return a text in one of the styles of this module, ``"ok"`` for example."""
    return Text(text, f"mf.{style}")


def show_findings(found: Iterable[tuple[str, str, str, str]]) -> None:
    """Print checks as (name, status, fact, cure), a line each and one for its cure."""
    out = console()
    for name, status, fact, cure in found:
        line = Text(f"{name:14} ")
        line.append(f"{status:8} ", f"mf.{status}")
        line.append(fact)
        if cure:
            line.append(f"\n{'':24}cure: {cure}", "bold")
        out.print(line, soft_wrap=True)


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show on standard error, if that is a terminal, that something takes a while."""
    screen = console(stderr=True)
    if not screen.is_terminal:
        yield
        return
    with screen.status(f"{what} ..."):
        yield

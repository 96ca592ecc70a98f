# SPDX-License-Identifier: BSD-3-Clause
"""``meshfuse explain``: how tensors are divided, and what is communicated and why."""

from __future__ import annotations

import os
import re
from typing import Any

import click

from .. import _C
from ..definition import FusionDefinition
from ..exceptions import Error
from ..explanation import Explanation, known_size
from .command import command as make_command
from .command import show_json
from .program_file import FILE, UNEVEN, load
from .sizes import SIZE_OPTION, example_of_sizes, read_sizes

Sizes = dict[str, int | tuple[int, ...]]

_RARE = 1009  # sizes that no program declares: one that must equal another is noticed
_OPEN = re.compile(r"explain: the bytes of the .* sizes that the program leaves open: ")
_BYTES = re.compile(r"\b\d+ bytes per device")


@make_command()
@FILE
@UNEVEN
@click.option("--suggest", is_flag=True, help="Propose annotations that communicate less.")
@SIZE_OPTION
def command(file: str, uneven: bool, suggest: bool, size: tuple[str, ...], as_json: bool) -> None:
    """Say how every tensor is divided and why, and what is communicated, why, and how much.

    How much is not said where it depends on sizes that are open and not given.
    """
    fd = load(file, uneven)
    sizes = read_sizes(size) or {}
    unknown: list[str] = []
    try:
        report, unsure = fd.explain(suggest, sizes=sizes), [False]
    except Error as error:
        if suggest or not _OPEN.match(str(error)):
            raise
        report, unsure, unknown = _with_open_sizes(fd, sizes, error)
    refusal = _refusal(fd)
    if as_json:
        show_json(_as_dict(report, unsure, refusal))
    else:
        _show(report, unsure, unknown, refusal)
    if refusal is not None:
        raise click.exceptions.Exit(1)


def _with_open_sizes(
    fd: FusionDefinition, sizes: Sizes, error: Error
) -> tuple[Explanation, list[bool], list[str]]:
    """Return a report, whether bytes of each communication are unknown, and the open sizes.

    What two values of all the open sizes agree on depends on none of them.

    Raises:
        meshfuse.Error: the sizes do not fit the program, or no values are found that do.
    """
    from ..pictures.extents import stand_in
    from ..planner.open_sizes import completed_sizes
    from ..program_text import parse

    fusion = fd._executor().fusion()
    program = parse(fusion.ir())
    given = [known_size(name, value) for name, value in sizes.items()]
    unit = stand_in(program) * _RARE
    values, unknown = completed_sizes(fusion, program, given, unit)
    try:
        one = fd.explain(sizes={**sizes, **values})
        two = fd.explain(sizes={**sizes, **values, **dict.fromkeys(unknown, 2 * unit)})
    except Error:
        raise error from None
    pairs = zip(one.communications, two.communications, strict=True)
    return one, [a.bytes != b.bytes for a, b in pairs], unknown


def _refusal(fd: FusionDefinition) -> str | None:
    """Return why strict mode refuses the program, which an explanation does not look at."""
    if not fd._executor().fusion().strict and not os.environ.get("MESHFUSE_STRICT"):
        return None
    try:
        _C.FusionExecutorCache(fd._executor().fusion(), 0).compiled_ir()
    except Error as error:
        return str(error)
    return None


def _as_dict(report: Explanation, unsure: list[bool], refusal: str | None) -> dict[str, Any]:
    found = report.to_dict()
    if any(unsure):
        found |= {"bytes": None, "cost": None}
        for communication, is_unsure in zip(found["communications"], unsure, strict=True):
            communication["bytes"] = None if is_unsure else communication["bytes"]
    return found if refusal is None else {"refused": refusal, **found}


def _show(report: Explanation, unsure: list[bool], unknown: list[str], refusal: str | None) -> None:
    from .screen import show_text

    if refusal is not None:
        show_text(f"refused in {refusal}\n")
    if not any(unsure):
        show_text(str(report))
        return
    count = len(report.communications)
    lines = str(report).split("\n\n")
    lines[0] = (
        f"{count} communication{'' if count == 1 else 's'}; the bytes depend on sizes that the "
        f"program leaves open: give {example_of_sizes(unknown)}"
    )
    shown = [line for line in lines if not line.startswith("modelled: ")]
    for i, is_unsure in enumerate(unsure, start=1):
        if is_unsure:
            shown[i] = _BYTES.sub("unknown bytes per device", shown[i], count=1)
    show_text("\n\n".join(shown))

# SPDX-License-Identifier: BSD-3-Clause
"""``meshfuse explain``: how tensors are divided, and what is communicated and why."""

from __future__ import annotations

import click

from .command import command as make_command
from .command import show_json
from .program_file import FILE, UNEVEN, load
from .sizes import SIZE_OPTION, read_sizes


@make_command()
@FILE
@UNEVEN
@click.option("--suggest", is_flag=True, help="Propose annotations that communicate less.")
@SIZE_OPTION
def command(file: str, uneven: bool, suggest: bool, size: tuple[str, ...], as_json: bool) -> None:
    """Say how every tensor is divided and why, and what is communicated, why, and how much."""
    report = load(file, uneven).explain(suggest, sizes=read_sizes(size))
    if as_json:
        show_json(report.to_dict())
        return
    from .screen import show_text

    show_text(str(report))

# SPDX-License-Identifier: BSD-3-Clause
"""``meshfuse check``: compare a program on the simulated mesh with itself alone."""

from __future__ import annotations

import dataclasses

import click

from .._C import DeviceMesh
from ..check import CheckFailure, CheckReport
from .command import Failure, FiniteRange, show_json
from .command import command as make_command
from .program_file import FILE, UNEVEN, load
from .sizes import meshes_option, names_of_text


@make_command()
@FILE
@UNEVEN
@meshes_option
@click.option("--examples", type=click.IntRange(1), default=20, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True, help="Start of random numbers.")
@click.option(
    "--rtol", type=FiniteRange(0), help="Allowed difference; default: what rounding does."
)
def command(
    file: str,
    uneven: bool,
    meshes: tuple[DeviceMesh, ...],
    examples: int,
    seed: int,
    rtol: float | None,
    as_json: bool,
) -> None:
    """Run FILE on the simulated mesh and alone, on random inputs, and compare.

    Where a result differs, the smallest failing program that was found is shown, and a script.
    """
    from .screen import show_text

    fd = load(file, uneven)
    reports: list[CheckReport] = []
    failure: CheckFailure | None = None
    for mesh in meshes or (None,):
        try:
            reports.append(fd.check(mesh, rtol, examples, seed))
        except CheckFailure as found:
            failure = found
            break
    if as_json:
        show_json(_as_dict(reports, failure))
    else:
        for report in reports:
            show_text(str(report))
    if failure is not None:
        raise Failure(str(failure)) if not as_json else click.exceptions.Exit(1)


def _as_dict(reports: list[CheckReport], failure: CheckFailure | None) -> dict[str, object]:
    failed = failure and {
        "message": str(failure).splitlines()[0],
        "program": failure.program,
        "sizes": failure.sizes,
        "script": failure.script,
    }
    return {
        "holds": failure is None,
        "reports": [
            dataclasses.asdict(report) | {"mesh": names_of_text(report.mesh)} for report in reports
        ],
        "failure": failed,
    }

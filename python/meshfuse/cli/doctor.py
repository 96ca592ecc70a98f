# SPDX-License-Identifier: BSD-3-Clause
"""``meshfuse doctor``: does this machine have what meshfuse needs, and does it work?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import click

from .command import FiniteRange, library, show_json
from .command import command as make_command
from .finding import Finding
from .output import say


@make_command()
@click.option("--measure", is_flag=True, help="Measure how fast devices compute and communicate.")
@click.option("--quick", is_flag=True, help="Start no ranks.")
@click.option(
    "--timeout",
    type=FiniteRange(1, 86400),
    default=60.0,
    show_default=True,
    help="Seconds that ranks have to start, run and end.",
)
def command(measure: bool, quick: bool, timeout: float, as_json: bool) -> None:
    """Check this machine: torch, MPI, launchers, GPUs, threads, shared memory, variables.

    Ranks are started and run a program. Every fault is shown with its cure; exit code 1 if there
    is one.
    """
    from ..progress import busy
    from .screen import show_text

    measure_links = library("doctor --measure", "planner", "measure_links") if measure else None
    found: list[Finding] = []
    for name, check in _checks(quick, timeout):
        with busy(f"checking {name}"):
            found += check()
    links: Any = None
    if measure_links is not None:
        with busy("measuring"):
            links = measure_links()
        found.append(_keep(links))
    failed = any(finding.status == "failed" for finding in found)
    if as_json:
        report: dict[str, Any] = {"healthy": not failed, "checks": [f.to_dict() for f in found]}
        show_json(report if links is None else report | {"links": links.to_dict()})
    else:
        _show(found)
        if links is not None:
            show_text(f"\n{links}")
    if failed:
        raise click.exceptions.Exit(1)


def _keep(links: Any) -> Finding:
    """Save measured figures, for all later estimates, unless they cannot be right."""
    doubt = links.doubt()
    if doubt:
        cure = "Other programs keep the ranks waiting. Measure again when the machine is idle"
        return Finding("figures", "failed", f"not saved, as {doubt}", cure)
    return Finding("figures", "ok", f"saved in {links.save()}, and used by plan and suggestions")


def _checks(quick: bool, timeout: float) -> list[tuple[str, Callable[[], list[Finding]]]]:
    from . import doctor_environment, doctor_machine, doctor_ranks

    ranks: list[tuple[str, Callable[[], list[Finding]]]] = [
        ("MPI", lambda: doctor_ranks.check_mpi(timeout)),
        ("torchrun", lambda: doctor_ranks.check_torchrun(timeout)),
    ]
    if quick:
        ranks = [("ranks", lambda: [Finding("ranks", "skipped", "--quick starts none")])]
    return [
        ("torch", doctor_machine.check_torch),
        *ranks,
        ("GPUs", doctor_machine.check_gpus),
        ("threads", doctor_machine.check_threads),
        ("shared memory", doctor_machine.check_shared_memory),
        ("variables", doctor_environment.check_environment),
    ]


def _show(found: list[Finding]) -> None:
    from .screen import show_findings

    show_findings([(f.check, f.status, f.fact, f.cure) for f in found])
    counts = Counter(f.status for f in found)
    faults, warnings = counts["failed"], counts["warning"]
    say(
        f"\n{faults or 'no'} fault{'' if faults == 1 else 's'}, "
        f"{warnings or 'no'} warning{'' if warnings == 1 else 's'}"
    )

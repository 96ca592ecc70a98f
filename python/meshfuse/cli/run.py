# SPDX-License-Identifier: BSD-3-Clause
"""``meshfuse run``: start a script on several ranks."""

from __future__ import annotations

import re
import shlex
import tempfile
from pathlib import Path

import click

from .. import launchers
from ..run_failures import VARIABLE, RankFailure, first_failure
from .command import Failure, WrongInput, show_json
from .command import command as make_command
from .output import say

_GROUPS = re.compile(r"\b(init_process_group|init_device_mesh)\(")


@make_command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGS]...")
@click.option("-n", "ranks", type=click.IntRange(1), required=True, help="Number of ranks.")
@click.option(
    "--launcher",
    type=click.Choice(["mpirun", "torchrun"]),
    help="Default: mpirun where it works and the MPI plugin loads, else torchrun.",
)
@click.option("--dry-run", is_flag=True, help="Print the command, and run nothing.")
def command(
    script: Path,
    arguments: tuple[str, ...],
    ranks: int,
    launcher: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run SCRIPT with its arguments on N ranks of this machine.

    The exit code is the launcher's: mpirun's is that of a rank that failed, torchrun's is 1.
    Options of this command stand before SCRIPT. With --json, what ranks print goes to standard
    error.
    """
    if not script.is_file():
        raise WrongInput(f"run: there is no script {script}.")
    reason = None
    if launcher != "torchrun":
        reason = launchers.why_not_mpirun()
    if launcher == "mpirun" and reason is not None:
        raise Failure(f"run: {reason}. `meshfuse doctor` says more; or use --launcher torchrun.")
    chosen = launcher or ("mpirun" if reason is None else "torchrun")
    start = launchers.launch(chosen, ranks, [str(script), *arguments])
    code, first = (0, None) if dry_run else _run(start, as_json)
    if as_json:
        show_json(
            {
                "launcher": chosen,
                "reason": reason,
                "command": start.command,
                "environment": start.environment,
                "exit_code": None if dry_run else code,
                "failed_first": first and {"rank": first.rank, "error": first.error},
            }
        )
    elif dry_run:
        words = [f"{name}={shlex.quote(value)}" for name, value in start.environment.items()]
        say(" ".join([*words, shlex.join(start.command)]))
    if first is not None:
        click.echo(f"meshfuse: {first}", err=True)
    elif code and chosen == "mpirun":
        _advise(script)
    if code:
        raise click.exceptions.Exit(code)


def _run(start: launchers.Launch, as_json: bool) -> tuple[int, RankFailure | None]:
    """Return the exit code, and the failure that the others followed: launchers name any rank."""
    with tempfile.TemporaryDirectory(prefix="meshfuse-run-") as folder:
        failures = Path(folder) / "failures"
        failures.touch()
        code = launchers.pass_through(start, as_json, {VARIABLE: str(failures)})
        return code, first_failure(failures) if code else None


def _advise(script: Path) -> None:
    """Say what a script needs that failed before meshfuse knew its rank."""
    called = _GROUPS.search(script.read_text(encoding="utf-8", errors="replace"))
    if called is not None:
        click.echo(
            f"meshfuse: {script} calls {called[1]}, which needs RANK and MASTER_ADDR, but mpirun "
            "sets neither: if that is what it failed for, give --launcher torchrun.",
            err=True,
        )

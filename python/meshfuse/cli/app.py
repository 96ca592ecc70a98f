# SPDX-License-Identifier: BSD-3-Clause
"""The group of commands: finds the module of a command when it is asked for."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence

import click

from ..package_version import version
from .command import show_error
from .output import BrokenOutputError, drop_output

# Name of the command and of its module, and the line that the list of commands shows.
COMMANDS = {
    "check": "Compare a program on the simulated mesh with itself alone.",
    "convert": "Write a sharding in another form: placements, partition spec, splits, Shardy.",
    "doctor": "Check this machine: torch, MPI, launchers, GPUs, threads, variables.",
    "explain": "Say how tensors are divided, and what is communicated and why.",
    "plan": "Say what a program costs on meshes of several shapes.",
    "replay": "Run a repro bundle on the simulated mesh.",
    "run": "Run a script on several ranks.",
    "visualize": "Draw a program.",
}


class Commands(click.Group):
    """A group whose commands are imported one by one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of a command; None where there is no such command."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f".{cmd_name}", __package__)
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; that there is none is JSON, too, where that is asked for."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            if "--json" in args:
                with contextlib.suppress(BrokenOutputError):
                    show_error(error)
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list from the lines here, so that it imports no command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name]) for name in self.list_commands(ctx)])


@click.command(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 fine, 1 what was asked for does not hold, 2 wrong usage.",
)
@click.version_option(version(), prog_name="meshfuse")
def group() -> None:
    """Look at tensor programs on meshes of devices, check them, and run them.

    FILE is a program in text form (as fd.ir() prints it; - for standard input), or
    SCRIPT.py:OBJECT, where the object is a FusionDefinition, a class of definitions, or a function
    that returns one.
    """


def run(arguments: Sequence[str] | None) -> int:
    """Run the command line; return the exit code.

    Without arguments, those of the process, it is all that the process does.
    """
    try:
        given = None if arguments is None else list(arguments)
        group.main(given, prog_name="meshfuse", obj=arguments is None)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except OSError as error:  # of --help and --version
        drop_output()
        click.echo(f"meshfuse: cannot write to standard output: {error.strerror}.", err=True)
        return 1
    return 0

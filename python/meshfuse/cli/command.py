# SPDX-License-Identifier: BSD-3-Clause
"""What all commands share: ``--json``, ``--traceback``, exit codes and how errors are shown."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import IO, Any

import click

from ..exceptions import Error, InternalError, PeerError, UnsupportedError
from .output import BrokenOutputError, say
from .wording import for_flags

# What a program's own faults are raised as.
_TOLD = (Error, UnsupportedError, PeerError, NotImplementedError)

_INTERRUPTED, _UNREAD = 130, 141  # 128 + SIGINT and SIGPIPE, as shells say it


class Failure(click.ClickException):
    """What was asked for does not hold: one message, exit code 1."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message."""
        click.echo(f"meshfuse: {self.message}", file=file, err=file is None)


class WrongInput(Failure):
    """A file or text is not what the command line says it is: exit code 2."""

    exit_code = 2


class FiniteRange(click.FloatRange):
    """A range of numbers that are neither NaN nor infinite."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{number} is not a finite number.", param, ctx)
        return number


class Command(click.Command):
    """A command whose errors are one message.

    With ``--json`` standard output gets ``{"error": message}``, too. ``--traceback``, or the
    variable MESHFUSE_TRACEBACK=1, lets the exception through.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Add the options that every command has."""
        super().__init__(*args, **kwargs)
        self.params += [
            click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."),
            click.Option(
                ["--traceback"],
                is_flag=True,
                envvar="MESHFUSE_TRACEBACK",
                help="Show where an error comes from, for developers.",
            ),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn exceptions into messages."""
        show_traceback = ctx.params.pop("traceback")
        as_json = ctx.params["as_json"]
        try:
            with _quiet_log():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("meshfuse: interrupted", err=True)
            raise click.exceptions.Exit(_INTERRUPTED) from None
        except BrokenOutputError as error:
            raise _without_output(ctx, error) from None
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            shown = _as_click(ctx, error)
            if isinstance(shown, Failure):
                shown = type(shown)(for_flags(ctx.info_name, shown.message))
            if show_traceback:
                click.echo(traceback.format_exc(), err=True, nl=False)
            if as_json:
                try:
                    show_error(shown)
                except BrokenOutputError as broken:
                    raise _without_output(ctx, broken) from None
            raise shown from None

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Read the arguments; what is wrong with them is JSON, too, where that is asked for."""
        given = list(args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            if self._asks_for_json(info_name, given, parent):
                with contextlib.suppress(BrokenOutputError):
                    show_error(error)
            raise

    def _asks_for_json(
        self, info_name: str | None, args: list[str], parent: click.Context | None
    ) -> bool:
        """Return whether --json is among wrong arguments, and this command's."""
        how = {"resilient_parsing": True, "ignore_unknown_options": True}
        found = super().make_context(info_name, args, parent, allow_extra_args=True, **how)
        return bool(found.params.get("as_json"))


def command(help: str | None = None, **attributes: Any) -> Callable[..., click.Command]:
    """Return the decorator that makes a function a command; its docstring is the help."""
    return click.command(cls=Command, help=help, **attributes)


def show_json(value: Any) -> None:
    """Print a value as JSON; a float that JSON does not have is null."""
    say(json.dumps(_finite(value), indent=2))


def show_error(error: click.ClickException) -> None:
    """Print an error as JSON."""
    say(json.dumps({"error": error.format_message()}))


def _without_output(ctx: click.Context, error: BrokenOutputError) -> click.exceptions.Exit:
    """Return how a command ends that cannot say what it found."""
    if error.is_pipe:
        return click.exceptions.Exit(_UNREAD)
    click.echo(f"meshfuse: {ctx.info_name}: {error}", err=True)
    return click.exceptions.Exit(1)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def library(caller: str, module: str, name: str) -> Any:
    """Return a function of a module of meshfuse that this build may lack.

    Raises:
        meshfuse.Error: it does.
    """
    full = f"meshfuse.{module}"
    try:
        return getattr(importlib.import_module(full), name)
    except ModuleNotFoundError as error:
        if error.name != full:
            raise
    except AttributeError:
        pass
    raise Error(
        f"{caller}: not available in this build of meshfuse, which has no {full}.{name}. Install a "
        "newer version."
    )


@contextlib.contextmanager
def output_to_stderr() -> Iterator[None]:
    """Send what a user's script prints to standard error, so that ours stays readable."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


@contextlib.contextmanager
def _quiet_log() -> Iterator[None]:
    """Keep the log from telling an error that the command tells."""
    log = logging.getLogger("meshfuse")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _as_click(ctx: click.Context, error: Exception) -> click.ClickException:
    if isinstance(error, click.ClickException):
        return error
    if isinstance(error, _TOLD):
        return Failure(str(error))
    name = type(error).__name__
    if isinstance(error, InternalError):
        return Failure(f"{ctx.info_name}: a fault of meshfuse: {error}")
    if isinstance(error, OSError):
        return Failure(f"{ctx.info_name}: {os.strerror(error.errno or 0)}: {error.filename}")
    return Failure(
        f"{ctx.info_name}: unexpected {name}: {error}. Run it again with --traceback to see where, "
        "and report it with the program."
    )

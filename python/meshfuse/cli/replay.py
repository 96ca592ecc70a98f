# SPDX-License-Identifier: BSD-3-Clause
"""``meshfuse replay``: run a repro bundle on the simulated mesh."""

from __future__ import annotations

import click

from ..repro_bundle import load_bundle
from ..repro_replay import definition_of, replay
from .command import Failure, WrongInput, show_json
from .command import command as make_command


@make_command()
@click.argument("bundle", metavar="BUNDLE", type=click.Path())
@click.option("--show", is_flag=True, help="Print what the bundle holds, and run nothing.")
def command(bundle: str, show: bool, as_json: bool) -> None:
    """Run the program of BUNDLE on the simulated mesh, and compare it with the program alone.

    A bundle is written by fd.save_repro(path), and with MESHFUSE_REPRO_DIR=folder whenever an
    execution fails. Exit code 1: the recorded error recurs, or another one does, or results differ.
    """
    from ..exceptions import Error
    from ..progress import busy
    from .screen import show_text

    try:
        read = load_bundle(bundle)
        if not show:
            definition_of(read)
    except Error as error:
        raise WrongInput(str(error)) from error
    if show:
        facts = read.facts() | {"program": read.program}
        if as_json:
            show_json(facts)
            return
        lines = [f"{name}: {value}" for name, value in facts.items() if name != "program"]
        show_text("\n".join([*lines, "", read.program or ""]).rstrip())
        return
    with busy("replaying"):
        result = replay(read)
    if as_json:
        show_json(result.to_dict())
    elif result.fine:
        show_text(str(result))
    if not result.fine:
        raise click.exceptions.Exit(1) if as_json else Failure(str(result))

# SPDX-License-Identifier: BSD-3-Clause
"""``meshfuse plan``: what a program costs on meshes of several shapes."""

from __future__ import annotations

from typing import Any

import click

from .._C import DeviceMesh
from ..exceptions import Error
from .command import command as make_command
from .command import library, show_json
from .output import say
from .program_file import FILE, UNEVEN, load
from .sizes import SIZE_OPTION, mesh_name, meshes_option, read_sizes
from .wording import for_flags


@make_command()
@FILE
@UNEVEN
@meshes_option
@SIZE_OPTION
def command(
    file: str, uneven: bool, meshes: tuple[DeviceMesh, ...], size: tuple[str, ...], as_json: bool
) -> None:
    """Say what FILE costs on each mesh: communications, bytes, memory and time per device.

    The program's splits are carried over to the mesh, as by `meshfuse check --mesh`. Without one,
    FILE's own mesh counts.
    """
    plan_costs = library("plan", "planner", "plan_costs")
    fd = load(file, uneven)
    sizes = read_sizes(size)
    found: list[dict[str, Any]] = []
    for mesh in meshes or (None,):
        try:
            entry = plan_costs(fd, mesh, sizes=sizes).to_dict()
            name = mesh_name(mesh) if mesh else "x".join(map(str, entry["mesh"])) or "none"
        except Error as error:
            if mesh is None:
                raise
            name, entry = mesh_name(mesh), {"error": for_flags("plan", str(error))}
        found.append(entry | {"mesh": name})
    if as_json:
        show_json(found)
    else:
        _show(found)
    if any("error" in entry for entry in found):
        raise click.exceptions.Exit(1)


def _show(found: list[dict[str, Any]]) -> None:
    from .screen import show_table

    good = [entry for entry in found if "error" not in entry]
    fastest = min((entry["time_us"] for entry in good), default=None)
    rows = [
        (
            entry["mesh"] + (" *" if len(good) > 1 and entry["time_us"] == fastest else ""),
            str(_count(entry["communications"])),
            _bytes(entry["bytes"]),
            _bytes(entry["peak_memory"]),
            f"{entry['time_us']:.1f}",
            f"{entry['computed']:.3g} x",
        )
        for entry in good
    ]
    columns = ("mesh", "communications", "sent", "peak memory", "time, us", "computed")
    if rows:
        show_table(columns, rows, right=columns[1:])
        if len(good) > 1:
            say("* the least time")
    for entry in good:
        if entry["repeated_over"]:
            axes = " and ".join(entry["repeated_over"])
            say(
                f"mesh {entry['mesh']}: no operation is divided over {axes}; the same is computed "
                f"{entry['computed']:.3g} times"
            )
    for entry in found:
        if "error" in entry:
            click.echo(f"meshfuse: mesh {entry['mesh']}: {entry['error']}", err=True)


def _count(communications: Any) -> int:
    return communications if isinstance(communications, int) else len(communications)


def _bytes(count: float) -> str:
    """Return a number of bytes in a unit that suits it."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"

# SPDX-License-Identifier: BSD-3-Clause
"""``meshfuse plan``: what a program costs on meshes of several shapes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from .._C import DeviceMesh
from ..exceptions import Error
from .command import command as make_command
from .command import library, show_json
from .figures import find_links
from .output import say
from .program_file import FILE, UNEVEN, load
from .sizes import SIZE_OPTION, mesh_name, meshes_option, read_sizes
from .wording import for_flags

_OFTEN = 1.005  # the same is computed more often than rounding hides
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


@make_command()
@FILE
@UNEVEN
@meshes_option
@SIZE_OPTION
@click.option(
    "--links",
    metavar="NAME|FILE",
    help="Figures of links and devices: nvlink, for example, or a file that Links.save wrote; "
    "default: those that were measured here, else shared-memory.",
)
def command(
    file: str,
    uneven: bool,
    meshes: tuple[DeviceMesh, ...],
    size: tuple[str, ...],
    links: str | None,
    as_json: bool,
) -> None:
    """Say what FILE costs on each mesh: communications, bytes, memory and time per device.

    The program's splits are carried over to the mesh, as by `meshfuse check --mesh`. Without one,
    FILE's own mesh counts.
    """
    plan_costs = library("plan", "planner", "plan_costs")
    fd = load(file, uneven)
    sizes = read_sizes(size)
    figures, source = find_links(links)
    found: list[dict[str, Any]] = []
    for mesh in meshes or (None,):
        try:
            entry = plan_costs(fd, mesh, sizes=sizes, links=figures).to_dict()
            name = mesh_name(mesh) if mesh else "x".join(map(str, entry["mesh"])) or "none"
        except Error as error:
            if mesh is None:
                raise
            name, entry = mesh_name(mesh), {"error": for_flags("plan", str(error))}
        found.append(entry | {"mesh": name, "links": source})
    if as_json:
        show_json(found)
    else:
        _show(found)
        say(f"figures of links: {source}")
    if any("error" in entry for entry in found):
        raise click.exceptions.Exit(1)


def _show(found: list[dict[str, Any]]) -> None:
    from .screen import show_table

    good = [entry for entry in found if "error" not in entry]
    fastest = min((entry["time_us"] for entry in good), default=None)
    sent, memory = (_Unit(entry[key] for entry in good) for key in ("bytes", "peak_memory"))
    rows = [
        (
            entry["mesh"] + (" *" if len(good) > 1 and entry["time_us"] == fastest else ""),
            str(_count(entry["communications"])),
            sent.write(entry["bytes"]),
            memory.write(entry["peak_memory"]),
            f"{entry['time_us']:.1f}",
            f"{entry['computed']:.3g} x",
        )
        for entry in good
    ]
    columns = (
        *("mesh", "communications", f"sent, {sent.name}", f"peak memory, {memory.name}"),
        *("time, us", "computed"),
    )
    if rows:
        show_table(columns, rows, right=columns[1:])
        if len(good) > 1:
            say("* the least time" + _but_repeated(good, fastest))
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


def _but_repeated(good: list[dict[str, Any]], fastest: float | None) -> str:
    """Say of the fastest meshes how often they compute the same, where they do."""
    told = [
        f"mesh {entry['mesh']} computes the same {entry['computed']:.3g} times"
        for entry in good
        if entry["time_us"] == fastest and entry["computed"] >= _OFTEN
    ]
    return f", though {', '.join(told)}" if told else ""


class _Unit:
    """The unit of a column: that of the greatest number, or one in which the least is not 0.00."""

    def __init__(self, counts: Iterable[float]) -> None:
        listed = [count for count in counts if count]
        self._power = 0
        for power in range(1, len(_UNITS)):
            if listed and max(listed) >= 1024**power and min(listed) >= 0.01 * 1024**power:
                self._power = power
        self.name = _UNITS[self._power]

    def write(self, count: float) -> str:
        """Return a number of bytes in the unit."""
        return f"{count / 1024**self._power:.2f}" if self._power else f"{count:.0f}"

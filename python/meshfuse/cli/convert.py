# SPDX-License-Identifier: BSD-3-Clause
"""``meshfuse convert``: a sharding in another form."""

from __future__ import annotations

import click

from .._C import DeviceMesh
from ..exceptions import Error
from ..limits import MAX_AXES
from ..sharding import Sharding
from .command import Failure, WrongInput, show_json
from .command import command as make_command
from .output import say
from .sharding_forms import READ, WRITE, with_axes
from .sizes import mesh_name, read_mesh


@make_command()
@click.argument("text", metavar="TEXT")
@click.option("--from", "source", type=click.Choice(list(READ)), required=True)
@click.option("--to", "target", type=click.Choice(list(WRITE)), required=True)
@click.option(
    "--mesh",
    type=read_mesh,
    metavar="MESH",
    help="The mesh, where TEXT does not describe it: 8, 2x4, or dp=2,tp=4.",
)
@click.option(
    "--ndim",
    type=click.IntRange(0, MAX_AXES),
    help="Number of axes of the tensor, where TEXT does not say it.",
)
def command(
    text: str,
    source: str,
    target: str,
    mesh: DeviceMesh | None,
    ndim: int | None,
    as_json: bool,
) -> None:
    """Write the sharding that TEXT describes in another form.

    dtensor: placements, one per mesh dim, as in "[Shard(0), Replicate()]". partition-spec: mesh
    axes by tensor axis, as in "x, None". shardy: '#sdy.sharding<@mesh, [{"x"}, {}]>', with or
    without the line of its mesh. meshfuse: a tensor of a program in text form.
    """
    try:
        sharding = READ[source](text, mesh)
    except Error as error:
        raise WrongInput(str(error)) from error
    try:
        if ndim is not None:
            sharding = with_axes(sharding, ndim, source)
        written = WRITE[target](sharding)
    except Error as error:
        raise Failure(str(error)) from error
    if as_json:
        show_json(_as_dict(sharding, target, written))
    else:
        say(written)


def _as_dict(sharding: Sharding, target: str, written: str) -> dict[str, object]:
    mesh = sharding.mesh
    devices = None if mesh is None else list(mesh.devices)
    return {
        "form": target,
        "text": written,
        "mesh": None if mesh is None else mesh_name(mesh),
        "devices": devices,
    }

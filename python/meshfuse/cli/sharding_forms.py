# SPDX-License-Identifier: BSD-3-Clause
"""The forms of a sharding that ``meshfuse convert`` reads and writes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .._C import DeviceMesh, TensorView
from ..definition import FusionDefinition, parse_ir
from ..exceptions import Error
from ..limits import cut
from ..sharding import Sharding, from_partition_spec, from_placements, from_shardy
from ..shardy import write_mesh
from ..tensor_sharding import sharding_of

_PLACEMENTS = (
    "Write one placement per mesh dim: Shard(0), Replicate(), Partial() or "
    "_StridedShard(0, split_factor=2), as in '[Shard(0), Replicate()]'."
)
_LIST_ALL_AXES = ("meshfuse", "shardy")  # others leave out axes that are whole
_TENSOR = (
    "Write a tensor of a program in text form, as in 'w: f32[i0{16}, i1{8}] { i2{4}@x, i3{4} = "
    "split i0 outer 4 } mesh(x=4)'."
)


def read_dtensor(text: str, mesh: DeviceMesh | None) -> Sharding:
    """Return what placements describe.

    Raises:
        meshfuse.Error: they are none, or there is no mesh.
    """
    if mesh is None:
        raise Error(
            f"convert: the placements '{cut(text)}' name no mesh. Give it, as in --mesh 2x4; the "
            "last placement is that of mesh_x."
        )
    return from_placements(_placements(text), mesh)


def read_partition_spec(text: str, mesh: DeviceMesh | None) -> Sharding:
    """Return what a partition spec describes."""
    return from_partition_spec(text, mesh)


def read_shardy(text: str, mesh: DeviceMesh | None) -> Sharding:
    """Return what Shardy's text describes."""
    return from_shardy(text, mesh)


def read_tensor(text: str, mesh: DeviceMesh | None) -> Sharding:
    """Return how a tensor in text form is divided.

    Raises:
        meshfuse.Error: it is not one tensor.
    """
    line = text.strip()
    if line.count("\n") or "return" in line.split():
        raise Error(f"convert: '{cut(text)}' is more than one tensor. {_TENSOR}")
    name, colon, _ = line.partition(":")
    if not colon:
        name, line = "T0", f"T0: {line}"
    try:
        fd = parse_ir(f"{line}\nreturn {name.strip()}\n")
    except Error as error:
        raise Error(f"convert: cannot read '{cut(text)}': {error} {_TENSOR}") from error
    inputs = fd._defined().inputs()
    if len(inputs) != 1 or not isinstance(inputs[0], TensorView):
        raise Error(f"convert: '{cut(text)}' is not one tensor. {_TENSOR}")
    sharding = sharding_of(inputs[0])
    if mesh is not None and sharding.mesh is not None and mesh != sharding.mesh:
        raise Error(
            f"convert: '{cut(text)}' is on {sharding.mesh}, but --mesh is {mesh}. Leave --mesh out."
        )
    return sharding


def write_dtensor(sharding: Sharding) -> str:
    """Return placements as torch's constructors."""
    return f"[{', '.join(map(_placement, sharding.placements()))}]"


def write_partition_spec(sharding: Sharding) -> str:
    """Return a partition spec."""
    return sharding.to_partition_spec()


def write_shardy(sharding: Sharding) -> str:
    """Return Shardy's text, after the line of the mesh where it is known."""
    line = "" if sharding.mesh is None else f"{write_mesh(sharding.mesh)}\n"
    return line + sharding.to_shardy()


def write_tensor(sharding: Sharding) -> str:
    """Return a tensor of open sizes that is divided so, in text form.

    Raises:
        meshfuse.Error: there is no mesh, or no tensor can be divided so.
    """
    if sharding.mesh is None:
        raise Error(
            "convert: the splits of a tensor are on a mesh, which is not known. Give it, as in "
            "--mesh 2x4."
        )
    axes = [axis for axis, _ in sharding.axes]
    needed = max([sharding.ndim or 0, *(axis + 1 if axis >= 0 else -axis for axis in axes)])
    with FusionDefinition() as fd:
        tensor = fd.define_tensor([-1] * needed, contiguity=True)
        fd.add_output(fd.ops.set(tensor))
        tensor.set_sharding(sharding)
    return fd.ir().splitlines()[0]


def with_axes(sharding: Sharding, ndim: int, source: str) -> Sharding:
    """Return the sharding of a tensor with so many axes, which are counted from the front.

    Raises:
        meshfuse.Error: the text is of a tensor with another number, or none can be divided so.
    """
    if source in _LIST_ALL_AXES and sharding.ndim not in (None, ndim):
        raise Error(
            f"convert: the text is of a tensor with {sharding.ndim} axes, but --ndim is {ndim}. "
            "Leave --ndim out."
        )
    layouts = sharding.layouts_from_front(ndim, "convert", "the tensor")
    return replace(sharding, axes=tuple(sorted(layouts.items())), ndim=ndim)


READ: dict[str, Callable[[str, DeviceMesh | None], Sharding]] = {
    "dtensor": read_dtensor,
    "partition-spec": read_partition_spec,
    "meshfuse": read_tensor,
    "shardy": read_shardy,
}
WRITE: dict[str, Callable[[Sharding], str]] = {
    "dtensor": write_dtensor,
    "partition-spec": write_partition_spec,
    "meshfuse": write_tensor,
    "shardy": write_shardy,
}


def _placements(text: str) -> list[Any]:
    """Read constructors; nothing is evaluated."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: deep nesting
        raise Error(f"convert: cannot read '{cut(text)}'. {_PLACEMENTS}") from None
    items = tree.elts if isinstance(tree, ast.Tuple | ast.List) else [tree]
    return [_read_placement(item, text) for item in items]


def _read_placement(node: ast.expr, text: str) -> Any:
    from torch.distributed.tensor import Partial, Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    kinds: dict[str, Callable[..., Any]] = {
        "Shard": Shard,
        "S": Shard,
        "Replicate": Replicate,
        "R": Replicate,
        "Partial": Partial,
        "P": Partial,
        "_StridedShard": _StridedShard,
    }
    called = node.func if isinstance(node, ast.Call) else None
    name = getattr(called, "id", getattr(called, "attr", ""))
    if isinstance(node, ast.Call) and name in kinds:
        try:
            values = [ast.literal_eval(value) for value in node.args]
            named = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg}
            return kinds[name](*values, **named)
        except (ValueError, TypeError, RecursionError):
            pass
    source = ast.get_source_segment(text.strip(), node) or ""
    raise Error(f"convert: cannot read '{cut(source)}' in '{cut(text)}'. {_PLACEMENTS}")


def _placement(placement: Any) -> str:
    if hasattr(placement, "split_factor"):
        return f"_StridedShard({placement.dim}, split_factor={placement.split_factor})"
    if hasattr(placement, "dim"):
        return f"Shard({placement.dim})"
    if hasattr(placement, "reduce_op"):
        return "Partial()" if placement.reduce_op == "sum" else f'Partial("{placement.reduce_op}")'
    return "Replicate()"

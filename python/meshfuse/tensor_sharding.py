# SPDX-License-Identifier: BSD-3-Clause
"""The sharding that a tensor of a definition has, and ``TensorView.set_sharding``."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ._C import DeviceMesh, IterDomain, ParallelType, TensorView
from .axis_layout import REST, Layout, Sizes, axis_sizes, devices_of, mesh_axes, misfit
from .exceptions import Error
from .loop_layouts import layouts_of
from .partition_spec import axis_names
from .sharding import Sharding, make_sharding, mesh_text


def sharding_of(tv: TensorView) -> Sharding:
    """Return how a tensor is divided; axes are counted without reductions."""
    mesh = tv.get_device_mesh() if tv.has_device_mesh() else None
    logical = tensor_axes(tv)
    loop = tv.get_loop_domain()
    if mesh is None or not any(axis.is_device_dim() for axis in loop):
        return make_sharding(mesh, {}, ndim=len(logical))
    layouts, obstacles = layouts_of(logical, loop)
    for k, axis in enumerate(logical):
        if axis.is_broadcast() and constant(tv, k) == 1:  # whole on every device
            layouts.pop(k, None)
    return make_sharding(mesh, layouts, ndim=len(logical), obstacles=obstacles)


def set_sharding(tv: TensorView, sharding: Sharding) -> None:
    """Put a tensor on a mesh and divide its axes, as a sharding says.

    Splits of the loop domain and parallel types are those that ``outer_split``, ``inner_split`` and
    ``parallelize`` would make; memory order follows them. Nothing is changed where it fails.

    Args:
        tv: The tensor: an input, an output or another one.
        sharding: From ``from_placements`` or ``from_partition_spec``. Without a mesh, that of the
            tensor is taken, else the only one of the definition.

    Raises:
        meshfuse.Error: an axis or mesh axis is missing, a size cannot be divided, the tensor is
            divided otherwise already, or the sharding is partial.

    Example:
        >>> import meshfuse
        >>> from meshfuse import DeviceMesh, FusionDefinition
        >>> with FusionDefinition() as fd:
        ...     w = fd.define_tensor([6, 8])
        ...     w.set_sharding(meshfuse.from_partition_spec("None, x", mesh=DeviceMesh(range(4))))
        >>> len(w.get_loop_domain())
        3
    """
    if not isinstance(sharding, Sharding):
        raise TypeError(
            f"set_sharding: expected a Sharding for {tv.name}, but got {type(sharding).__name__}. "
            "Make one by from_placements or from_partition_spec."
        )
    sharding.check_expressible("set_sharding")
    _check_not_partial(tv, sharding)
    mesh = _mesh_for(tv, sharding)
    layouts = sharding.layouts_from_front(len(tensor_axes(tv)), "set_sharding", tv.name)
    _check_mesh_axes(tv, layouts, mesh)
    kept = _dividing(tv, layouts, mesh)
    if _is_scheduled(tv):
        if sharding_of(tv) != make_sharding(mesh, kept):
            raise Error(
                f"set_sharding: {tv.name} is split or divided already: {tv}. Give the sharding "
                "before other scheduling calls, and once."
            )
        return
    tv.set_device_mesh(mesh)
    sizes = axis_sizes(mesh)
    order = tv.get_loop_domain()
    places = [order.index(axis) for axis in tensor_axes(tv)]
    for k in sorted(kept, reverse=True):  # splits move the axes behind them
        _split(tv, places[k], kept[k], sizes)


def tensor_axes(tv: TensorView) -> list[IterDomain]:
    """Return the axes that torch tensors have: the logical ones without reductions."""
    return [axis for axis in tv.get_logical_domain() if not axis.is_reduction()]


def constant(tv: TensorView, axis: int) -> int | None:
    """Return the global size of a tensor axis, expanded if it is; None where it is not declared."""
    text = str(tv.shape()[axis])
    return int(text) if text.isdigit() else None


def _check_not_partial(tv: TensorView, sharding: Sharding) -> None:
    for mesh_axis, op in sharding.partial:
        raise Error(
            f"set_sharding: {tv.name} cannot be partial ({op}) on {mesh_axis.name}. Partial values "
            "are results of a reduction whose divided axis rfactor() splits off; an input holds "
            "whole values. Redistribute the tensor to Replicate or Shard before, or divide the "
            "axis that is summed over."
        )


def _mesh_for(tv: TensorView, sharding: Sharding) -> DeviceMesh:
    own = tv.get_device_mesh() if tv.has_device_mesh() else None
    if sharding.mesh is not None:
        if own is not None and own != sharding.mesh:
            raise Error(
                f"set_sharding: {tv.name} is on {own!r}, but the sharding is on {sharding.mesh!r}. "
                "Leave out set_device_mesh, or give a sharding of that mesh."
            )
        return sharding.mesh
    if own is None:
        meshes = {t.get_device_mesh() for t in tv.fusion().tensors() if t.has_device_mesh()}
        if len(meshes) != 1:
            listed = ", ".join(sorted(map(repr, meshes))) or "none"
            raise Error(
                f"set_sharding: the sharding of {tv.name} has no mesh, and the definition has not "
                f"one mesh but {listed}. Call {tv.name}.set_device_mesh(mesh) first, or give "
                "from_partition_spec(spec, mesh=...)."
            )
        own = meshes.pop()
    for name, axis in axis_names(own).items():  # x, y and z were read without the mesh's names
        if axis.name != f"mesh_{name}" and f"mesh_{name}" in (a.name for a in mesh_axes(own)):
            raise Error(
                f"set_sharding: {own!r} of {tv.name} calls {axis.name} '{name}', which stands for "
                f"mesh_{name} in a spec without a mesh. Give from_partition_spec(spec, mesh=...)."
            )
    return own


def _check_mesh_axes(tv: TensorView, layouts: Mapping[int, Layout], mesh: DeviceMesh) -> None:
    for axis, layout in layouts.items():
        for mesh_axis in devices_of(layout):
            if mesh_axis not in mesh_axes(mesh):
                raise Error(
                    f"set_sharding: axis {axis} of {tv.name} is to be divided over "
                    f"{mesh_axis.name}, which {mesh_text(mesh)} does not have. Use its axes, or a "
                    "mesh with more dims."
                )


def _dividing(tv: TensorView, layouts: Mapping[int, Layout], mesh: DeviceMesh) -> dict[int, Layout]:
    """Return the layouts of axes that can be divided; raise where the size cannot be."""
    sizes, axes = axis_sizes(mesh), tensor_axes(tv)
    result = dict(layouts)
    for axis, layout in layouts.items():
        extent = constant(tv, axis)
        if extent is None:  # checked when the program is executed
            continue
        if axes[axis].is_broadcast() and extent == 1:
            devices = [a.name for a in devices_of(layout) if sizes[a] > 1]
            if devices or any(isinstance(f, int) for f in layout):
                raise Error(
                    f"set_sharding: axis {axis} of {tv.name} has size 1 in every place, so "
                    f"{' and '.join(devices)} cannot divide it. Replicate it there."
                )
            del result[axis]
            continue
        reason = misfit(layout, sizes, extent, uneven=tv.fusion().uneven)
        if reason is not None:
            raise Error(f"set_sharding: axis {axis} of {tv.name} {reason}.")
        parts = math.prod(sizes[a] for a in devices_of(layout))
        if extent % parts != 0:  # one split may be uneven; those by 1 are not needed
            result[axis] = tuple(
                f for f in layout if f is REST or isinstance(f, int) or sizes[f] > 1
            )
    return result


def _is_scheduled(tv: TensorView) -> bool:
    loop = tv.get_loop_domain()
    serial = all(axis.get_parallel_type() == ParallelType.serial for axis in loop)
    return not serial or loop != tv.get_logical_domain()


def _split(tv: TensorView, place: int, layout: Layout, sizes: Sizes) -> None:
    """Split the loop axis at ``place`` into the factors of a layout."""
    rest = layout.index(REST)
    for factor in layout[:rest]:
        tv.outer_split(place, sizes[factor] if isinstance(factor, ParallelType) else factor or 1)
        if isinstance(factor, ParallelType):
            tv.axis(place).parallelize(factor)
        place += 1
    for factor in reversed(layout[rest + 1 :]):
        tv.inner_split(place, sizes[factor] if isinstance(factor, ParallelType) else factor or 1)
        if isinstance(factor, ParallelType):
            tv.axis(place + 1).parallelize(factor)


TensorView.set_sharding = set_sharding  # type: ignore[method-assign,assignment]

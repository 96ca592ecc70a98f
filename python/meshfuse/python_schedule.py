# SPDX-License-Identifier: BSD-3-Clause
"""The schedule of a tensor in a program's text form as Python calls that make it again."""

from __future__ import annotations

from collections.abc import Sequence

from .program_text import Tensor, Transform
from .python_values import ValueText
from .remesh import mesh_devices, mesh_shape

_MESH_AXES = {"x": "mesh_x", "y": "mesh_y", "z": "mesh_z"}


def mesh_call(mesh: str) -> str:
    """Return the constructor of a mesh in text form."""
    shape, devices = mesh_shape(mesh), mesh_devices(mesh)
    names = [part.partition('"')[2].rstrip('")') for part in mesh.partition(":")[0].split(",")]
    named = f", names={tuple(names)!r}" if any(names) else ""
    if len(shape) == 1:
        return f"DeviceMesh({devices}{named})"
    return f"DeviceMesh(torch.tensor({devices}).reshape({', '.join(map(str, shape))}){named})"


def input_arguments(tensor: Tensor) -> str:
    """Return the arguments of define_tensor, without dtype, that make an input's axes."""
    axes = list(tensor.root)
    refs, flags = memory_order(tensor)
    places = [axis.ref for axis in axes]
    order = refs if refs is not None and sorted(refs) == sorted(places) else places
    if flags is None or (order is not refs and refs is not None):
        kinds = tensor.axes()
        flags = ["n" if kinds[ref].kind in "br" else "t" for ref in order]
    contiguity = [_FLAGS[flag] for flag in flags]
    shape = [int(axis.size) if axis.size.isdigit() else -1 for axis in axes]
    text = f"shape={shape}, contiguity={contiguity}"
    if order != places:
        text_order = [len(order) - 1 - order.index(ref) for ref in places]
        return f"{text}, stride_order={text_order}"
    return text


def memory_order(tensor: Tensor) -> tuple[list[str] | None, list[str] | None]:
    """Return axes (None: the logical ones; loop: ["loop"]) and flags (None: the usual ones)."""
    words = tensor.item("alloc")
    if words is None:
        return None, None
    at = words.index("contig") if "contig" in words else len(words)
    return words[:at] or None, words[at + 1 :] or None


class ScheduleText:
    """Writes the schedule of one tensor, step by step, following the order of its loop axes."""

    def __init__(self, variable: str, tensor: Tensor, values: ValueText, is_input: bool) -> None:
        """Prepare the schedule of ``tensor``, which Python calls ``variable``."""
        self.variable = variable
        self.lines: list[str] = []
        self._tensor = tensor
        self._values = values
        self._axes = tensor.axes()
        self._loop = [axis.ref for axis in tensor.root]
        self._refs, self._flags = memory_order(tensor)
        self._placed = self._refs is None or (is_input and self._is_order_of_logical())

    def definition_steps(self) -> list[int]:
        """Write the transforms that an rfactor needs; return the positions of its axes."""
        for item in self._tensor.items:
            if not isinstance(item, Transform):
                if item.split()[0] == "logical":
                    break
                continue
            self._transform(item)
        kept = self._tensor.logical()
        axes = [self._loop.index(axis.ref) for axis in kept if axis.kind == "r"]
        self._loop = [axis.ref for axis in kept]
        return axes

    def schedule_steps(self, mesh: str | None) -> None:
        """Write mesh, transforms, order, memory order and parallel axes."""
        if mesh is not None:
            self._add(f"set_device_mesh({mesh})")
        self._place()
        behind = not any(_word(item) == "logical" for item in self._tensor.items)
        for item in self._tensor.items:
            behind = behind or _word(item) == "logical"
            if behind and isinstance(item, Transform):
                if all(ref in self._loop for ref in _operands(item)):
                    self._transform(item)
                    self._place()
        self._reorder()
        self._place()
        if self._refs == ["loop"] and self._flags is None:
            self._add("set_allocation_as_loop()")
        elif self._refs == ["loop"]:
            self._set_allocation(self._loop)
        elif not self._placed:
            self.lines.append(f"# the memory order of {self.variable} is left out")
        for position, ref in enumerate(self._loop):
            parallel = self._axes[ref].parallel
            if parallel is not None:
                name = _MESH_AXES.get(parallel, parallel)
                self._add(f"axis({position}).parallelize(ParallelType.{name})")
            swizzle = self._axes[ref].swizzle
            if swizzle is not None:
                self._add(f"swizzle1d({position}, ParallelType.{_MESH_AXES[swizzle]})")

    def _add(self, call: str) -> None:
        self.lines.append(f"{self.variable}.{call}")

    def _transform(self, item: Transform) -> None:
        positions = [self._loop.index(ref) for ref in _operands(item)]
        made = [axis.ref for axis in item.made]
        if item.words[0] == "merge":
            self._add(f"merge({positions[0]}, {positions[1]})")
            self._loop[positions[0]] = made[0]
            del self._loop[positions[1]]
            return
        side, factor = item.words[2:4]
        if factor.isdigit():
            self._add(f"{side}_split({positions[0]}, {factor})")
        else:
            scalar = self._values.scalar(factor)
            self._add(f"split({positions[0]}, {scalar}, inner_split={side == 'inner'})")
        self._loop[positions[0] : positions[0] + 1] = made

    def _reorder(self) -> None:
        wanted = self._tensor.item("loop")
        if wanted is None or wanted == self._loop:
            return
        if sorted(wanted) != sorted(self._loop):
            self.lines.append(f"# the loop axes of {self.variable} are left out")
            return
        moves = {
            old: wanted.index(ref) for old, ref in enumerate(self._loop) if wanted.index(ref) != old
        }
        self._add(f"reorder({moves})")
        self._loop = wanted

    def _place(self) -> None:
        """Write the memory order as soon as all its axes are loop axes."""
        if not self._placed and self._refs is not None and set(self._refs) <= set(self._loop):
            self._set_allocation(self._refs)

    def _set_allocation(self, refs: Sequence[str]) -> None:
        axes = ", ".join(f"{self.variable}.axis({self._loop.index(ref)})" for ref in refs)
        usual = ["n" if self._axes[ref].kind in "br" else "t" for ref in refs]
        flags = True if self._flags in (None, usual) else [_FLAGS[f] for f in self._flags or ()]
        self._add(f"set_allocation_domain([{axes}], {flags})")
        self._placed = True

    def _is_order_of_logical(self) -> bool:
        return sorted(self._refs or []) == sorted(axis.ref for axis in self._tensor.root)


_FLAGS = {"t": True, "f": False, "n": None}


def needed_imports(lines: Sequence[str]) -> list[str]:
    """Return the import statements that schedule lines need."""
    text = "\n".join(lines)
    names = [name for name in ("DeviceMesh", "ParallelType") if f"{name}" in text]
    imports = [f"from meshfuse import {', '.join(names)}"] if names else []
    return ["import torch", *imports] if "torch." in text else imports


def _word(item: Transform | str) -> str:
    return "" if isinstance(item, Transform) else item.split()[0]


def _operands(item: Transform) -> tuple[str, ...]:
    return item.words[1:3] if item.words[0] == "merge" else item.words[1:2]

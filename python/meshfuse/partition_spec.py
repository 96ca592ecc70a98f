# SPDX-License-Identifier: BSD-3-Clause
"""Partition specs: for each tensor axis, the names of the mesh axes that divide it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ._C import DeviceMesh, ParallelType
from .axis_layout import MESH_AXES, mesh_axes
from .exceptions import Error
from .limits import cut

Entry = tuple[ParallelType, ...]
Spec = Sequence[str | Sequence[str] | None]

_CALL = ("P", "PartitionSpec")
_HOW = "Write one entry per tensor axis: None, a mesh axis, or a tuple of them, as in 'x, None'."
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")


def read_spec(spec: str | Spec, mesh: DeviceMesh | None) -> list[Entry]:
    """Return the mesh axes of each tensor axis, the outermost first.

    Raises:
        meshfuse.Error: the text is no spec, or a name is not an axis of the mesh, or occurs twice.
        TypeError: it is neither text nor a list.
    """
    if not isinstance(spec, Iterable) or isinstance(spec, bytes | Mapping):
        raise TypeError(
            "from_partition_spec: expected a text such as 'x, None', or a list of entries, but got "
            f"{type(spec).__name__}"
        )
    entries = _parsed(spec.strip()) if isinstance(spec, str) else list(spec)
    names = axis_names(mesh)
    result = [tuple(_axis(name, names, mesh) for name in _names(entry)) for entry in entries]
    used = [axis for entry in result for axis in entry]
    for axis in used:
        if used.count(axis) > 1:
            raise Error(
                f"from_partition_spec: {axis.name} occurs more than once in '{cut(str(spec))}'. "
                "Each mesh axis divides one axis of a tensor; name it once."
            )
    return result


def write_spec(entries: Iterable[Entry], mesh: DeviceMesh | None) -> str:
    """Return the text of a spec, in the names that the mesh gives its axes, else x, y and z."""
    names = {axis: name for name, axis in reversed(axis_names(mesh).items())}
    texts = []
    for entry in entries:
        words = [_word(names[axis]) for axis in entry]
        texts.append(
            "None" if not words else words[0] if len(words) == 1 else f"({', '.join(words)})"
        )
    lone_tuple = len(texts) == 1 and texts[0].startswith("(")
    return f"{texts[0]}," if lone_tuple else ", ".join(texts)


def axis_names(mesh: DeviceMesh | None) -> dict[str, ParallelType]:
    """Return the mesh axes by name: first the mesh's own names, then x, y, z and mesh_x, ..."""
    names: dict[str, ParallelType] = {}
    axes = MESH_AXES if mesh is None else mesh_axes(mesh)
    if mesh is not None and mesh.names:
        names.update(zip(mesh.names, axes, strict=True))
    for axis in axes:
        names.setdefault(axis.name.removeprefix("mesh_"), axis)
        names.setdefault(axis.name, axis)
    return names


def _word(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) and name != "None" else repr(name)


def _axis(name: str, names: dict[str, ParallelType], mesh: DeviceMesh | None) -> ParallelType:
    if name in names:
        return names[name]
    known = ", ".join(repr(n) for n in names if not n.startswith("mesh_"))
    if mesh is None:
        raise Error(
            f"from_partition_spec: '{cut(name)}' is not a mesh axis. Without a mesh they are "
            f"called {known}; give mesh= a mesh with names to use those."
        )
    raise Error(f"from_partition_spec: '{cut(name)}' is not an axis of {mesh!r}. It has {known}.")


def _names(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    if isinstance(entry, str):
        return (entry,)
    if isinstance(entry, Sequence) and all(isinstance(name, str) for name in entry):
        return tuple(entry)
    raise Error(f"from_partition_spec: cannot read the entry {cut(repr(entry))}. {_HOW}")


def _parsed(text: str) -> list[Any]:
    if not text:
        return []
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: deep nesting
        raise Error(
            f"from_partition_spec: cannot read '{cut(text)}'. {_HOW} Quote names that are not "
            "words."
        ) from None
    if isinstance(tree, ast.Call):
        return _arguments(tree, text)
    if not isinstance(tree, ast.Tuple):
        return [_entry(tree, text)]
    if text.startswith("(") and text.endswith(")") and _is_lone_tuple(tree, text):
        raise Error(
            f"from_partition_spec: '{text}' may mean one axis over both, or two axes. Write "
            f"'{text},' for one tensor axis, or leave out the parentheses for two."
        )
    return [_entry(node, text) for node in tree.elts]


def _arguments(call: ast.Call, text: str) -> list[Any]:
    """Return the entries of ``P(...)``."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else _source(call.func, text)
    if name not in _CALL:
        raise Error(f"from_partition_spec: '{cut(text)}' calls {cut(name)}. Use P(...) or no call.")
    if call.keywords:
        words = [k.arg or f"**{_source(k.value, text)}" for k in call.keywords]
        raise Error(
            f"from_partition_spec: '{cut(text)}' says {cut(', '.join(words))}, which a "
            "tensor cannot be given. Leave it out."
        )
    return [_entry(node, text) for node in call.args]


def _source(node: ast.expr, text: str) -> str:
    return ast.get_source_segment(text, node) or ""


def _is_lone_tuple(tree: ast.Tuple, text: str) -> bool:
    """Whether the parentheses are the tuple's own and it has names alone."""
    own = tree.col_offset == 0 and tree.end_col_offset == len(text.encode())
    inside = tree.elts and tree.elts[0].col_offset > 0
    first_is_name = all(isinstance(e, ast.Name) or _constant(e) is not None for e in tree.elts)
    return bool(own and inside and first_is_name and len(tree.elts) > 1)


def _constant(node: ast.expr) -> str | None:
    value = node.value if isinstance(node, ast.Constant) else None
    return value if isinstance(value, str) else None


def _entry(node: ast.expr, text: str) -> Any:
    """Return None, a name or a tuple of names."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Constant) and (node.value is None or isinstance(node.value, str)):
        return node.value
    if isinstance(node, ast.Tuple | ast.List):
        names = [_entry(item, text) for item in node.elts]
        if all(isinstance(name, str) for name in names):
            return tuple(names)
    raise Error(
        f"from_partition_spec: cannot read '{cut(_source(node, text))}' in '{cut(text)}'. {_HOW} "
        "meshfuse has no unconstrained axes; leave the tensor without a sharding for that."
    )

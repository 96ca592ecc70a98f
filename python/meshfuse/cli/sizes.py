# SPDX-License-Identifier: BSD-3-Clause
"""Options that give numbers for sizes and for meshes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import click
import torch

from .._C import DeviceMesh
from ..limits import MAX_DEVICES, MAX_SIZE, cut, whole_number

SIZE_OPTION = click.option(
    "--size",
    multiple=True,
    metavar="NAME=SIZE",
    help="A size that the program leaves open (T0.1=64), or all sizes of an input (T0=32x64).",
)
_SIZE = re.compile(r"(?P<name>[A-Za-z_]\w*(?:\.\d+)?)=(?P<sizes>\d+(?:x\d+)*)", re.ASCII)
_MESH = re.compile(r"\d+(?:x\d+)*|[A-Za-z_]\w*=\d+(?:,[A-Za-z_]\w*=\d+)*", re.ASCII)
_AXIS = re.compile(r'\b[xyz]=(\d+)(?: "([^"]*)")?')


def read_sizes(options: Iterable[str]) -> dict[str, int | tuple[int, ...]] | None:
    """Return the sizes by name, as ``fd.explain(sizes=...)`` takes them; None without any."""
    found: dict[str, int | tuple[int, ...]] = {}
    written: dict[str, str] = {}
    for option in options:
        text = option.replace(" ", "")
        match = _SIZE.fullmatch(text)
        if match is None:
            raise click.BadParameter(
                f"{cut(text)!r} is not NAME=SIZE. Write T0.1=64 for a size that is open, T0=32x64 "
                "for all sizes of an input.",
                param_hint="--size",
            )
        name = match["name"]
        sizes = tuple(_size(text, digits) for digits in match["sizes"].split("x"))
        if "." in name and len(sizes) > 1:
            raise click.BadParameter(
                f"{cut(text)!r} gives {len(sizes)} sizes for {name}, which is one. Write "
                f"{name}={sizes[0]}, or {cut(name.split('.')[0] + '=' + match['sizes'])} for all "
                "sizes of an input.",
                param_hint="--size",
            )
        if name in found:
            raise click.BadParameter(
                f"{cut(name)} is given twice, as {cut(written[name])!r} and {cut(text)!r}. Give "
                "each input or open size once.",
                param_hint="--size",
            )
        written[name] = text
        found[name] = sizes[0] if "." in name else sizes
    return found or None


def example_of_sizes(names: Iterable[str]) -> str:
    """Return options that give open sizes a value, for messages."""
    return " ".join(f"--size {name}=4" for name in names)


def _size(text: str, digits: str) -> int:
    size = whole_number(digits, MAX_SIZE)
    if size is None:
        raise click.BadParameter(
            f"{cut(text)!r}: a size is at most {MAX_SIZE}.", param_hint="--size"
        )
    return size


def read_mesh(text: str) -> DeviceMesh:
    """Return a mesh: ``8``, ``2x4`` (y=2, x=4), or with names ``dp=2,tp=4``."""
    bare = text.replace(" ", "")
    if _MESH.fullmatch(bare) is None:
        raise click.BadParameter(
            f"{cut(text)!r} is not a mesh. Write 8, 2x4 (the last one is x), or dp=2,tp=4 with "
            "names."
        )
    named = [part.split("=") for part in bare.split(",")] if "=" in bare else []
    digits = [n for _, n in named] or bare.split("x")
    shape = [n for n in (whole_number(n, MAX_DEVICES) for n in digits) if n is not None]
    if len(shape) < len(digits) or math.prod(shape) > MAX_DEVICES:
        raise click.BadParameter(f"{cut(text)!r}: a mesh has at most {MAX_DEVICES} devices.")
    if not 1 <= len(shape) <= 3 or any(n < 1 for n in shape):
        raise click.BadParameter(f"{text!r}: a mesh has 1 to 3 axes of at least 1 device.")
    devices = torch.arange(math.prod(shape)).reshape(shape)
    try:
        return DeviceMesh(devices, names=tuple(name for name, _ in named))
    except ValueError as error:
        raise click.BadParameter(f"{text!r}: {error}") from error


meshes_option = click.option(
    "--mesh",
    "meshes",
    type=read_mesh,
    metavar="MESH",
    multiple=True,
    help="Carry the splits over to this mesh: 8, 2x4, or dp=2,tp=4; may be given several times.",
)


def mesh_name(mesh: DeviceMesh) -> str:
    """Return a mesh as the option takes it: ``2x4``, ``dp=2,tp=4``."""
    if any(mesh.names):
        return ",".join(f"{name}={n}" for name, n in zip(mesh.names, mesh.shape, strict=True))
    return "x".join(map(str, mesh.shape))


def names_of_text(meshes: str) -> str:
    """Return meshes in text form, ``mesh(y=2, x=4)``, as the option takes them; "none" for none."""
    return "; ".join(map(_name_of_text, meshes.split("; mesh("))) or "none"


def _name_of_text(mesh: str) -> str:
    axes = _AXIS.findall(mesh)
    if axes and all(name for _, name in axes):
        return ",".join(f"{name}={size}" for size, name in axes)
    return "x".join(size for size, _ in axes)

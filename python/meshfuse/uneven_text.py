# SPDX-License-Identifier: BSD-3-Clause
"""Reads the text form of programs whose axes devices divide unevenly, which it does not say."""

from __future__ import annotations

import re

from ._C import DeviceMesh, Fusion, parse_fusion
from .program_text import parse

_MESH = re.compile(r""" mesh\((?:[^")]|"(?:[^"\\]|\\.)*")*\)""")


def read_fusion(text: str, uneven: bool) -> Fusion:
    """Return the program of a text form, with ``uneven`` as given.

    Sizes are compared with the devices when a tensor is put on its mesh: it is read without one,
    and put there once uneven sizes are allowed.

    Raises:
        meshfuse.Error: it is no program; it says line and column.
    """
    if not uneven:
        return parse_fusion(text)
    fusion = parse_fusion(_MESH.sub("", text))
    fusion.uneven = True
    stated = parse(text).tensors()
    meshes: dict[str, DeviceMesh] = {}
    for tv in fusion.tensors():
        mesh = stated[tv.name].mesh if tv.name in stated else None
        if mesh is None:
            continue
        if mesh not in meshes:
            alone = parse_fusion(f"mesh: f32[] {mesh}\nreturn mesh\n")
            meshes[mesh] = alone.tensors()[0].get_device_mesh()
        tv.set_device_mesh(meshes[mesh])
    return fusion

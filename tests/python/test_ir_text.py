# SPDX-License-Identifier: BSD-3-Clause
"""Text form of definitions: reading the text gives the same definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition, ParallelType, TensorView


def check(fd: FusionDefinition) -> str:
    """Check that the text of ``fd`` reads back as ``fd``, and return it."""
    text = fd.ir()
    again = meshfuse.parse_ir(text)
    assert again.ir() == text
    assert again.fusion == fd.fusion
    return text


def define_input(fd: FusionDefinition, data: st.DataObject, ndim: int) -> TensorView:
    """Define an input whose axes may be symbolic, constant, broadcast or expanded."""
    shape = data.draw(st.lists(st.sampled_from([-1, 1, 4, 8]), min_size=ndim, max_size=ndim))
    order = data.draw(st.permutations(range(ndim)))
    flags: list[bool | None] = [None] * ndim
    for axis, size in enumerate(shape):
        choices = [None] if size == 1 else [True, False, None]
        flags[ndim - 1 - order[axis]] = data.draw(st.sampled_from(choices))
    return fd.define_tensor(shape, contiguity=flags, stride_order=list(order))


def schedule(data: st.DataObject, tv: TensorView) -> None:
    """Split, merge and reorder axes at random."""
    for _ in range(data.draw(st.integers(0, 4))):
        axes = len(tv.get_loop_domain())
        if axes == 0:
            return
        kind = data.draw(st.sampled_from(["outer", "inner", "merge", "reorder", "alloc"]))
        axis = data.draw(st.integers(0, axes - 1))
        if kind in ("outer", "inner"):
            tv.split(axis, 2, kind == "inner")
        elif kind == "merge" and axes > 1:
            try:
                tv.merge(axis, (axis + 1) % axes)
            except meshfuse.Error:
                pass  # a reduction with an axis that is none
        elif kind == "reorder":
            tv.reorder({axis: 0})
        elif kind == "alloc":
            tv.set_allocation_domain(tv.get_loop_domain(), True)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_text_reads_back_as_the_definition(data: st.DataObject) -> None:
    """parse(print(definition)) is the definition, for random programs and schedules."""
    with FusionDefinition() as fd:
        x = define_input(fd, data, 2)
        y = define_input(fd, data, data.draw(st.integers(0, 2)))
        s = fd.define_scalar(dtype=DataType.Double)
        tensors = [x, y, fd.ops.relu(x), fd.ops.mul(x, s), fd.ops.permute(x, [1, 0])]
        tensors.append(fd.ops.sum(tensors[-1], [data.draw(st.integers(-2, 1))]))
        tensors.append(fd.ops.cast(fd.ops.add(tensors[2], 2.5), DataType.Half))
        for tv in tensors[2:]:
            fd.add_output(tv)
    for tv in tensors:
        schedule(data, tv)
    check(fd)


def test_meshes_and_parallel_axes() -> None:
    """Mesh axes stand at the axes that are on them."""
    mesh = DeviceMesh(torch.arange(6).reshape(2, 3))
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 12], contiguity=True)
        fd.add_output(fd.ops.relu(x))
    x.set_device_mesh(mesh)
    x.outer_split(0, 2)
    x.axis(0).parallelize(ParallelType.mesh_y)
    x.outer_split(-1, 3)
    x.axis(-2).parallelize(ParallelType.mesh_x)
    assert check(fd) == (
        "T0: f32[i0{4}, i1{12}] { i2{2}@y, i3{2} = split i0 outer 2; "
        "i4{3}@x, i5{4} = split i1 outer 3 } mesh(y=2, x=3)\n"
        "T1 = relu(T0): f32[i0{4}, i1{12}]\n"
        "return T1\n"
    )


def test_wrong_text_is_an_error_with_a_place() -> None:
    """A wrong type is reported where it stands, with what it should be."""
    text = "a: f32[i0{4}]\nb = relu(a): f64[i0{4}]\nreturn b\n"
    with pytest.raises(meshfuse.Error) as error:
        meshfuse.parse_ir(text)
    assert str(error.value) == (
        "parseIr: line 2, column 14: the text says f64[i{4}], but relu gives f32[i{4}]. "
        "Correct the type."
    )


def test_products_of_sizes_of_two_types() -> None:
    """The op makes the size of an Int and an Index, in an order of its own."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        size = fd.ops.mul(fd.define_scalar(DataType.Int), fd.define_scalar(7, DataType.Int))
        fd.add_output(fd.ops.reshape(x, [size, -1]))
    check(fd)

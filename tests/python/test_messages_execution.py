# SPDX-License-Identifier: BSD-3-Clause
"""What turns out at execution only, on one process or several, and in which words it is told."""

from __future__ import annotations

import re

import pytest
import torch
from programs import X, place, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition
from meshfuse.testing.environments import MultideviceTest


@pytest.mark.parametrize(("size", "start", "end"), [(0, 1, 1), (5, 3, 9), (5, 6, 2**31)])
def test_slice_by_numbers_outside(size, start, end):
    """Refused where it is written, not when it runs."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([size])
        message = (
            f"slice: axis 0 of T0 (size {size}) is to be sliced from {start} to {end}. Give 0 <= "
            "start <= end <= size, or leave manual_normalization out."
        )
        with pytest.raises(meshfuse.Error, match=re.escape(message)):
            fd.ops.slice(x, [start], [end], manual_normalization=True)
        fd.add_output(fd.ops.slice(x, [start], [end]))
        fd.add_output(fd.ops.slice(x, [size], [2**31], manual_normalization=True))
    clipped, rest = fd.execute([torch.arange(float(size))])
    assert clipped.tolist() == list(range(size))[start:end]
    assert rest.shape == (0,)


@pytest.mark.parametrize(
    ("manual", "start", "end", "message"),
    [
        (True, 3, 9,
         "slice: axis 0 of T0 (size 5) is to be sliced from 3 to 9. Give 0 <= start <= end <= "
         "size, or leave manual_normalization out."),
        (False, -3, 2,
         "slice: axis 0 of T0 (size 5) is to be sliced from -3 to 2. Give 0 <= start <= end."),
    ],
)  # fmt: skip
def test_slice_by_scalars(manual, start, end, message):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        first, last = fd.define_scalar(DataType.Int), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.slice(x, [first], [last], [1], manual))
    with pytest.raises(meshfuse.Error, match=re.escape(message)):
        fd.execute([torch.arange(5.0), start, end])


@pytest.mark.cpu_only("torch refuses it on the CPU")
def test_error_of_torch_in_a_step():
    """What torch refuses is told with the step that ran."""
    with FusionDefinition() as fd:
        x, y = (fd.define_tensor([2, 2], dtype=DataType.Bool) for _ in range(2))
        fd.add_output(fd.ops.matmul(x, y))
    ones = torch.ones(2, 2, dtype=torch.bool)
    with pytest.raises(meshfuse.Error, match=r"\n  while running .*matmul\("):
        fd.execute([ones, ones])


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ([-1, 1], [-1, -1], "axis 1 of T1 has 4 elements, that of T0 has 1."),
        ([-1, -1], [-1, 1], "axis 1 of T1 has 1 elements, that of T0 has 4."),
    ],
    ids=["first", "second"],
)
def test_cat_does_not_broadcast(first, second, message):
    with FusionDefinition() as fd:
        x, y = fd.define_tensor(first), fd.define_tensor(second)
        fd.add_output(fd.ops.cat([x, y], 0))
    sizes = [4 if shape[1] < 0 else 1 for shape in (first, second)]
    whole = (
        f"cat: a conflict was found with 2 different sizes: {message} Only the axis along which "
        "they are put together may differ."
    )
    with pytest.raises(meshfuse.Error, match=re.escape(whole)) as caught:
        fd.execute([torch.ones(2, size) for size in sizes])
    assert (caught.value.tensor, caught.value.axis) == ("T1", 1)


def test_type_that_torch_lacks():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.cast(fd.define_tensor([4]), DataType.Float4_e2m1fn))
    message = "torch has no type for Float4_e2m1fn, so no tensor of it can be computed."
    with pytest.raises(meshfuse.UnsupportedError, match=re.escape(message)):
        fd.execute([torch.ones(4)])


PAIR = DeviceMesh(range(2))


def bias_with_device_axes():
    """The products are summed over devices, and the bias cannot be added to the sum."""
    with FusionDefinition() as fd:
        x, w, b = fd.define_tensor([4, 8]), fd.define_tensor([3, 5, 8]), fd.define_tensor([3, 5])
        fd.add_output(fd.ops.linear(x, w, b))
        place(PAIR, x, w, b)
        shard(x, 1, 2)
        shard(w, 2, 2)
    return fd, [torch.ones(4, 8), torch.ones(3, 5, 8), torch.ones(3, 5)]


def half_of_an_undivided_sum():
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 6])
        out = fd.ops.sum(x, [0])
        fd.add_output(out)
        place(PAIR, x, out)
        out.outer_split(0, 2)
        out.rfactor([1]).axis(0).parallelize(X)
    return fd, [torch.ones(8, 6)]


def reduced_half_on_the_mesh():
    """The devices are to divide the half that each reduces; the operand is whole."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 4])
        out = fd.ops.min(x)
        fd.add_output(out)
        out.set_device_mesh(PAIR)
        out.outer_split(1, 2)
        out.rfactor([1]).axis(1).parallelize(X)
    return fd, [torch.ones(2, 4)]


def reduction_with_another_split():
    """The devices have halves of the axis, of which the result declares pieces of two elements."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 8])
        out = fd.ops.sum(x, [1])
        fd.add_output(out)
        place(PAIR, x, out)
        shard(x, 1, 2)
        out.inner_split(1, 2)
    return fd, [torch.ones(4, 8)]


PIECE = (
    "is a piece of a reduction (rfactor), and its operands are divided in another way. Shard its "
    "operands as it is."
)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (bias_with_device_axes,
         "linear: the products of T0 are divided over devices, and bias T2 has device axes, so "
         "that it cannot be added behind. Shard K elsewhere, or add the bias to the result."),
        (half_of_an_undivided_sum, "sum: T2 " + PIECE),
        (reduction_with_another_split,
         "sum: T1 is reduced over an axis that is divided over mesh_x in a way that cannot be "
         "repeated on it. Use outer splits of whole axes."),
        (reduced_half_on_the_mesh, "min: T2 " + PIECE),
    ],
)  # fmt: skip
def test_division_that_cannot_be(program, message):
    fd, inputs = program()
    with meshfuse.simulate(2) as mesh, pytest.raises(meshfuse.Error, match=re.escape(message)):
        mesh.run(fd, inputs)


def test_whole_axis_of_another_size():
    """The devices have one element each; the others would be lost."""
    with FusionDefinition() as fd:
        out = fd.ops.relu(fd.define_tensor([-1]))
        fd.add_output(out)
        out.set_device_mesh(PAIR)
        out.axis(0).parallelize(X)
    message = (
        "parallelize: a piece of axis 0 of T0 turns out to have size 3 and is on mesh_x, which "
        "has 2 devices. Split the axis by 2 first, and parallelize that half."
    )
    with meshfuse.simulate(2) as mesh:
        assert torch.equal(mesh.run(fd, [torch.arange(2.0)])[0], torch.arange(2.0))
        with pytest.raises(meshfuse.Error, match=re.escape(message)):
            mesh.run(fd, [torch.arange(3.0)])


def test_shard_tensor_of_a_test_without_a_mesh():
    env = MultideviceTest.__new__(MultideviceTest)
    with pytest.raises(TypeError) as caught:
        env.shard_tensor(torch.ones(2, device="cpu"), 0)
    assert str(caught.value) == "shard_tensor(t, dim, mesh): the mesh is missing"

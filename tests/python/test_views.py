# SPDX-License-Identifier: BSD-3-Clause
"""reshape, squeeze, expand, broadcast_in_dim, slice, cat and pad: shapes, sharding, errors."""

from __future__ import annotations

import pytest
import torch
from programs import X, Y, place, ramp, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition


def unsharded(build, *tensors, shapes=None):
    """Run ``build(fd, *tvs)`` on one device."""
    with FusionDefinition() as fd:
        tvs = [
            fd.define_tensor(list(shape)) for shape in (shapes or [list(t.shape) for t in tensors])
        ]
        fd.add_output(build(fd, *tvs))
    return fd.execute(list(tensors))[0]


# ---- reshape

LOCAL = [  # shape, axis that is divided by 2, new shape, axis of the result that must be divided
    ([4, 12, 6], 1, [4, 4, 3, 6], 1),
    ([4, 12, 6], 0, [4, 4, 3, 6], 0),
    ([4, 4, 3], 1, [4, 12], 1),
    ([4, 4, 3], 0, [48], 0),
    ([4, 6], 0, [8, 3], 0),
    ([6, 4], 0, [4, 6], 0),
    ([2, 5, 8], 2, [10, 8], 1),
    ([8, 1, 3], 0, [1, 8, 3, 1], 1),
]


@pytest.mark.parametrize(("shape", "axis", "new", "result_axis"), LOCAL)
def test_split_and_merge_keep_the_sharding_of_the_outermost_axis(shape, axis, new, result_axis):
    x = torch.randn(shape)
    with FusionDefinition() as fd:
        tv = fd.define_tensor(shape)
        out = fd.ops.reshape(tv, new)
        fd.add_output(out)
    place(DeviceMesh(range(2)), tv)
    shard(tv, axis, 2)
    explanation = fd.explain()
    assert explanation.communications == []
    with meshfuse.simulate(2) as sim:
        (got,) = sim.run(fd, [x])
        want = x.reshape(new)
        assert torch.equal(got, want)
        assert torch.equal(sim.local(0, 1), want.chunk(2, result_axis)[1])


def test_reshape_follows_a_split_backwards():
    with FusionDefinition() as fd:
        x = fd.define_tensor([6, 8])
        h = fd.ops.relu(x)
        out = fd.ops.reshape(h, [6, 4, 2])
        fd.add_output(out)
    place(DeviceMesh(range(4)), out)
    shard(out, 1, 4)
    assert fd.explain().communications == []
    data = torch.randn(6, 8)
    with meshfuse.simulate(4) as sim:
        assert torch.equal(sim.run(fd, [data])[0], data.relu().reshape(6, 4, 2))


def test_reshape_gathers_where_an_inner_axis_is_divided():
    """[4, 6] -> [24]: a division of the second axis is none of the result's outermost blocks."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        fd.add_output(fd.ops.reshape(x, [24]))
    place(DeviceMesh(range(2)), x)
    shard(x, 1, 2)
    assert [c.kind for c in fd.explain().communications] == ["all-gather"]
    data = torch.randn(4, 6)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [data])[0], data.reshape(24))


def test_reshape_divided_by_more_than_the_outermost_axis_gathers():
    with FusionDefinition() as fd:
        x = fd.define_tensor([12])
        fd.add_output(fd.ops.reshape(x, [3, 4]))
    place(DeviceMesh(range(4)), x)
    shard(x, 0, 4)
    data = torch.randn(12)
    with meshfuse.simulate(4) as sim:
        assert torch.equal(sim.run(fd, [data])[0], data.reshape(3, 4))


@pytest.mark.parametrize("order", [(X, Y), (Y, X)])
def test_reshape_of_an_axis_on_two_mesh_axes(order):
    mesh = DeviceMesh(torch.arange(4).reshape(2, 2))
    with FusionDefinition() as fd:
        x = fd.define_tensor([16, 3])
        fd.add_output(fd.ops.reshape(x, [8, 2, 3]))
    place(mesh, x)
    shard(x, 0, 2, order[0])
    shard(x, 1, 2, order[1])
    assert fd.explain().communications == []
    data = torch.randn(16, 3)
    with meshfuse.simulate(4) as sim:
        assert torch.equal(sim.run(fd, [data])[0], data.reshape(8, 2, 3))


def test_reshape_of_symbolic_sizes_splits_and_merges():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, -1])
        b, s, _ = fd.ops.shape(x)
        split = fd.ops.reshape(x, [b, s, 4, -1])
        merged = fd.ops.reshape(fd.ops.permute(split, [0, 2, 1, 3]), [b * 4, s, -1])
        fd.add_output(split)
        fd.add_output(merged)
    place(DeviceMesh(range(2)), x)
    shard(x, 2, 2)
    kinds = [c.kind for c in fd.explain(inputs=[torch.randn(2, 3, 4)]).communications]
    assert kinds == ["all-gather"]  # for the merge, whose inner axis is the divided one
    for sizes in [(2, 3, 8), (1, 5, 16)]:
        data = torch.randn(*sizes)
        want = data.reshape(*sizes[:2], 4, sizes[2] // 4)
        with meshfuse.simulate(2) as sim:
            got = sim.run(fd, [data])
        assert torch.equal(got[0], want)
        merged = want.permute(0, 2, 1, 3).reshape(sizes[0] * 4, sizes[1], -1)
        assert torch.equal(got[1], merged)


def test_reshape_of_symbolic_sizes_to_numbers():
    x = torch.randn(2, 5, 12)
    got = unsharded(lambda fd, t: fd.ops.reshape(t, [2, 5, 3, 4]), x, shapes=[[-1, -1, 12]])
    assert torch.equal(got, x.reshape(2, 5, 3, 4))


def test_reshape_takes_a_non_contiguous_operand_and_empty_ones():
    x = torch.randn(6, 4).t()
    assert torch.equal(unsharded(lambda fd, t: fd.ops.reshape(t, [24]), x), x.reshape(24))
    empty = torch.randn(0, 4)
    got = unsharded(lambda fd, t: fd.ops.reshape(t, [4, 0, 3]), empty, shapes=[[-1, 4]])
    assert got.shape == (4, 0, 3)


def test_reshape_to_and_from_a_scalar():
    one = torch.randn(1, 1)
    assert unsharded(lambda fd, t: fd.ops.reshape(t, []), one).shape == ()
    zero_d = torch.randn(())
    assert unsharded(lambda fd, t: fd.ops.reshape(t, [1, 1]), zero_d).shape == (1, 1)


RESHAPE_ERRORS = [
    ([4, 6], [-1, -1], "A maximum of one value of -1 can be provided to reshape."),
    ([4, 6], [5, 5], "Total element counts across view operation must match"),
    ([4, 6], [5, -1], "Total element counts across view operation must match"),
    ([4, 6], [-2, 12], "The value -2 at index 0 was neither symbolic(-1)"),
    ([4, 0], [0, -1], "can stand for any size"),
]


@pytest.mark.parametrize(("shape", "new", "message"), RESHAPE_ERRORS)
def test_reshape_errors_at_definition(shape, new, message):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape)
        with pytest.raises(meshfuse.Error) as info:
            fd.ops.reshape(x, new)
    assert message in str(info.value)
    assert "T0" in str(info.value)


def test_reshape_error_at_run_time():
    with pytest.raises(RuntimeError, match="Total element counts across view operation must match"):
        unsharded(lambda fd, t: fd.ops.reshape(t, [5, 5]), torch.randn(4, 6), shapes=[[-1, -1]])


def _pairs(annotated):
    """A reshape of a divided axis of any size to pairs."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        y = fd.ops.reshape(x, [-1, 2])
        fd.add_output(fd.ops.neg(y))
        place(DeviceMesh(range(2)), x, *([y] if annotated else []))
        shard(x, 0, 2)
    return fd


def test_reshape_of_a_size_that_turns_out_not_to_be_divisible():
    """The division is passed on before sizes are known: the message says how to stop it."""
    fd = _pairs(annotated=False)
    message = (
        r"axis 0 of T1 of size 3 is not divisible by 2, .* T1 is not annotated and follows the "
        r"tensors beside it: call set_device_mesh on it to leave it whole\.\n.*T1 = reshape\(T0"
    )
    with meshfuse.simulate(2) as sim:
        with pytest.raises(meshfuse.Error, match=message):
            sim.run(fd, [torch.arange(6.0)])
        assert torch.equal(sim.run(fd, [torch.arange(8.0)])[0], -torch.arange(8.0).view(4, 2))


def test_reshape_of_any_size_to_a_whole_tensor():
    fd = _pairs(annotated=True)
    with meshfuse.simulate(2) as sim:
        for n in (6, 8, 2):
            x = torch.arange(float(n))
            assert torch.equal(sim.run(fd, [x])[0], -x.view(-1, 2))


# ---- squeeze and expand


def test_squeeze_expanded_axis():
    x = torch.randn(4, 1).expand(4, 3)
    with FusionDefinition() as fd:
        t = fd.define_tensor([4, 3], contiguity=[True, None])
        fd.add_output(fd.ops.squeeze(t, [1], squeeze_expanded=True))
    assert torch.equal(fd.execute([x])[0], x[:, 0])


SQUEEZE_ERRORS = [
    ([4, 1], [2], "Squeeze dim is outside of Tensor size!"),
    ([4, 1], [0], "Can not squeeze dimension(s) with size != 1."),
    ([1], [0, 0], "The dims to squeeze must be <= the number of dims of the input tensor"),
]


@pytest.mark.parametrize(("shape", "dims", "message"), SQUEEZE_ERRORS)
def test_squeeze_errors(shape, dims, message):
    with FusionDefinition() as fd:
        x = fd.define_tensor(shape)
        with pytest.raises(meshfuse.Error) as info:
            fd.ops.squeeze(x, dims)
    assert message in str(info.value)


def test_expand_by_symbolic_sizes_divides_the_new_axis():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 1])
        y = fd.define_tensor([-1, -1])
        out = fd.ops.add(fd.ops.expand(x, [-1, fd.ops.size(y, 1)]), y)
        fd.add_output(out)
    place(DeviceMesh(range(2)), x, y)
    shard(y, 1, 2)
    a, b = torch.randn(3, 1), torch.randn(3, 4)
    assert fd.explain(inputs=[a, b[:, :2]]).communications == []
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [a, b])[0], a + b)


def test_expand_of_an_axis_to_another_size():
    """The size is a scalar input, so the first chance to compare is the execution."""
    with FusionDefinition() as fd:
        x, k = fd.define_tensor([-1, 4]), fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.expand(x, [k, 4]))
    t = torch.randn(2, 4)
    torch.testing.assert_close(fd.execute([t, 2])[0], t)
    message = (
        r"expand: axis 0 of T0 has size 2 but the shape has 3 for it, \w+\. Only axes declared"
    )
    with pytest.raises(meshfuse.Error, match=message):
        fd.execute([t, 3])
    torch.testing.assert_close(fd.execute([t, 2])[0], t)


def test_expand_errors():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 1])
        with pytest.raises(meshfuse.Error, match="axis 0 of T0 has size 4 and cannot become 5"):
            fd.ops.expand(x, [5, 3])
        with pytest.raises(meshfuse.Error, match="Give a size per axis"):
            fd.ops.expand(x, [4])


BROADCAST_ERRORS = [
    ([6, 4], [0], "The broadcast dimensions should match the input dimensions."),
    ([6], [0, 1], "The new shape is expected to be greater-then-or-equal to the input"),
    ([6, 4, 2], [0, 3], "Invalid broadcast_dims value."),
    ([6, 4, 2], [0, 0], "is specified more than once."),
]


@pytest.mark.parametrize(("new", "dims", "message"), BROADCAST_ERRORS)
def test_broadcast_in_dim_errors(new, dims, message):
    with FusionDefinition() as fd:
        x = fd.define_tensor([6, 4])
        with pytest.raises(meshfuse.Error) as info:
            fd.ops.broadcast_in_dim(x, new, dims)
    assert message in str(info.value)


# ---- slice, cat, pad


def test_slice_of_a_divided_axis_gathers_and_of_another_does_not():
    data = torch.randn(8, 6)
    for axis, kinds in [(0, ["all-gather"]), (1, [])]:
        with FusionDefinition() as fd:
            x = fd.define_tensor([8, 6])
            fd.add_output(fd.ops.slice(x, [2, 0], [6, 6]))
        place(DeviceMesh(range(2)), x)
        shard(x, axis, 2)
        assert [c.kind for c in fd.explain().communications] == kinds
        with meshfuse.simulate(2) as sim:
            assert torch.equal(sim.run(fd, [data])[0], data[2:6])


def test_slice_by_scalars():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        start = fd.define_scalar(DataType.Int)
        end = fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.slice(x, [0, start], [fd.ops.size(x, 0), end]))
    data = torch.randn(3, 10)
    assert torch.equal(fd.execute([data, 2, 7])[0], data[:, 2:7])
    assert torch.equal(fd.execute([data, 4, 100])[0], data[:, 4:])
    assert fd.execute([data, 12, 14])[0].shape == (3, 0)


SLICE_ERRORS = [
    (([0], [2], [1, 1]), "Slice start_indices and strides don't match!"),
    (([0, 0, 0], [1, 1, 1]), "Number of tensor dimensions does not match slice dimensions!"),
    (([0, 0], [1]), "Slice indexing attribute dimensions don't match!"),
    (([-1, 0], [1, 1]), "Slice operation start_indices must be greater than or equal to 0."),
    (
        ([3, 0], [1, 1]),
        "Slice operation end_indices must be greater than or equal to start_indices.",
    ),
    (([0, 0], [1, 1], [1, 2]), "All slice operation strides must be of const size 1."),
]


@pytest.mark.parametrize(("args", "message"), SLICE_ERRORS)
def test_slice_errors(args, message):
    rank = 1 if len(args[0]) == 1 else 2
    with FusionDefinition() as fd:
        x = fd.define_tensor([8, 6][:rank])
        with pytest.raises(meshfuse.Error) as info:
            fd.ops.slice(x, *args)
    assert message in str(info.value)


def test_cat_promotes_and_checks_at_run_time():
    a, b = torch.randn(2, 3), torch.randn(2, 3).half()
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1])
        y = fd.define_tensor([-1, -1], dtype=DataType.Half)
        fd.add_output(fd.ops.cat([x, y], -1))
    assert torch.equal(fd.execute([a, b])[0], torch.cat([a, b], -1))
    with pytest.raises(RuntimeError, match="2"):
        fd.execute([a, torch.randn(3, 3).half()])


def test_cat_errors():
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([2, 3]), fd.define_tensor([2])
        with pytest.raises(RuntimeError, match="Attempting to concatenate empty list of tensors"):
            fd.ops.cat([], 0)
        with pytest.raises(RuntimeError, match="Invalid dimension to cat"):
            fd.ops.cat([x, x], 2)
        with pytest.raises(RuntimeError, match="Unexpected number of dimensions"):
            fd.ops.cat([x, y], 0)


def test_pad_by_scalars_and_of_integers():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=DataType.Int)
        n = fd.define_scalar(DataType.Int)
        fd.add_output(fd.ops.pad(x, [n, 1], 7))
    data = ramp(2, 3, dtype=torch.int64)
    for n in (0, 2, -1):
        want = torch.nn.functional.pad(data, [n, 1], value=7)
        assert torch.equal(fd.execute([data, n])[0], want)


PAD_ERRORS = [
    (([1], 0.0), "Invalid number of padding widths"),
    (([1, 1, 1, 1, 1, 1], 0.0), "Number of pad widths must be at most twice the input dimension"),
    (([-3, -3], 0.0), "Invalid resized domain extent"),
    (([1, 1], 1j), "Tensor arg and pad value must have the same dtype."),
]


@pytest.mark.parametrize(("args", "message"), PAD_ERRORS)
def test_pad_errors(args, message):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 5])
        with pytest.raises(meshfuse.Error) as info:
            fd.ops.pad(x, *args)
    assert message in str(info.value)


def test_views_round_trip_through_text():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 12])
        y = fd.ops.reshape(x, [fd.ops.size(x, 0), 3, -1])
        y = fd.ops.slice(y, [0, 1, 0], [fd.ops.size(x, 0), 3, 4])
        y = fd.ops.pad(y, [1, 0])
        y = fd.ops.cat([y, y], 1)
        fd.add_output(fd.ops.broadcast_in_dim(y, [2, fd.ops.size(x, 0), 4, 5], [1, 2, 3]))
    again = meshfuse.parse_ir(fd.ir())
    assert again.ir() == fd.ir()
    assert again.fusion == fd.fusion
    data = torch.randn(3, 12)
    assert torch.equal(again.execute([data])[0], fd.execute([data])[0])

# SPDX-License-Identifier: BSD-3-Clause
"""Who owns which memory, and what outlives what."""

from __future__ import annotations

import gc

import pytest
import torch
from programs import matmul_cut, place, ramp, shard, sharded_matmul
from torch.nn.functional import linear

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition

VIEWS = {
    "set": lambda ops, x: ops.set(x),
    "cast to the same type": lambda ops, x: ops.cast(x, DataType.Float),
    "permute": lambda ops, x: ops.permute(x, [1, 0]),
    "identical permute": lambda ops, x: ops.permute(x, [0, 1]),
    "broadcast": lambda ops, x: ops.broadcast(x, [False, True, False]),
    "stride_order": lambda ops, x: ops.stride_order(x, [1, 0]),
    "transposing stride_order": lambda ops, x: ops.stride_order(x, [0, 1]),
    "set of a set": lambda ops, x: ops.set(ops.set(x)),
    "permute back and forth": lambda ops, x: ops.permute(ops.permute(x, [1, 0]), [1, 0]),
    "relu": lambda ops, x: ops.relu(x),
    "round": lambda ops, x: ops.round(x),
    "sum of an axis of 1": lambda ops, x: ops.sum(ops.broadcast(x, [True, False, False]), [0]),
}


def storage(tensor):
    return tensor.untyped_storage().data_ptr()


@pytest.mark.parametrize("meshed", [False, True], ids=["no mesh", "mesh of one"])
@pytest.mark.parametrize("name", VIEWS)
def test_results_share_nothing(name, meshed):
    """Neither with inputs nor with each other, also where the op moves no data."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        out = VIEWS[name](fd.ops, x)
        fd.add_output(out)
        fd.add_output(VIEWS[name](fd.ops, x))
        fd.add_output(fd.ops.neg(out))
        if meshed:
            place(DeviceMesh([0]), x)
            shard(x, 0, 1)
    # Contiguous, and transposed: then a permute or a stride order may find nothing to do.
    for given in (ramp(4, 6), ramp(6, 4).t()):
        before, strides = given.clone(), given.stride()
        first, second, third = fd.execute([given])
        assert len({storage(t) for t in (given, first, second, third)}) == 4
        kept = second.clone(), third.clone()
        first.zero_()
        assert torch.equal(given, before) and given.stride() == strides
        assert torch.equal(second, kept[0]) and torch.equal(third, kept[1])


@pytest.mark.parametrize("loop", ["m", "n"])
def test_inputs_are_left_alone(loop):
    x, w = ramp(4, 6), ramp(8, 6).t()
    copies = x.clone(), w.clone()
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), loop), 2)
    inputs = fd.fusion.inputs()
    before = [str(tv) for tv in inputs]
    with meshfuse.simulate(2) as sim:
        parts = sim.shard(fd, [x, w])
        sim.execute(fd, parts)[0][0].zero_()
        sim.run(fd, [x, w])[0].zero_()
    assert torch.equal(x, copies[0]) and torch.equal(w, copies[1])
    assert (x.stride(), w.stride()) == ((6, 1), (1, 6))
    assert [str(tv) for tv in fd.fusion.inputs()] == before


def test_results_of_devices_share_nothing():
    """Replicated results are a copy per device."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4])
        fd.add_output(fd.ops.set(x))
        place(DeviceMesh(range(3)), x)
    x = ramp(4)
    with meshfuse.simulate(3) as sim:
        parts = [part for (part,) in sim.execute(fd, [[x]] * 3)]
    assert len({storage(t) for t in (x, *parts)}) == 4


def test_results_of_two_calls_share_nothing():
    x, w = ramp(4, 6), ramp(6, 8)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 1)
    (first,) = fd.execute([x, w])
    (second,) = fd.execute([x + 1, w])
    assert torch.equal(first, x @ w) and storage(first) != storage(second)


def test_input_that_is_an_output():
    x = ramp(4)
    with FusionDefinition() as fd:
        t = fd.define_tensor([4])
        fd.add_output(t)
        fd.add_output(fd.ops.neg(t))
    same, negated = fd.execute([x])
    assert torch.equal(same, x) and torch.equal(negated, -x)
    assert storage(negated) != storage(x)


def test_one_tensor_as_output_twice():
    with FusionDefinition() as fd:
        t = fd.ops.matmul(fd.define_tensor([4, 6]), fd.define_tensor([6, 8]))
        fd.add_output(t)
        fd.add_output(t)
    x, w = ramp(4, 6), ramp(6, 8)
    first, second = fd.execute([x, w])
    assert torch.equal(first, x @ w) and torch.equal(second, x @ w)


def test_one_tensor_as_output_twice_and_changed():
    with FusionDefinition() as fd:
        t = fd.ops.neg(fd.define_tensor([4]))
        fd.add_output(t)
        fd.add_output(t)
    first, second = fd.execute([ramp(4)])
    first.zero_()
    assert torch.equal(second, -ramp(4))


def make():
    x, w = ramp(4, 6), ramp(6, 8)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 2)
    with meshfuse.simulate(2) as sim:
        sim.run(fd, [x, w])
        return [sim.local(device=1), sim.run(fd, [x, w])[0]]


def test_result_outlives_everything():
    part, whole = make()
    gc.collect()
    rubbish = torch.full((25 * 2**20,), 7.0)
    want = ramp(4, 6) @ ramp(6, 8)
    assert torch.equal(whole, want) and torch.equal(part, want[:, 4:])
    del rubbish


def test_handles_outlive_their_definition():
    """Tensors, axes, domains and meshes of a dead definition work or raise, and never crash."""

    def build():
        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, 6])
            y = fd.ops.neg(x)
            fd.add_output(y)
            place(DeviceMesh(range(2)), x)
            shard(x, 1, 2)
        expr = y.definition()
        return x, y, x.axis(0), x.axis(1).extent(), x.domain(), x.get_device_mesh(), expr

    handles = build()
    gc.collect()
    for _ in range(3):
        assert all(str(handle) for handle in handles)
    x, y, axis, *_ = handles
    assert x.ndim == 2 and y.ndim == 2 and not axis.is_device_dim()
    assert x.get_device_mesh().size == 2
    with pytest.raises(meshfuse.Error):
        x.split(0, 0)
    assert meshfuse._C.shard_tensor(ramp(2, 6), x, 1).shape == (2, 3)


def test_operation_on_a_tensor_of_a_dead_definition():
    def build():
        with FusionDefinition() as fd:
            x = fd.define_tensor([4])
            fd.add_output(fd.ops.neg(x))
        return x

    x = build()
    gc.collect()
    with pytest.raises(meshfuse.Error):
        with FusionDefinition() as fd:
            fd.ops.neg(x)


@pytest.mark.parametrize("order", [None, (2, 1, 0), (0, 1, 2), (1, 2, 0)])
@pytest.mark.parametrize("op", ["linear", "matmul", "add"])
def test_inputs_that_require_grad(op, order):
    """Values are equal, and no result carries a graph, whatever the op and the layout."""
    x, w, bias = (t.requires_grad_() for t in (ramp(2, 4, 6), ramp(8, 6), 10 * ramp(8)))
    with FusionDefinition() as fd:
        tx, tw, tb = fd.define_tensor([2, 4, 6]), fd.define_tensor([8, 6]), fd.define_tensor([8])
        if op == "linear":
            out = fd.ops.linear(tx, tw, tb)
        else:
            out = fd.ops.matmul(tx, fd.ops.permute(tw, [1, 0]))
            out = fd.ops.add(out, tb) if op == "add" else out
        fd.add_output(out, stride_order=order)
        place(DeviceMesh(range(2)), tx, tw, tb)
        shard(tw, 0, 2)
        shard(tb, 0, 2)
    want = (linear(x, w) if op == "matmul" else linear(x, w, bias)).detach()
    with meshfuse.simulate(2) as sim:
        (result,) = sim.run(fd, [x, w, bias])
        assert torch.equal(result, want) and not result.requires_grad
        for r in range(2):
            local = sim.local(device=r)
            assert not local.requires_grad and local.grad_fn is None
    assert x.requires_grad and x.grad is None


def test_inference_and_no_grad_modes():
    x, w = ramp(4, 6).requires_grad_(), ramp(6, 8)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 1)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            (out,) = fd.execute([x, w])
            assert torch.equal(out, (x @ w).detach())


def _alias_program(shapes, outputs, dtypes=(DataType.Float, DataType.Float)):
    """Two inputs, and results written into them as ``outputs(fd, x, w)`` says."""
    with FusionDefinition() as fd:
        x = fd.define_tensor(shapes[0], dtype=dtypes[0])
        w = fd.define_tensor(shapes[1], dtype=dtypes[1])
        outputs(fd, x, w)
    return fd


def test_inputs_may_swap_their_values():
    """All results are computed from the inputs as they were."""

    def swap(fd, x, w):
        fd.add_output(x, w)
        fd.add_output(w, x)

    a, b = torch.tensor([0.0, 1.0]), torch.tensor([7.0, 8.0])
    assert _alias_program(([2], [2]), swap).execute([a, b]) == []
    assert a.tolist() == [7.0, 8.0]
    assert b.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(
    ("shapes", "dtypes", "text"),
    [
        (([2], [3]), (DataType.Float, DataType.Float), r"T2 has local sizes \[2\] but T1"),
        (([1], [3]), (DataType.Float, DataType.Float), r"T2 has local sizes \[1\] but T1"),
        (([2], [2]), (DataType.Float, DataType.Double), "T2 is float but T1"),
    ],
)
def test_result_that_does_not_fit_an_input_is_refused(shapes, dtypes, text):
    """Nothing is written when a result and the memory for it differ."""
    fd = _alias_program(shapes, lambda fd, x, w: fd.add_output(fd.ops.neg(x), w), dtypes)
    kinds = {DataType.Float: torch.float32, DataType.Double: torch.float64}
    target = torch.zeros(*shapes[1], dtype=kinds[dtypes[1]])
    with pytest.raises(meshfuse.Error, match=text):
        fd.execute([torch.ones(*shapes[0]), target])
    assert not target.any()


def test_result_into_an_expanded_input_is_refused():
    """An expanded tensor has no memory of its own for each element."""
    fd = _alias_program(([2], [2]), lambda fd, x, w: fd.add_output(fd.ops.neg(x), w))
    with pytest.raises(meshfuse.Error, match=r"input 1 \(T1\) is expanded along axis 0"):
        fd.execute([torch.ones(2), torch.zeros(1).expand(2)])


def test_two_results_into_one_input_are_refused():
    """One of the two would be lost."""

    def twice(fd, x, w):
        fd.add_output(fd.ops.neg(x), w)
        with pytest.raises(meshfuse.Error, match="T1 takes another result already"):
            fd.add_output(fd.ops.exp(x), w)

    _alias_program(([2], [2]), twice)


def test_autograd_notices_that_an_input_was_overwritten():
    """A value saved for a backward pass must not change unnoticed."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([2])
        fd.add_output(fd.ops.add(x, 1.0), x)
    weight, t = torch.ones(2, requires_grad=True), torch.zeros(2)
    product = (weight * t).sum()
    fd.execute([t])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_execution_inside_the_definition_is_refused():
    """The message says that the block is still open."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([2])))
        with pytest.raises(RuntimeError, match="Leave its `with` block first"):
            fd.execute([torch.ones(2)])

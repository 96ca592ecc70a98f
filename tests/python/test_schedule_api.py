# SPDX-License-Identifier: BSD-3-Clause
"""Scheduling in both styles: loop domains after each call, and messages."""

from __future__ import annotations

import re

import meshfuse
import pytest
from meshfuse import DeviceMesh, FusionDefinition, MemoryType, ParallelType


def loop(tv):
    """Loop domain as text: extents, device axes marked, reductions in r{}."""
    texts = []
    for axis in tv.get_loop_domain():
        text = str(axis.extent())
        if axis.is_device_dim():
            text += "@" + axis.get_parallel_type().name.removeprefix("mesh_")
        texts.append(f"r{{{text}}}" if axis.is_reduction() else text)
    return " ".join(texts)


def define(shape, d=2):
    fd = FusionDefinition()
    with fd:
        x = fd.define_tensor(shape)
        x.set_device_mesh(DeviceMesh(range(d)))
        fd.add_output(fd.ops.set(x))
    return fd, x


DIRECT = [
    (lambda x: x.outer_split(1, 2), "4 2 3"),
    (lambda x: x.outer_split(-1, 2), "4 2 3"),
    (lambda x: x.inner_split(1, 2), "4 3 2"),
    (lambda x: x.split(1, 2), "4 3 2"),
    (lambda x: x.split(1, 2, inner_split=False), "4 2 3"),
    (lambda x: x.split(0, 2).split(0, 2, False), "2 1 2 6"),
    (lambda x: x.merge(0, 1), "24"),
    (lambda x: x.reorder({0: 1}), "6 4"),
    (lambda x: x.reorder({-1: 0}), "6 4"),
    (lambda x: x.reorder([1, 0]), "6 4"),
    (lambda x: x.reorder(), "4 6"),
    (lambda x: x.split(0, 2).merge(1, 2).reorder({1: 0}), "12 2"),
    (lambda x: x.axis(0).parallelize(ParallelType.stream), "4 6"),
]


@pytest.mark.parametrize(("call", "after"), DIRECT)
def test_direct_style(call, after):
    _, x = define([4, 6])
    call(x)
    assert loop(x) == after


def test_methods_return_the_tensor():
    _, x = define([4, 6])
    assert x.outer_split(0, 2) is x
    assert x.axis(0).parallelize(ParallelType.mesh_x) is None
    assert loop(x) == "2@x 2 6"


CLASS = [
    (lambda s, x: s.split(x, 1, 2, False), "4 2 3"),
    (lambda s, x: s.split(x, 1, 2), "4 3 2"),
    (lambda s, x: s.merge(x, 0), "24"),
    (lambda s, x: s.reorder(x, {0: 1}), "6 4"),
    (lambda s, x: (s.split(x, 0, 2, False), s.parallelize(x, 0, ParallelType.mesh_x)), "2@x 2 6"),
]


@pytest.mark.parametrize(("call", "after"), CLASS)
def test_class_style(call, after):
    fd, x = define([4, 6])
    call(fd.sched, x)
    assert loop(x) == after


def test_rfactor():
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([3, 4]), fd.define_tensor([4, 5])
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
    out.outer_split(-1, 2)
    assert loop(out) == "3 5 r{2} r{2}"
    partial = out.rfactor(axes=[-1])
    assert loop(partial) == "3 5 2 r{2}" and loop(out) == "3 5 r{2}"
    assert partial.ndim == 3 and partial.has_root() and not out.has_root()
    assert fd.sched.is_reduction(partial)
    assert partial in fd.sched.tensors()


def test_named_mesh_axes():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        fd.add_output(fd.ops.set(x))
    x.set_device_mesh(DeviceMesh([[0, 1], [2, 3]], names=("dp", "tp")))
    x.outer_split(1, 2)
    x.outer_split(0, 2)
    x.axis(0).parallelize("dp")
    fd.sched.parallelize(x, 2, "tp")
    assert loop(x) == "2@y 2 2@x 3"
    with pytest.raises(RuntimeError, match="has no axis named 'pp'"):
        x.axis(1).parallelize("pp")


def test_allocation():
    _, x = define([4, 6])
    assert x.get_allocation_domain() == []
    x.set_allocation_domain([x.axis(1), x.axis(0)], True)
    assert x.get_allocation_domain() == [x.axis(1), x.axis(0)]
    _, y = define([4, 6])
    y.outer_split(0, 2)
    y.set_allocation_as_loop()
    assert y.get_allocation_domain() == y.get_loop_domain()
    assert y.get_contiguity() == [True, True, True]


def test_printing():
    _, x = define([4, 6])
    x.outer_split(0, 2)
    x.axis(0).parallelize(ParallelType.mesh_x)
    text = str(x)
    assert text.startswith("T0_g_float[ideviceIdx.x") and text.endswith("(DeviceMesh{0 1})")
    assert str(x.domain()) in text
    assert str(x.axis(0)) in text


WRONG = [
    (lambda x: x.outer_split(0, 0), "Invalid factor for split. Factor must be greater than 0."),
    (lambda x: x.outer_split(2, 2), "2"),
    (lambda x: x.outer_split(-3, 2), "-3"),
    (lambda x: x.merge(0, 0), "merge"),
    (lambda x: x.reorder({0: 5}), "5"),
    (lambda x: x.axis(7), "7"),
    (lambda x: x.axis(0).parallelize(ParallelType.mesh_y), "does not have parallel type"),
    (lambda x: x.set_allocation_domain([x.axis(0)], True), "T0"),
]


@pytest.mark.parametrize(("call", "message"), WRONG)
def test_wrong_calls(call, message):
    _, x = define([4, 6])
    with pytest.raises(RuntimeError, match=re.escape(message)) as caught:
        call(x)
    assert isinstance(caught.value, meshfuse.Error)


def test_splitting_a_parallel_axis():
    _, x = define([4, 6])
    x.outer_split(0, 2)
    x.axis(0).parallelize(ParallelType.mesh_x)
    with pytest.raises(
        RuntimeError, match="Splitting an axis of non-Serial parallel type is not supported"
    ):
        x.outer_split(0, 2)


def test_same_mesh_axis_twice():
    _, x = define([4, 6])
    x.outer_split(1, 2)
    x.outer_split(0, 2)
    x.axis(0).parallelize(ParallelType.mesh_x)
    with pytest.raises(
        RuntimeError, match="Found multiple loop IterDomains with the same parallel type"
    ):
        x.axis(2).parallelize(ParallelType.mesh_x)


def test_reducing_a_split_tensor():
    with FusionDefinition() as fd:
        y = fd.ops.neg(fd.define_tensor([4, 6]))
        y.outer_split(0, 2)
        with pytest.raises(
            RuntimeError,
            match="Reducing a tensor once it's gone under transformations is not permitted",
        ):
            fd.ops.sum(y, 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.outer_split("a", 2),
        lambda x: x.outer_split(0, 2.5),
        lambda x: x.set_device_mesh([0, 1]),
        lambda x: x.axis(0).parallelize(3),
    ],
)
def test_wrong_types(call):
    _, x = define([4, 6])
    with pytest.raises(TypeError, match="incompatible function arguments"):
        call(x)


def test_memory_type():
    fd, x = define([4, 6])
    x.set_memory_type(MemoryType.symmetric)
    fd.sched.set_memory_type(x, getattr(MemoryType, "global"))
    with pytest.raises(meshfuse.UnsupportedError, match="T0"):
        x.set_memory_type(MemoryType.shared)


def test_cuda_axes_are_refused_when_executed():
    import torch

    fd, x = define([4, 6], d=1)
    x.axis(1).parallelize(ParallelType.block_x)
    with pytest.raises(meshfuse.UnsupportedError, match="axis 1 of T0 is on block_x"):
        fd.execute([torch.ones(4, 6)])

# SPDX-License-Identifier: BSD-3-Clause
"""Tensors of torch that no program computes with are refused by their name before anything runs."""

from __future__ import annotations

import re

import pytest
import torch
from programs import place, shard
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition

A = torch.arange(4.0).reshape(2, 2)


def product() -> FusionDefinition:
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([2, 2]), fd.define_tensor([2, 2])
        fd.add_output(fd.ops.matmul(x, w))
    return fd


def sum_over_devices() -> FusionDefinition:
    mesh = DeviceMesh([0, 1])
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 2], contiguity=True)
        y = fd.ops.sum(x, [0])
        fd.add_output(y)
        place(mesh, x, y)
        shard(x, 0, 2)
    return fd


@pytest.mark.parametrize("calls_before", [0, 1])
def test_tangents(calls_before):
    """At the first call and at later ones, wherever the tensor stands; its level alone is fine."""
    fd = product()
    for _ in range(calls_before):
        fd.execute([A, A])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(A, A)
        for given in ([A, dual], [[A, dual]], (v for v in (A, dual))):
            with pytest.raises(meshfuse.UnsupportedError) as caught:
                fd.execute(given)
            assert str(caught.value) == (
                "execute: input 1 has a tangent of forward-mode AD (torch.autograd.forward_ad or "
                "torch.func.jvp), but programs have none of their results. Use reverse mode, "
                "by meshfuse.autograd.apply or a layer of meshfuse.nn, or pass the tensor without "
                "its tangent: forward_ad.unpack_dual(x).primal."
            )
        view = forward_ad.make_dual(A, A).t()
        with pytest.raises(meshfuse.UnsupportedError, match="input 0 has a tangent"):
            fd.execute([view, A])
        torch.testing.assert_close(fd.execute([A, A])[0], A @ A)
        primal = forward_ad.unpack_dual(dual).primal
        torch.testing.assert_close(fd.execute([primal, A])[0], A @ A)
    torch.testing.assert_close(fd.execute([dual, A])[0], A @ A)


def test_tangents_on_a_simulated_mesh():
    with forward_ad.dual_level(), meshfuse.simulate(2) as sim:
        dual = forward_ad.make_dual(A[:1], A[:1])
        with pytest.raises(meshfuse.UnsupportedError, match="input 0 has a tangent"):
            sim.execute(sum_over_devices(), [[A[:1]], [dual]])


def quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(A, 0.1, 0, torch.quint8)


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([A, A], layout=torch.jagged)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (quantized, "execute: input 0 is quantized (torch.quint8). Pass x.dequantize()."),
        (jagged, "execute: input 0 is a nested tensor. Pass a padded one: torch.nested."),
        (
            lambda: FakeTensorMode().from_tensor(A),
            "execute: input 0 is a FakeTensor, not a plain tensor. Call it outside of "
            "FakeTensorMode, with real tensors.",
        ),
    ],
)
def test_other_kinds(make, message):
    with pytest.raises((meshfuse.Error, TypeError), match=re.escape(message)):
        product().execute([make(), A])


def test_fake_mode():
    fd = product()
    fd.execute([A, A])
    with FakeTensorMode(), pytest.raises(meshfuse.Error) as caught:
        fd.execute([A, A])
    assert str(caught.value) == (
        "execute: a FakeTensorMode is active, under which tensors have no memory, but the program "
        "reads and sends it. Leave the mode first."
    )
    torch.testing.assert_close(fd.execute([A, A])[0], A @ A)


def test_transforms_reach_into_what_one_device_computes():
    fd = product()
    of_row = torch.func.vmap(lambda x: fd.execute([x, A])[0])
    batch = torch.arange(12.0).reshape(3, 2, 2)
    torch.testing.assert_close(of_row(batch), batch @ A)
    value, tangent = torch.func.jvp(lambda x: fd.execute([x, A])[0], (A,), (batch[1],))
    torch.testing.assert_close(value, A @ A)
    torch.testing.assert_close(tangent, batch[1] @ A)
    gradient = torch.func.grad(lambda x: fd.execute([x, A])[0].sum())(A)
    torch.testing.assert_close(gradient, A.sum(1).expand(2, 2))


def test_transform_around_a_communication():
    fd = sum_over_devices()
    with meshfuse.simulate(2) as sim:
        total = torch.func.vmap(lambda x: sim.execute(fd, [[x[:1]], [x[1:]]])[0][0])
        with pytest.raises(meshfuse.Error) as caught:
            total(torch.ones(3, 2, 2))
        assert str(caught.value) == (
            "allReduce: in of size [2] has no memory, as inside of a transform of torch.func "
            "(vmap, grad, jvp, ...). These reach into what one device computes, not into "
            "communications. Communicate outside of the transform."
        )
        torch.testing.assert_close(sim.execute(fd, [[A[:1]], [A[1:]]])[1][0], A.sum(0))

# SPDX-License-Identifier: BSD-3-Clause
"""Attention forward and backward against torch, whole and divided."""

from __future__ import annotations

import pytest
import torch
from op_examples import attention, causal_attention, masked_attention, normal
from programs import X, communications, dense_strides, dtype_of, place, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, Error, FusionDefinition

TORCH = torch.nn.functional.scaled_dot_product_attention
# Attention rounds its 16-bit output once, gradients twice.
TOLERANCE = {
    torch.float32: {"rtol": 1e-5, "atol": 2e-6},
    torch.float64: {"rtol": 1e-7, "atol": 1e-12},
    torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2},
    torch.half: {"rtol": 3e-3, "atol": 3e-3},
}


def operands(length=6, columns=8, head=16, value_head=16, *, lead=(2, 4), dtype=torch.float32):
    sizes = [(length, head), (columns, head), (columns, value_head)]
    return [normal(*lead, *s).to(dtype) / (i + 1) for i, s in enumerate(sizes)]


def define(fd, tensors):
    return [fd.define_tensor(list(t.shape), list(t.stride()), dtype=dtype_of(t)) for t in tensors]


def forward(tensors, *args, **kwargs):
    """Run sdpfa_fwd; ``args`` and ``kwargs`` come behind query, key and value."""
    with FusionDefinition() as fd:
        for tv in fd.ops.sdpfa_fwd(*define(fd, tensors), *args, **kwargs):
            fd.add_output(tv)
    return fd.execute(list(tensors))


def with_gradients(tensors, grad, settings):
    """Return output and the three gradients, and what torch says in float64."""
    with FusionDefinition() as fd:
        *qkv, g = define(fd, [*tensors, grad])
        out, lse, seed, offset = fd.ops.sdpfa_fwd(*qkv, **settings)
        dropout_p, causal = settings.get("dropout_p", 0.0), settings.get("is_causal", False)
        grads = fd.ops.sdpfa_bwd(
            g, *qkv, out, lse, dropout_p, causal, seed, offset, settings.get("scale")
        )
        for tv in (out, *grads):
            fd.add_output(tv)
    found = fd.execute([*tensors, grad])
    exact = [t.double().requires_grad_() for t in tensors]
    want = TORCH(*exact, is_causal=causal, scale=settings.get("scale"))
    return found, [want.detach(), *torch.autograd.grad(want, exact, grad.double())]


@pytest.mark.parametrize("settings", [{}, {"is_causal": True}, {"scale": 0.3}], ids=str)
@pytest.mark.parametrize(
    "sizes",
    [{}, {"value_head": 12}, {"head": 7, "value_head": 7}, {"length": 1}, {"columns": 3}],
    ids=str,
)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_forward_and_backward(dtype, sizes, settings):
    """Head sizes that the kernel takes, and others, which matrix products compute."""
    tensors = operands(**sizes, dtype=dtype)
    grad = normal(2, 4, tensors[0].size(2), tensors[2].size(3)).to(dtype)
    found, want = with_gradients(tensors, grad, settings)
    for got, exact in zip(found, want, strict=True):
        assert got.dtype == dtype and not got.requires_grad
        torch.testing.assert_close(got.double(), exact, **TOLERANCE[dtype])


@pytest.mark.cpu_only("torch's own seeds")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_results_of_forward(dtype):
    out, lse, seed, offset = forward(operands(dtype=dtype))
    want = attention(*(t.double() for t in operands(dtype=dtype)))
    assert lse.dtype == torch.float32 and lse.shape == (2, 4, 6)
    torch.testing.assert_close(lse.double(), want[1], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out.double(), want[0], **TOLERANCE[dtype])
    assert (seed.dtype, offset.dtype) == (torch.uint64, torch.uint64)
    assert seed.tolist() == [0, 0] and offset.item() == 0


CALLS = {
    "by name": ((), {"dropout_p": 0.0, "is_causal": True, "scale": 0.5}),
    "no bias": ((0.0, True, 0.5), {}),
    "no bias, with None": ((None, True, 0.5), {}),
    "None bias and mask": ((None, None, 0.0, True, 0.5), {}),
    "None but for two": ((None, True), {"scale": 0.5}),
    "all None but scale": ((None, None, 0.5), {"is_causal": None}),
}


@pytest.mark.parametrize("call", CALLS)
def test_orders_of_arguments(call):
    """Up to six arguments without a tensor are those of the order without bias and mask."""
    args, kwargs = CALLS[call]
    if call == "all None but scale":
        kwargs = {}
    out, *_ = forward(operands(), *args, **kwargs)
    causal = call != "all None but scale"
    torch.testing.assert_close(out, TORCH(*operands(), is_causal=causal, scale=0.5))


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("kinds", ["bias", "mask", "bias mask"])
@pytest.mark.parametrize("shape", [(2, 4, 6, 8), (1, 1, 6, 8), (2, 1, 1, 8)], ids=str)
def test_bias_and_mask(shape, kinds, by_name):
    bias, mask = normal(*shape), normal(*shape) > -0.5
    mask[..., 0] = True
    given = {"bias": bias, "mask": mask}
    more = [given[kind] for kind in kinds.split()]
    with FusionDefinition() as fd:
        q, k, v, *tvs = define(fd, [*operands(), *more])
        if by_name or kinds == "mask":
            results = fd.ops.sdpfa_fwd(q, k, v, **dict(zip(kinds.split(), tvs, strict=True)))
        else:
            results = fd.ops.sdpfa_fwd(q, k, v, *tvs)
        fd.add_output(results[0])
        fd.add_output(results[1])
    out, lse = fd.execute([*operands(), *more])
    addend = torch.zeros(shape) + (bias if "bias" in kinds else 0)
    if "mask" in kinds:
        addend = addend.masked_fill(~mask, -torch.inf)
    want = attention(*operands(), addend)
    torch.testing.assert_close(out, want[0])
    torch.testing.assert_close(lse, want[1])


@pytest.mark.parametrize("value_head", [16, 12], ids=["kernel", "products"])
def test_causal_with_mask(value_head):
    mask = normal(2, 4, 6, 8) > -0.5
    mask[..., 0] = True
    tensors = operands(value_head=value_head)
    with FusionDefinition() as fd:
        *qkv, m = define(fd, [*tensors, mask])
        fd.add_output(fd.ops.sdpfa_fwd(*qkv, mask=m, is_causal=True)[0])
    (out,) = fd.execute([*tensors, mask])
    both = mask & torch.ones(6, 8, dtype=torch.bool).tril()
    torch.testing.assert_close(out, masked_attention(*tensors, both)[0])


@pytest.mark.parametrize("value_head", [16, 12], ids=["kernel", "products"])
def test_row_that_sees_nothing(value_head):
    """Its output is zero, and so is its logsumexp, whichever way is taken."""
    mask = torch.ones(1, 1, 6, 8, dtype=torch.bool)
    mask[0, 0, 2] = False
    tensors = operands(value_head=value_head)
    with FusionDefinition() as fd:
        *qkv, m = define(fd, [*tensors, mask])
        for tv in fd.ops.sdpfa_fwd(*qkv, None, m)[:2]:
            fd.add_output(tv)
    out, lse = fd.execute([*tensors, mask])
    assert out[:, :, 2].abs().max() == 0 and lse[:, :, 2].abs().max() == 0
    assert not out.isnan().any() and out[:, :, 1].abs().min() > 0


@pytest.mark.parametrize("sizes", [{"length": 0}, {"columns": 0}, {"lead": (0, 4)}], ids=str)
def test_empty_operands(sizes):
    tensors = operands(**sizes)
    grad = torch.ones(*tensors[0].shape)
    found, _ = with_gradients(tensors, grad, {})
    for got, like in zip(found, [tensors[0], *tensors], strict=True):
        assert got.shape == like.shape and got.abs().sum() == 0


def test_scalar_inputs():
    with FusionDefinition() as fd:
        qkv = define(fd, operands())
        settings = [fd.define_scalar(dtype=t) for t in (DataType.Double, DataType.Bool)]
        scale = fd.define_scalar(dtype=DataType.Double)
        fd.add_output(fd.ops.sdpfa_fwd(*qkv, *settings, scale)[0])
    for causal in (True, False):
        (out,) = fd.execute([*operands(), 0.0, causal, 0.25])
        torch.testing.assert_close(out, TORCH(*operands(), is_causal=causal, scale=0.25))


def test_layouts_follow_query_key_and_value():
    """Operands ordered B, S, H, E give results ordered so."""
    tensors = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in operands()]
    found, want = with_gradients(tensors, torch.ones(2, 4, 6, 16), {})
    for got, exact, like in zip(found, want, [tensors[0], *tensors], strict=True):
        assert got.stride() == dense_strides(like.shape, [3, 1, 2, 0])
        torch.testing.assert_close(got.double(), exact, **TOLERANCE[torch.float32])


def test_inputs_that_require_grad():
    tensors = [t.requires_grad_() for t in operands()]
    assert not any(t.requires_grad for t in forward(tensors))


def test_last_axis_that_is_not_innermost():
    tensors = [t.transpose(2, 3).contiguous().transpose(2, 3) for t in operands()]
    torch.testing.assert_close(forward(tensors)[0], TORCH(*operands()))


# ---- dropout


def test_dropout_keeps_a_share_and_scales_it():
    """With values of one, the mean of the output is one; each run draws anew."""
    q, k = operands(length=64, columns=64)[:2]
    v = torch.ones(2, 4, 64, 16)
    torch.manual_seed(0)
    first, *_ = forward((q, k, v), 0.25)
    again, *_ = forward((q, k, v), 0.25)
    assert not torch.equal(first, again) and first.std() > 0.01
    assert abs(first.mean().item() - 1) < 0.02
    torch.manual_seed(0)
    assert torch.equal(first, forward((q, k, v), 0.25)[0])
    assert forward((q, k, v), 1.0)[0].abs().max() == 0


def test_dropout_with_a_seed():
    runs = [forward(operands(), dropout_p=0.5, rng_seed=s)[0] for s in (1, 1, 2)]
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


def test_without_dropout_the_generator_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    forward(operands())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("axis", [None, 0, 1, 2], ids=["whole", "batch", "heads", "rows"])
def test_dropout_is_the_same_however_divided(axis):
    tensors = operands()
    torch.manual_seed(3)
    want = forward(tensors, dropout_p=0.5)[0]
    with FusionDefinition() as fd:
        qkv = define(fd, tensors)
        out = fd.ops.sdpfa_fwd(*qkv, dropout_p=0.5)[0]
        fd.add_output(out)
        place(DeviceMesh(range(2)), *qkv)
        if axis is not None:
            for tv in qkv if axis < 2 else qkv[:1]:
                shard(tv, axis, 2)
    torch.manual_seed(3)
    with meshfuse.simulate(2) as sim:
        (got,) = sim.run(fd, tensors)
        if axis is None:
            assert torch.equal(sim.local(0, 0), sim.local(0, 1))
    torch.testing.assert_close(got, want)


# ---- divided


def divided(cuts, d, *, settings=None, lead=(4, 4), backward=True):
    """Run both passes on a mesh; ``cuts``: axis of query, key, value, gradient that is divided."""
    settings = settings or {}
    tensors = [*operands(length=8, columns=8, lead=lead), normal(*lead, 8, 16)]
    with FusionDefinition() as fd:
        q, k, v, g = define(fd, tensors)
        out, lse, seed, offset = fd.ops.sdpfa_fwd(q, k, v, **settings)
        results = [out, lse]
        if backward:
            causal = settings.get("is_causal", False)
            results += fd.ops.sdpfa_bwd(g, q, k, v, out, lse, 0.0, causal, seed, offset)
        else:
            fd.add_output(g)
        for tv in results:
            fd.add_output(tv)
        place(DeviceMesh(range(d)), q, k, v, g)
        for tv, axis in zip((q, k, v, g), cuts, strict=True):
            if axis is not None:
                shard(tv, axis, d)
    with meshfuse.simulate(d) as sim:
        found = sim.run(fd, tensors)
    if not backward:
        found = found[1:]
    exact = [t.double().requires_grad_() for t in tensors[:3]]
    reference = causal_attention if settings.get("is_causal") else attention
    want = list(reference(*exact)[:2])
    if backward:
        want += torch.autograd.grad(want[0], exact, tensors[3].double())
    for got, w in zip(found, want, strict=True):
        torch.testing.assert_close(got.double(), w.detach(), **TOLERANCE[torch.float32])
    return communications(fd)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("axis", [0, 1], ids=["batch", "heads"])
@pytest.mark.parametrize("d", [2, 4])
def test_batch_and_heads_are_local(d, axis, causal):
    assert divided([axis] * 4, d, settings={"is_causal": causal}) == []


@pytest.mark.parametrize("d", [2, 4])
def test_leading_device_axis(d):
    """A fifth axis in front, one element per device."""
    assert divided([0] * 4, d, lead=(d, 2, 4)) == []


@pytest.mark.parametrize("d", [2, 4])
def test_rows_are_local_unless_causal(d):
    cuts = [2, None, None, None]
    assert divided(cuts, d, backward=False) == []
    assert divided(cuts, d, backward=False, settings={"is_causal": True}) == ["all-gather x"]


def test_columns_of_value_are_local():
    assert divided([None, None, 3, None], 2, backward=False) == []


@pytest.mark.parametrize("cuts", [(None, 2, 2, None), (3, 3, None, None)], ids=["S", "E"])
def test_contracted_axes_are_gathered(cuts):
    assert set(divided(list(cuts), 2, backward=False)) == {"all-gather x"}


def test_backward_gathers_rows():
    assert set(divided([2, None, None, 2], 2)) == {"all-gather x"}


# ---- errors


def test_dropout_in_backward():
    tensors = operands()
    with FusionDefinition() as fd:
        *qkv, g = define(fd, [*tensors, torch.ones(2, 4, 6, 16)])
        out, lse, seed, offset = fd.ops.sdpfa_fwd(*qkv, dropout_p=0.5)
        fd.add_output(fd.ops.sdpfa_bwd(g, *qkv, out, lse, 0.5, False, seed, offset)[0])
    with pytest.raises(RuntimeError, match=r"sdpfa_bwd: dropout_p is 0.5 .* Set dropout_p to 0"):
        fd.execute([*tensors, torch.ones(2, 4, 6, 16)])


def test_dropout_that_is_no_probability():
    with pytest.raises(Error, match=r"dropout_p is 1.5 in the call on T0. Give a probability"):
        forward(operands(), dropout_p=1.5)


def test_log_sumexp_is_another_name():
    with FusionDefinition() as fd:
        q, k, v = define(fd, operands())
        out, lse, seed, offset = fd.ops.sdpfa_fwd(q, k, v)
        grads = fd.ops.sdpfa_bwd(
            q, q, k, v, out, log_sumexp=lse, dropout_p=0.0, is_causal=False,
            philox_seed=seed, philox_offset=offset,
        )  # fmt: skip
        fd.add_output(grads[0])
    assert fd.execute(operands())[0].shape == (2, 4, 6, 16)


FORWARD_ERRORS = [
    ({"dropout_p": True}, "Expected dropout to be a real-valued scalar."),
    ({"is_causal": 1}, "Expected is_causal to be a scalar boolean."),
    ({"scale": 1j}, "Expected scale to be a real-valued scalar."),
    ({"query": [4, 8]}, "Expect Q/K/V to be either 4D or 5D, but T0 has 2 axes. Give [batch"),
    ({"key": [2, 4, 8]}, "Expect Q/K/V to be either 4D or 5D, all alike, but T1 has 3 axes"),
    ({"key": [2, 2, 8, 16]}, "axis 1 of T0 has size 4 but axis 1 of T1 has size 2; heads do not"),
    ({"value": [1, 4, 8, 16]}, "axis 0 of T0 has size 2 but axis 0 of T2 has size 1; batches do"),
    ({"key": [2, 4, 8, 8]}, "axis 3 of T0 has size 16 but axis 3 of T1 has size 8; both are 'E'"),
    ({"value": [2, 4, 9, 16]}, "axis 2 of T1 has size 8 but axis 2 of T2 has size 9; both are 'S'"),
    ({"bias": [6, 8]}, "bias T3 has 2 axes and is float, but 4 axes of float are needed."),
    ({"mask": [2, 4, 6, 8]}, "mask T3 has 4 axes and is float, but 4 axes of bool are needed."),
    ({"bias": [2, 4, 6, 8], "dropout_p": 0.5}, "dropout_p is 0.5, but T0 is given with a bias"),
]


@pytest.mark.parametrize(
    ("change", "message"), FORWARD_ERRORS, ids=[str(c) for c, _ in FORWARD_ERRORS]
)
def test_definition_errors(change, message):
    given = {"query": [2, 4, 6, 16], "key": [2, 4, 8, 16], "value": [2, 4, 8, 16]} | change
    with FusionDefinition() as fd:
        call = {n: fd.define_tensor(s) if isinstance(s, list) else s for n, s in given.items()}
        fd.add_output(call["query"])
        with pytest.raises(Error) as caught:
            fd.ops.sdpfa_fwd(**call)
    assert str(caught.value).startswith(f"sdpfa_fwd: {message}")


def test_types_of_operands():
    with FusionDefinition() as fd:
        q, k = fd.define_tensor([2, 4, 6, 16]), fd.define_tensor([2, 4, 6, 16], dtype=DataType.Half)
        fd.add_output(q)
        with pytest.raises(Error, match=r"T1 is __half and T0 is float. Cast them to one type"):
            fd.ops.sdpfa_fwd(q, k, q)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"logsumexp": [2, 4, 6, 1]}, "Expected logsumexp to have one less dimension than Q/K/V"),
        ({"logsumexp": [2, 4, 5]}, "axis 2 of T1 has size 6 but axis 2 of T5 has size 5"),
        ({"output": [2, 4, 6]}, "T4 has 3 axes and is float, but query T1 has 4"),
        ({"dropout_p": False}, "Expected dropout to be a real-valued scalar."),
    ],
)
def test_backward_definition_errors(change, message):
    q = [2, 4, 6, 16]
    given = {"grad_output": q, "query": q, "key": q, "value": q, "output": q, "logsumexp": q[:3]}
    given |= {"dropout_p": 0.0, "is_causal": False} | change
    with FusionDefinition() as fd:
        call = {n: fd.define_tensor(s) if isinstance(s, list) else s for n, s in given.items()}
        fd.add_output(call["query"])
        with pytest.raises(Error, match=rf"^sdpfa_bwd: {message}"):
            fd.ops.sdpfa_bwd(**call)


def test_heads_of_two_devices_by_mesh_axis_of_the_program():
    """The output keeps its division over heads."""
    with FusionDefinition() as fd:
        q, k, v = define(fd, operands())
        out = fd.ops.sdpfa_fwd(q, k, v)[0]
        fd.add_output(out)
        place(DeviceMesh(range(2)), q, k, v, out)
        for tv in (q, k, v, out):
            shard(tv, 1, 2, X)
    with meshfuse.simulate(2) as sim:
        sim.run(fd, operands())
        for device, part in enumerate(sim.shard_tensor(TORCH(*operands()), out)):
            torch.testing.assert_close(sim.local(0, device), part)

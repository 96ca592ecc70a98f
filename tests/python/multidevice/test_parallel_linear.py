# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers divided over real ranks, and gradients of sharded definitions.

Every rank has the whole layer in torch beside its part, and compares with its part of the result.
Without a launcher there is one rank, whose part is the whole.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import re

import pytest
import torch
from programs import block, place, shard
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import meshfuse
from meshfuse import Communicator, DataType, DeviceMesh, FusionDefinition, autograd, nn
from meshfuse.testing import target_device

RANKS = Communicator.instance().size()
KINDS = {
    "column": (nn.ColumnParallelLinear, {}),
    "column gathered": (nn.ColumnParallelLinear, {"gather_output": True}),
    "row": (nn.RowParallelLinear, {}),
    "row whole input": (nn.RowParallelLinear, {"input_is_parallel": False}),
}
several_ranks = pytest.mark.skipif(RANKS == 1, reason="needs several ranks")
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def rank(multidevice_test, request):
    """The number of this rank; tensors are made where --device says."""
    cuda = request.config.getoption("--device") == "cuda"
    with torch.device(target_device()) if cuda else contextlib.nullcontext():
        yield multidevice_test.rank


class Pair:
    """A layer of torch, and the same one divided over the ranks."""

    def __init__(self, kind, in_features, out_features, *, bias=True, dtype=torch.double, **more):
        make, options = KINDS[kind]
        self.whole = torch.nn.Linear(in_features, out_features, bias, dtype=dtype)
        self.layer = make(in_features, out_features, bias, dtype=dtype, **options, **more)
        self.layer.load_global(self.whole.weight, self.whole.bias)
        self.whole.double()
        self.columns = make is nn.ColumnParallelLinear
        devices = self.layer.mesh.devices
        self.cut = len(devices), devices.index(Communicator.instance().rank())

    def of_input(self, x):
        return block(x, -1, *self.cut) if getattr(self.layer, "input_is_parallel", False) else x

    def of_output(self, y):
        return y if getattr(self.layer, "gather_output", True) else block(y, -1, *self.cut)

    def of_weight(self, w):
        return block(w, 0 if self.columns else 1, *self.cut)

    def of_bias(self, b):
        return block(b, 0, *self.cut) if self.columns else b

    def check(self, x, atol=1e-12):
        """Compare result and gradients for a global input, which the ranks have alike."""

        def close(actual, expected):
            expected = expected.to(actual.dtype)
            torch.testing.assert_close(actual, expected, rtol=0, atol=atol)

        part = self.of_input(x).detach().requires_grad_()
        whole = x.detach().double().requires_grad_()
        y, want = self.layer(part), self.whole(whole)
        assert y.dtype == x.dtype
        close(y, self.of_output(want))
        grad = torch.randn(want.shape).to(x.dtype)
        y.backward(self.of_output(grad))
        want.backward(grad.double())
        close(part.grad, self.of_input(whole.grad))
        close(self.layer.weight.grad, self.of_weight(self.whole.weight.grad))
        if self.layer.bias is not None:
            close(self.layer.bias.grad, self.of_bias(self.whole.bias.grad))


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0)], ids=str)
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@every_kind
def test_result_and_gradients(kind, bias, shape):
    Pair(kind, 2 * RANKS, 3 * RANKS, bias=bias).check(torch.randn(*shape, 2 * RANKS).double())


@pytest.mark.parametrize(
    # Partial products are rounded to the type of the layer before they are added.
    ("dtype", "atol"),
    [(torch.float32, 1e-5), (torch.bfloat16, 1e-1), (torch.float16, 2e-2)],
    ids=str,
)
@every_kind
def test_types(kind, dtype, atol):
    pair = Pair(kind, 2 * RANKS, 3 * RANKS, dtype=dtype)
    pair.check(torch.randn(5, 2 * RANKS).to(dtype), atol)


@pytest.mark.parametrize("per_device", [1, 0])
@pytest.mark.parametrize("other", [1, 3, 0])
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@every_kind
def test_one_feature_or_none(kind, per_device, other):
    """Sizes of 1 do not broadcast; sums over nothing are 0."""
    divided = per_device * RANKS
    sizes = (other, divided) if kind.startswith("column") else (divided, other)
    Pair(kind, *sizes).check(torch.randn(3, sizes[0]).double())


@every_kind
def test_sizes_and_memory_orders_of_inputs(kind):
    """One layer takes them in turn; gradients that torch expands have strides of 0."""
    pair = Pair(kind, 2 * RANKS, 3 * RANKS)
    f = 2 * RANKS
    for x in (
        torch.randn(f, 4).double().t(),
        torch.randn(3, f, 2).double().transpose(1, 2),
        torch.randn(1, f).double().expand(5, f),
        torch.randn(4, 2 * f).double()[:, ::2],
    ):
        pair.layer.zero_grad()
        pair.whole.zero_grad()
        pair.check(x)
    x = torch.randn(2, f).double().requires_grad_()
    pair.layer(pair.of_input(x)).sum().backward()
    expected = pair.whole.weight.sum(0).expand(2, f)
    torch.testing.assert_close(pair.of_input(x.grad), pair.of_input(expected))


@pytest.mark.parametrize("needed", list(itertools.product([True, False], repeat=3))[:-1], ids=str)
@every_kind
def test_frozen(kind, needed):
    """Of input, weight and bias those that need a gradient have the right one, others none."""
    pair = Pair(kind, 2 * RANKS, 3 * RANKS)
    of_x, of_weight, of_bias = needed
    for layer in (pair.whole, pair.layer):
        layer.weight.requires_grad_(of_weight)
        layer.bias.requires_grad_(of_bias)
    x = torch.randn(4, 2 * RANKS).double()
    part = pair.of_input(x).clone().requires_grad_(of_x)
    whole = x.clone().requires_grad_(of_x)
    grad = torch.randn(4, 3 * RANKS).double()
    pair.layer(part).backward(pair.of_output(grad))
    pair.whole(whole).backward(grad)
    for has, actual, expected, cut in (
        (of_x, part, whole, pair.of_input),
        (of_weight, pair.layer.weight, pair.whole.weight, pair.of_weight),
        (of_bias, pair.layer.bias, pair.whole.bias, pair.of_bias),
    ):
        assert (actual.grad is not None) == has
        if has:
            torch.testing.assert_close(actual.grad, cut(expected.grad))


@every_kind
def test_nothing_is_recorded_without_gradients(kind):
    pair = Pair(kind, 2 * RANKS, 3 * RANKS)
    x = torch.randn(4, 2 * RANKS).double()
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            y = pair.layer(pair.of_input(x))
            assert not y.requires_grad
            torch.testing.assert_close(y, pair.of_output(pair.whole(x)))


@pytest.mark.skipif(RANKS != 4, reason="needs four ranks")
@pytest.mark.parametrize("names", [(), ("dp", "tp")], ids=["unnamed", "named"])
@every_kind
def test_replicas(rank, kind, names):
    """Of a mesh of two dims the rows are replicas, which have their own inputs."""
    mesh = DeviceMesh(torch.tensor([[0, 2], [3, 1]], device="cpu"), names)
    pair = Pair(kind, 6, 4, mesh=mesh)
    row = 0 if rank in (0, 2) else 1
    assert list(pair.layer.mesh.devices) == [[0, 2], [3, 1]][row]
    assert pair.layer.mesh.names == names[1:]
    for rows in (3, 5):
        pair.check(torch.randn(2, rows, 6).double()[row])
        pair.layer.zero_grad()
        pair.whole.zero_grad()


@pytest.mark.skipif(RANKS < 4, reason="needs four ranks")
def test_some_of_the_ranks(rank):
    """The others may not make the layer, and are not awaited."""
    mesh = DeviceMesh([RANKS - 1, 1])
    if rank in mesh.devices:
        for kind in KINDS:
            Pair(kind, 6, 4, mesh=mesh).check(torch.randn(3, 6).double())
        return
    with pytest.raises(meshfuse.Error) as caught:
        nn.ColumnParallelLinear(6, 4, mesh=mesh)
    assert str(caught.value) == (
        f"ColumnParallelLinear: rank {rank} is not in the mesh {mesh}. Make and call the layer on "
        "the ranks of its mesh only, or give a mesh with this rank."
    )


def test_layer_of_this_rank_alone(rank):
    """A mesh of one device: nothing is communicated."""
    for kind in KINDS:
        Pair(kind, 5, 3, mesh=DeviceMesh([rank])).check(torch.randn(2 + rank, 5).double())


# --- Models --------------------------------------------------------------------------------------


class Block:
    """Column -> GELU -> row, and the same in torch."""

    def __init__(self, dtype=torch.double):
        self.up = Pair("column", 6, 4 * RANKS, dtype=dtype)
        self.down = Pair("row", 4 * RANKS, 6, dtype=dtype)
        self.model, self.whole = (
            torch.nn.Sequential(up, torch.nn.GELU(), down)
            for up, down in (
                (self.up.layer, self.down.layer),
                (self.up.whole, self.down.whole),
            )
        )

    def check_parameters(self):
        for pair in (self.up, self.down):
            torch.testing.assert_close(pair.layer.weight, pair.of_weight(pair.whole.weight))
            torch.testing.assert_close(pair.layer.bias, pair.of_bias(pair.whole.bias))


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, lr=0.01),
    ],
    ids=["SGD", "Adam"],
)
def test_training(optimizer):
    """After several steps every parameter is the part of that of the unsharded model."""
    block_ = Block()
    steps = [(model, optimizer(model.parameters())) for model in (block_.model, block_.whole)]
    for _ in range(6):
        x, target = torch.randn(2, 5, 6).double(), torch.randn(2, 5, 6).double()
        losses = []
        for model, stepper in steps:
            stepper.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), target)
            loss.backward()
            stepper.step()
            losses.append(loss.detach())
        torch.testing.assert_close(*losses)
    block_.check_parameters()


def test_gradients_accumulate():
    block_ = Block()
    for _ in range(3):
        x = torch.randn(5, 6).double()
        for model in (block_.model, block_.whole):
            model(x).square().sum().backward()
    for pair in (block_.up, block_.down):
        torch.testing.assert_close(pair.layer.weight.grad, pair.of_weight(pair.whole.weight.grad))


@pytest.mark.parametrize("reentrant", [None, False, True], ids=["kept", "recomputed", "reentrant"])
def test_branches(reentrant):
    """Several layers have one input: their gradients are communicated in the order of autograd."""
    branches = [Pair("column", 6, 4 * RANKS) for _ in range(3)]
    end = Pair("row", 4 * RANKS, 6)

    def run(x, layers, last):
        a, b, c = (layer(x) for layer in layers)
        return last(torch.softmax(a * b, 0) * c)

    def parallel(x):
        return run(x, [pair.layer for pair in branches], end.layer)

    xs = [torch.randn(5, 6).double().requires_grad_()]
    xs.append(xs[0].detach().clone().requires_grad_())
    if reentrant is None:
        y = parallel(xs[0])
    else:
        y = checkpoint(parallel, xs[0], use_reentrant=reentrant)
    want = run(xs[1], [pair.whole for pair in branches], end.whole)
    torch.testing.assert_close(y, want)
    for loss in (y, want):
        loss.square().sum().backward()
    torch.testing.assert_close(xs[0].grad, xs[1].grad)
    for pair in (*branches, end):
        torch.testing.assert_close(pair.layer.weight.grad, pair.of_weight(pair.whole.weight.grad))


def test_state_dict():
    """It holds the local parameters, and another layer takes them."""
    for kind in KINDS:
        pair, other = (Pair(kind, 2 * RANKS, 3 * RANKS) for _ in range(2))
        state = pair.layer.state_dict()
        assert list(state) == ["weight", "bias"]
        assert torch.equal(state["weight"], pair.of_weight(pair.whole.weight))
        other.layer.load_state_dict(state)
        other.whole.load_state_dict(pair.whole.state_dict())
        other.check(torch.randn(3, 2 * RANKS).double())


@pytest.mark.parametrize("ran_before", [False, True])
@every_kind
def test_copies(kind, ran_before, tmp_path):
    """By deepcopy and by a file of each rank; they are layers of their own."""
    pair = Pair(kind, 2 * RANKS, 3 * RANKS)
    x = torch.randn(3, 2 * RANKS).double()
    if ran_before:
        pair.layer(pair.of_input(x))
    torch.save(pair.layer, tmp_path / "layer.pt")
    for copied in (
        copy.deepcopy(pair.layer),
        torch.load(tmp_path / "layer.pt", weights_only=False),
    ):
        kept = pair.layer
        with torch.no_grad():
            kept.weight.add_(1)  # not that of the copy
        pair.layer = copied
        pair.check(x)
        pair.layer = kept
        pair.whole.zero_grad()


@several_ranks
def test_file_of_another_rank(rank):
    layer = nn.ColumnParallelLinear(2, RANKS)
    layer._place = (rank + 1) % RANKS  # as torch.load gives it
    with pytest.raises(meshfuse.Error) as caught:
        layer(torch.ones(1, 2))
    assert str(caught.value) == (
        f"ColumnParallelLinear: its parameters are the part of rank {(rank + 1) % RANKS}, but this "
        f"process is rank {rank}. Load the file that this rank has saved, or make the layer here "
        "and use load_global."
    )


# --- gradcheck -----------------------------------------------------------------------------------


def copied(before, after, ndim):
    """Return a program ``x -> set(x)``, divided by an axis before or after, or None: whole."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1] * ndim, dtype=DataType.Double)
        y = fd.ops.set(x)
        fd.add_output(y)
        lay_out([(x, before), (y, after)])
    return fd


def lay_out(axes):
    for tv, axis in axes:
        place(DeviceMesh(range(RANKS)), tv)
        if axis is not None:
            shard(tv, axis, RANKS)


def divided(x, axis):
    """Return this rank's part of a tensor; gradients of the parts make the whole gradient."""
    back = copied(axis, None, x.dim())
    return autograd.apply(copied(None, axis, x.dim()), lambda g, x: back.execute([g])[0], x)[0]


def whole(x, axis):
    """Return the whole of what is divided by an axis; its gradient is divided again."""
    back = copied(None, axis, x.dim())
    return autograd.apply(copied(axis, None, x.dim()), lambda g, x: back.execute([g])[0], x)[0]


def leaves(*shapes):
    return [torch.randn(*shape, dtype=torch.double, requires_grad=True) for shape in shapes]


@every_kind
def test_layer_passes_gradcheck(kind):
    """As a function of global tensors, which all ranks perturb alike."""
    pair = Pair(kind, 2 * RANKS, RANKS)

    def run(x, weight, bias):
        parameters = {
            "weight": divided(weight, 0 if pair.columns else 1),
            "bias": divided(bias, 0) if pair.columns else bias,
        }
        if getattr(pair.layer, "input_is_parallel", False):
            x = divided(x, 1)
        y = functional_call(pair.layer, parameters, (x,))
        return y if getattr(pair.layer, "gather_output", True) else whole(y, 1)

    assert torch.autograd.gradcheck(run, leaves((2, 2 * RANKS), (RANKS, 2 * RANKS), (RANKS,)))


def column_parallel():
    """Return x @ w + b, divided by columns, and its three gradients."""
    with FusionDefinition() as forward:
        x, w = (forward.define_tensor([-1, -1], dtype=DataType.Double) for _ in range(2))
        b = forward.define_tensor([-1], dtype=DataType.Double)
        y = forward.ops.add(forward.ops.matmul(x, w), b)
        forward.add_output(y)
        lay_out([(x, None), (w, 1), (b, 0), (y, 1)])
    with FusionDefinition() as backward:
        g, x, w = (backward.define_tensor([-1, -1], dtype=DataType.Double) for _ in range(3))
        b = backward.define_tensor([-1], dtype=DataType.Double)
        of_x = backward.ops.matmul(g, backward.ops.permute(w, [1, 0]))
        of_w = backward.ops.matmul(backward.ops.permute(x, [1, 0]), g)
        of_b = backward.ops.sum(g, [0])
        for output in (of_x, of_w, of_b):
            backward.add_output(output)
        # Axis 0 of the sum over rows are these rows.
        lay_out([(g, 1), (x, None), (w, 1), (b, 0), (of_x, None), (of_w, 1), (of_b, 1)])
    return forward, backward


def test_sharded_definition_passes_gradcheck():
    forward, backward = column_parallel()

    def run(x, w, b):
        (y,) = autograd.apply(forward, backward, x, divided(w, 1), divided(b, 0))
        return whole(y, 1)

    assert torch.autograd.gradcheck(run, leaves((2, 3), (3, 2 * RANKS), (2 * RANKS,)))


def test_gradients_of_sharded_definition(rank):
    """Those of parts are parts, that of the whole input is summed over the ranks."""
    x, w, b = leaves((4, 3), (3, 2 * RANKS), (2 * RANKS,))
    parts = [t.detach().clone().requires_grad_() for t in (x, block(w, 1, RANKS, rank))]
    parts.append(block(b, 0, RANKS, rank).detach().clone().requires_grad_())
    (y,) = autograd.apply(*column_parallel(), *parts)
    torch.testing.assert_close(y, block(x @ w + b, 1, RANKS, rank))
    y.square().sum().backward()
    (x @ w + b).square().sum().backward()
    torch.testing.assert_close(parts[0].grad, x.grad)
    torch.testing.assert_close(parts[1].grad, block(w.grad, 1, RANKS, rank))
    torch.testing.assert_close(parts[2].grad, block(b.grad, 0, RANKS, rank))


# --- Errors --------------------------------------------------------------------------------------


@several_ranks
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda n: nn.ColumnParallelLinear(4, n), "ColumnParallelLinear: out_features"),
        (lambda n: nn.RowParallelLinear(n, 4), "RowParallelLinear: in_features"),
    ],
    ids=["column", "row"],
)
def test_features_that_are_not_divisible(make, what):
    with pytest.raises(meshfuse.Error) as caught:
        make(2 * RANKS + 1)
    assert str(caught.value) == (
        f"{what}={2 * RANKS + 1} is not divisible by the {RANKS} devices of "
        f"{DeviceMesh(range(RANKS))}. Choose a number of features that {RANKS} divides, or pad the "
        "layer."
    )


REFUSED = (meshfuse.Error, TypeError)


def wrong_features(x):
    return torch.cat([x, x], -1)


def wrong_dtype(x):
    return x.float()


def no_tensor(x):
    return None


every_fault = pytest.mark.parametrize("spoil", [wrong_features, wrong_dtype, no_tensor])


@every_kind
@every_fault
def test_input_that_is_wrong_on_all_ranks(kind, spoil):
    pair = Pair(kind, 2 * RANKS, 3 * RANKS)
    x = torch.randn(3, 2 * RANKS).double()
    for _ in range(3):
        with pytest.raises(REFUSED, match=r"ParallelLinear: the (last dim|input)"):
            pair.layer(spoil(pair.of_input(x)))
        pair.layer.zero_grad()
        pair.whole.zero_grad()
        pair.check(x)


def fails(mine, error, call):
    """Check that a call raises ``error`` on the rank at fault, and that the others hear of it."""
    if mine:
        with pytest.raises(error) as caught:
            call()
    else:
        with pytest.raises(meshfuse.PeerError) as caught:
            call()
    return caught.value


@several_ranks
@pytest.mark.parametrize("at_fault", ["first", "last"])
@every_fault
@every_kind
def test_input_that_is_wrong_on_one_rank(rank, kind, spoil, at_fault):
    """The others raise where they would wait; then all are in step."""
    culprit = 0 if at_fault == "first" else RANKS - 1
    mine = rank == culprit
    pair = Pair(kind, 2 * RANKS, 3 * RANKS)
    x = torch.randn(3, 2 * RANKS).double()
    part = pair.of_input(x).clone().requires_grad_()
    for _ in range(3):
        error = fails(
            mine,
            REFUSED,
            lambda: pair.layer(spoil(part) if mine else part).sum().backward(),
        )
        if not mine:
            assert error.rank == culprit
            assert type(pair.layer).__name__ in error.reason
            assert "Nothing was communicated, and the group goes on." in str(error)
        pair.layer.zero_grad()
        pair.whole.zero_grad()
        pair.check(x)


def without_argument(layer, part):
    return layer()


def without_weight(layer, part):
    kept, layer.weight = layer.weight, None
    try:
        return layer(part)
    finally:
        layer.weight = kept


def within_vmap(layer, part):
    return torch.func.vmap(layer)(part.unsqueeze(0))


def with_a_batch_of_gradients(layer, part):
    x = part.requires_grad_()
    y = layer(x)
    return torch.autograd.grad(y, x, torch.ones(2, *y.shape).double(), is_grads_batched=True)


def sparse(layer, part):
    return layer(part.to_sparse())


def with_a_tangent(layer, part):
    with forward_ad.dual_level():
        return layer(forward_ad.make_dual(part, part))


@every_kind
def test_batch_of_gradients_is_refused_on_all_ranks(kind):
    """Then all are in step."""
    pair = Pair(kind, 2 * RANKS, 3 * RANKS)
    x = torch.randn(3, 2 * RANKS).double()
    with pytest.raises(meshfuse.UnsupportedError, match="a batch of gradients"):
        with_a_batch_of_gradients(pair.layer, pair.of_input(x).clone())
    pair.check(x)


@several_ranks
def test_batch_of_gradients_on_one_rank(rank):
    """The other ranks wait in the backward pass of a column layer, and hear of it."""
    pair = Pair("column", 2 * RANKS, 3 * RANKS)
    x = torch.randn(3, 2 * RANKS).double()
    part = pair.of_input(x).clone().requires_grad_()
    mine = rank == 1
    fails(
        mine,
        meshfuse.UnsupportedError,
        lambda: (
            with_a_batch_of_gradients(pair.layer, part)
            if mine
            else pair.layer(part).sum().backward()
        ),
    )
    pair.layer.zero_grad()
    pair.check(x)


def with_a_hook_that_raises(layer, part):
    def hook(module, arguments):
        raise TypeError("the hook refuses")

    handle = layer.register_forward_pre_hook(hook)
    try:
        return layer(part)
    finally:
        handle.remove()


@several_ranks
@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (without_argument, TypeError, "missing 1 required positional argument"),
        (without_weight, AttributeError, "'NoneType' object has no attribute"),
        (within_vmap, meshfuse.UnsupportedError, r"transforms of torch\.func"),
        (sparse, meshfuse.Error, "the input is sparse"),
        (with_a_tangent, meshfuse.UnsupportedError, "the input has a tangent of forward-mode AD"),
        (with_a_hook_that_raises, TypeError, "the hook refuses"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_call_that_fails_on_one_rank(rank, call, error, text):
    """Whatever is wrong with it."""
    pair = Pair("row", 2 * RANKS, 3 * RANKS)
    x = torch.randn(3, 2 * RANKS).double()
    part = pair.of_input(x).clone()
    mine = rank == 1
    found = fails(
        mine, error, lambda: call(pair.layer, part) if mine else pair.layer(part).sum().backward()
    )
    assert re.search(text, str(found))
    pair.layer.zero_grad()
    pair.check(x)


@several_ranks
@every_fault
def test_model_whose_first_layer_fails_on_one_rank(rank, spoil):
    """That layer communicates nothing in its forward pass; the others hear of it in the next."""
    block_ = Block()
    x = torch.randn(3, 6).double()
    for culprit in (0, RANKS - 1, 0):
        mine = rank == culprit
        error = fails(mine, REFUSED, lambda mine=mine: block_.model(spoil(x) if mine else x))
        assert mine or error.rank == culprit
        torch.testing.assert_close(block_.model(x), block_.whole(x))


@several_ranks
def test_inputs_of_other_sizes_than_on_other_ranks(rank):
    """In the forward pass if it communicates, else in the backward pass: all ranks raise."""
    for kind in KINDS:
        pair = Pair(kind, 2 * RANKS, 3 * RANKS)
        x = torch.ones(3 + (rank == 1), 2 * RANKS).double()
        part = pair.of_input(x).clone().requires_grad_()
        with pytest.raises(meshfuse.Error, match="size 3 on rank 0, but 4 on rank 1"):
            pair.layer(part).sum().backward()
        pair.layer.zero_grad()
        pair.check(torch.randn(3, 2 * RANKS).double())


class FaultError(Exception):
    pass


@several_ranks
def test_backward_function_that_raises_on_one_rank(rank):
    """The others, whose function communicates, do not wait for it; then all are in step."""
    fd = copied(0, None, 1)
    at_fault = True

    def backward(grad, x):
        if rank == 1 and at_fault:
            raise FaultError("out of paper")
        return fd.execute([grad])[0][: x.numel()]

    x = torch.ones(2, dtype=torch.double, requires_grad=True)
    for at_fault in (True, True, False):
        (y,) = autograd.apply(fd, backward, x)
        if at_fault:
            error = fails(rank == 1, FaultError, y.sum().backward)
            assert rank == 1 or (error.rank, error.reason) == (1, "FaultError: out of paper")
        else:
            y.sum().backward()
            assert x.grad.tolist() == [1, 1]

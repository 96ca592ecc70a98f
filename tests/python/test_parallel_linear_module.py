# SPDX-License-Identifier: BSD-3-Clause
"""Linear layers over a mesh as modules: how they are made, converted, shown, and refuse.

What they compute on several ranks: multidevice/test_parallel_linear.py.
"""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.distributed.device_mesh import DeviceMesh as TorchMesh
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

import meshfuse
from meshfuse import DeviceMesh, nn

LAYERS = [nn.ColumnParallelLinear, nn.RowParallelLinear]
every_layer = pytest.mark.parametrize("make", LAYERS)


def like(make, whole, **options):
    """Return a layer with the parameters of one of torch."""
    layer = make(whole.in_features, whole.out_features, dtype=whole.weight.dtype, **options)
    layer.load_global(whole.weight, whole.bias)
    return layer


# --- Making one ----------------------------------------------------------------------------------


@every_layer
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_draws_are_those_of_torch(make, bias, dtype):
    """Also those of reset_parameters, and what torch draws after that."""
    torch.manual_seed(3)
    whole = torch.nn.Linear(6, 4, bias, dtype=dtype)
    torch.manual_seed(3)
    layer = make(6, 4, bias, dtype=dtype)
    for _ in range(2):
        assert torch.equal(layer.weight, whole.weight)
        assert torch.equal(layer.bias, whole.bias) if bias else layer.bias is None
        after = []
        for module in (whole, layer):
            torch.manual_seed(5)
            module.reset_parameters()
            after.append(torch.rand(1))
        assert torch.equal(*after)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_draws_without_features():
    layer = nn.ColumnParallelLinear(0, 4)
    assert layer.weight.shape == (4, 0) and not layer.bias.any()


def test_default_dtype():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert nn.RowParallelLinear(2, 2).weight.dtype == torch.float64
    finally:
        torch.set_default_dtype(before)


def test_text():
    layer = nn.ColumnParallelLinear(4, 2, gather_output=True)
    assert str(layer) == (
        "ColumnParallelLinear(in_features=4, out_features=2, bias=True, mesh=DeviceMesh{0}, "
        "gather_output=True)"
    )
    layer = nn.RowParallelLinear(4, 2, bias=False, mesh=DeviceMesh([0]), input_is_parallel=False)
    assert str(layer) == (
        "RowParallelLinear(in_features=4, out_features=2, bias=False, mesh=DeviceMesh{0}, "
        "input_is_parallel=False)"
    )
    assert not layer.input_is_parallel


def test_mesh_of_torch():
    """Its last dim is the one that divides, under its name."""
    mesh = TorchMesh("cpu", [[0]], mesh_dim_names=("dp", "tp"), _init_backend=False, _rank=0)
    layer = nn.ColumnParallelLinear(4, 2, mesh=mesh)
    assert layer.mesh == DeviceMesh([0], names=("tp",))
    assert layer(torch.ones(1, 4)).shape == (1, 2)


def simulated():
    with meshfuse.simulate(2):
        return nn.ColumnParallelLinear(4, 2)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            simulated,
            meshfuse.Error,
            "ColumnParallelLinear: on a simulated mesh of 2 devices there is no single rank whose "
            "part the layer could hold. Make and call it outside of meshfuse.simulate: on ranks "
            "that mpirun or torchrun starts, or on one device.",
        ),
        (
            lambda: nn.RowParallelLinear(4, 2, mesh=DeviceMesh([1])),
            meshfuse.Error,
            "RowParallelLinear: rank 0 is not in the mesh DeviceMesh{1}. Make and call the layer "
            "on the ranks of its mesh only, or give a mesh with this rank.",
        ),
        (
            lambda: nn.RowParallelLinear(4, 2, mesh=DeviceMesh([0, 1])),
            meshfuse.Error,
            "RowParallelLinear: the mesh DeviceMesh{0 1} needs device 1, but the communicator has "
            "1 devices (0 to 0). Start 2 ranks, or use a smaller mesh.",
        ),
        (
            lambda: nn.RowParallelLinear(4, 2, mesh=[0]),
            TypeError,
            "RowParallelLinear: expected a DeviceMesh of torch.distributed or of meshfuse, but got "
            "list",
        ),
        (
            lambda: nn.ColumnParallelLinear(4, 2, dtype=torch.int64),
            meshfuse.Error,
            "ColumnParallelLinear: parameters of torch.int64 are not supported. Give a dtype of "
            "torch.float64, torch.float32, torch.float16, torch.bfloat16.",
        ),
        (
            lambda: nn.ColumnParallelLinear(4.0, 2),
            meshfuse.Error,
            "ColumnParallelLinear: in_features is 4.0. Give a number of features.",
        ),
        (
            lambda: nn.RowParallelLinear(4, -1),
            meshfuse.Error,
            "RowParallelLinear: out_features is -1. Give a number of features.",
        ),
    ],
    ids=["simulated", "other rank", "no such rank", "mesh", "dtype", "float", "negative"],
)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (
            (4, 2),
            None,
            "weight has shape [4, 2], but the unsharded weight is [2, 4], "
            "[out_features, in_features]. Give the whole weight.",
        ),
        (
            (2, 4),
            (3,),
            "bias has shape [3], but the unsharded bias is [2]. Give the whole bias.",
        ),
    ],
)
def test_wrong_tensors_to_load(weight, bias, message):
    layer = nn.ColumnParallelLinear(4, 2)
    with pytest.raises(meshfuse.Error) as caught:
        layer.load_global(torch.ones(weight), None if bias is None else torch.ones(bias))
    assert str(caught.value) == "ColumnParallelLinear.load_global: " + message


def test_load_bias_into_a_layer_without():
    layer = nn.RowParallelLinear(4, 2, bias=False)
    with pytest.raises(meshfuse.Error) as caught:
        layer.load_global(torch.ones(2, 4), torch.ones(2))
    assert str(caught.value) == (
        "RowParallelLinear.load_global: a bias was given, but the layer was made with bias=False. "
        "Leave it out, or make the layer with a bias."
    )


def test_load_without_bias_keeps_it():
    layer = nn.RowParallelLinear(4, 2)
    bias = layer.bias.detach().clone()
    layer.load_global(torch.ones(2, 4, dtype=torch.int64))
    assert layer.weight.eq(1).all() and torch.equal(layer.bias, bias)
    assert layer.weight.requires_grad and layer.weight.is_leaf


# --- Conversions ---------------------------------------------------------------------------------


@every_layer
def test_types_one_after_the_other(make):
    """A layer has programs for each type that it had."""
    whole = torch.nn.Linear(4, 2, dtype=torch.double)
    layer, x = like(make, whole), torch.randn(3, 4).double()
    want = whole(x)
    for convert, dtype, atol in (
        (lambda: layer.double(), torch.double, 1e-12),
        (lambda: layer.to(torch.float32), torch.float32, 1e-5),
        (lambda: layer.bfloat16(), torch.bfloat16, 0.1),
        (lambda: layer.double(), torch.double, 0.1),
    ):
        convert()
        y = layer(x.to(dtype))
        y.sum().backward()
        assert y.dtype == layer.weight.grad.dtype == dtype
        torch.testing.assert_close(y.double(), want, atol=atol, rtol=0)
        layer.zero_grad()


def test_type_without_programs():
    layer = nn.ColumnParallelLinear(4, 2).to(torch.float8_e5m2)
    with pytest.raises(meshfuse.Error) as caught:
        layer(torch.ones(1, 4))
    assert str(caught.value) == (
        "ColumnParallelLinear: parameters of torch.float8_e5m2 are not supported. Convert the "
        "layer to one of torch.float64, torch.float32, torch.float16, torch.bfloat16."
    )


@pytest.mark.cpu_only("draws on the CPU")
@every_layer
def test_meta_device(make):
    """Shapes are known there, parameters are drawn when there is memory for them."""
    layer = make(4, 2, device="meta")
    x = torch.ones(5, 3, 4, device="meta")
    with torch.autocast("cpu", enabled=True):
        assert layer(x).shape == (5, 3, 2) and layer(x).is_meta
    layer(x).sum().backward()
    assert layer.weight.grad.shape == (2, 4)
    layer.to_empty(device="cpu")
    torch.manual_seed(1)
    layer.reset_parameters()
    torch.manual_seed(1)
    whole = torch.nn.Linear(4, 2)
    x = torch.ones(3, 4, device="cpu")
    torch.testing.assert_close(layer(x), whole.to("cpu")(x))


@every_layer
def test_autocast(make):
    """Types of results and gradients are those of torch's layer; float64 stays."""
    whole = torch.nn.Linear(4, 2)
    layer, x = like(make, whole), torch.randn(3, 4)
    kind = x.device.type
    with torch.autocast(kind, dtype=torch.bfloat16):
        y, want = layer(x), whole(x)
        assert y.dtype == want.dtype == torch.bfloat16
        for result in (y, want):
            result.float().square().sum().backward()
    torch.testing.assert_close(y, want)
    torch.testing.assert_close(layer.weight.grad, whole.weight.grad)
    assert layer.weight.grad.dtype == torch.float32
    with torch.autocast(kind, dtype=torch.bfloat16):
        assert layer.double()(x.double()).dtype == torch.double
    assert layer.float()(x).dtype == torch.float32


@every_layer
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(make, reentrant):
    whole = torch.nn.Linear(4, 4)
    layer = like(make, whole)
    xs = [torch.randn(3, 4).requires_grad_()]
    xs.append(xs[0].detach().clone().requires_grad_())
    checkpoint(
        lambda x: layer(layer(x).relu()), xs[0], use_reentrant=reentrant
    ).square().sum().backward()
    whole(whole(xs[1]).relu()).square().sum().backward()
    torch.testing.assert_close(xs[0].grad, xs[1].grad)
    torch.testing.assert_close(layer.weight.grad, whole.weight.grad)


@every_layer
def test_result_changed_in_place(make):
    """As one may with results of torch's layer, also of more than two dims."""
    layer = make(4, 2)
    for shape in ((4,), (3, 4), (2, 3, 4)):
        layer.zero_grad()
        layer(torch.ones(shape)).mul_(2).sum().backward()
        rows = torch.ones(shape).numel() // 4
        assert layer.bias.grad.tolist() == [2 * rows] * 2


# --- Calls that are refused ----------------------------------------------------------------------


def features(local):
    return f"the last dim of the input must be in_features=4, but the input has local shape {local}"


@pytest.mark.parametrize(
    ("make", "x", "error", "message"),
    [
        (LAYERS[0], [3, 5], meshfuse.Error, f"{features([3, 5])}. Give an input with this many"),
        (LAYERS[0], [], meshfuse.Error, features([])),
        (
            LAYERS[1],
            [3, 5],
            meshfuse.Error,
            f"{features([3, 5])}. Give an input with this many features, or make the layer with "
            "input_is_parallel=False if every device has all of them.",
        ),
        (LAYERS[1], None, TypeError, "the input must be a tensor, but it is a NoneType."),
    ],
    ids=["columns", "scalar", "rows", "no tensor"],
)
def test_wrong_input(make, x, error, message):
    with pytest.raises(error) as caught:
        make(4, 2)(None if x is None else torch.ones(x))
    assert str(caught.value).startswith(f"{make.__name__}: {message}")


def test_wrong_type_of_input():
    with pytest.raises(meshfuse.Error) as caught:
        nn.ColumnParallelLinear(4, 2)(torch.ones(3, 4).double())
    assert str(caught.value) == (
        "ColumnParallelLinear: the input is torch.float64, but the weight is torch.float32 and the "
        "bias torch.float32. Convert the input, or the layer by .to(dtype)."
    )
    with pytest.raises(meshfuse.Error, match=r"but the weight is torch.float32\. Convert"):
        nn.ColumnParallelLinear(4, 2, bias=False)(torch.ones(3, 4).double())


def test_call_on_a_simulated_mesh():
    layer = nn.ColumnParallelLinear(4, 2)
    with (
        meshfuse.simulate(2),
        pytest.raises(meshfuse.Error, match="on a simulated mesh of 2 devices there is no single"),
    ):
        layer(torch.ones(1, 4))
    assert layer(torch.ones(1, 4)).shape == (1, 2)


def test_gradients_of_gradients_are_refused():
    x = torch.ones(3, 4, requires_grad=True)
    y = nn.RowParallelLinear(4, 2)(x)
    (grad,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    with pytest.raises(meshfuse.Error, match="RowParallelLinear: gradients of its gradients"):
        grad.sum().backward()


def test_transforms_are_refused():
    layer = nn.ColumnParallelLinear(4, 2)
    with pytest.raises(meshfuse.UnsupportedError, match=r"ColumnParallelLinear: transforms of"):
        torch.vmap(layer)(torch.ones(3, 4))


def fake():
    with FakeTensorMode():
        return torch.ones(2, 4)


@every_layer
@pytest.mark.filterwarnings("ignore:.*(Sparse CSR|nested tensors)")
@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            lambda: torch.nested.nested_tensor([torch.ones(2, 4)], layout=torch.jagged),
            meshfuse.Error,
            "a nested tensor. Pass a padded one: torch.nested.to_padded_tensor(x, 0.0).",
        ),
        (
            lambda: torch.nested.nested_tensor([torch.ones(2, 4)]),
            meshfuse.Error,
            "a nested tensor. Pass a padded one: torch.nested.to_padded_tensor(x, 0.0).",
        ),
        (
            lambda: torch.ones(2, 4).to_sparse(),
            meshfuse.Error,
            "sparse (torch.sparse_coo). Pass x.to_dense().",
        ),
        (
            lambda: torch.ones(2, 4).to_sparse_csr(),
            meshfuse.Error,
            "sparse (torch.sparse_csr). Pass x.to_dense().",
        ),
        (
            lambda: torch.quantize_per_tensor(torch.ones(2, 4), 0.1, 0, torch.qint8),
            meshfuse.Error,
            "quantized (torch.qint8). Pass x.dequantize().",
        ),
        (
            fake,
            TypeError,
            "a FakeTensor, not a plain tensor. Call it outside of FakeTensorMode, with real "
            "tensors.",
        ),
    ],
    ids=["jagged", "nested", "sparse", "csr", "quantized", "fake"],
)
def test_kind_of_input(make, given, error, message):
    layer = make(4, 2)
    with pytest.raises(error) as caught:
        layer(given())
    assert str(caught.value) == f"{make.__name__}: the input is {message}"
    assert layer(torch.ones(2, 4)).shape == (2, 2)


@every_layer
def test_fake_mode_is_refused(make):
    layer = make(4, 2)
    x = torch.ones(2, 4)
    with FakeTensorMode(), pytest.raises(meshfuse.Error, match="a FakeTensorMode is active"):
        layer(x)


@every_layer
def test_tangents_are_refused(make):
    """Of input, weight and bias, whether or not autograd records the call."""
    layer = make(4, 2)
    x = torch.ones(2, 4)
    with forward_ad.dual_level():
        layer(x)
        for name, value in (("input", x), ("weight", layer.weight), ("bias", layer.bias)):
            dual = forward_ad.make_dual(value.detach(), torch.ones_like(value))
            given = {} if name == "input" else {name: dual}
            for context in (torch.enable_grad(), torch.no_grad()):
                with (
                    context,
                    pytest.raises(
                        meshfuse.UnsupportedError,
                        match=f"^{make.__name__}: the {name} has a tangent",
                    ),
                ):
                    functional_call(layer, given, (dual if name == "input" else x,))


@every_layer
def test_batch_of_gradients_is_refused(make):
    x = torch.ones(2, 4, requires_grad=True)
    y = make(4, 2)(x)
    with pytest.raises(meshfuse.UnsupportedError, match=r"a batch of gradients \(is_grads_batched"):
        torch.autograd.grad(y, x, torch.ones(5, 2, 2), is_grads_batched=True)

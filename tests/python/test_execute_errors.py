# SPDX-License-Identifier: BSD-3-Clause
"""What execute refuses, in which words, and that the definition works afterwards."""

from __future__ import annotations

import re

import pytest
import torch

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition, ParallelType


def matmul(shape_a=(4, 6), shape_b=(6, 3), dtype=DataType.Float):
    with FusionDefinition() as fd:
        a = fd.define_tensor(list(shape_a), dtype=dtype)
        b = fd.define_tensor(list(shape_b), dtype=dtype)
        fd.add_output(fd.ops.matmul(a, b))
    return fd


def scaled(dtype=DataType.Double):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1])
        s = fd.define_scalar(dtype)
        fd.add_output(fd.ops.mul(x, s))
    return fd


A, B = torch.ones(4, 6), torch.ones(6, 3)

WRONG_INPUTS = [
    (matmul, [2, B], "Expected input 0, ", "to be an at::Tensor but got scalar 2"),
    (matmul, [A.half(), B], "Expected input 0, ",
     "to be bound to a tensor of dtype float, but got a tensor of dtype __half"),
    (matmul, [A.double(), B], "tensor of dtype float", "dtype double"),
    (matmul, [A], "2", "1"),
    (matmul, [A, B, B], "2", "3"),
    (matmul, [], "2", "0"),
    (matmul, [torch.ones(4, 8), B], "T0", "8"),
    (matmul, [torch.ones(6, 4), B], "T0", "6"),
    (matmul, [torch.ones(4), B], "T0", "1"),
    (matmul, [A.to("meta"), B], "meta", A.device.type),
    (scaled, [torch.ones(2), torch.ones(3)], "Expected input 1, d",
     "to be a scalar but got float tensor of rank 1"),
    (scaled, [torch.ones(2), 2 + 1j],
     "Scalar value (2,1) is not compatible with the expected data type: double.", ""),
]  # fmt: skip


@pytest.mark.parametrize(("make", "inputs", "first", "second"), WRONG_INPUTS)
def test_wrong_inputs(make, inputs, first, second):
    fd = make()
    with pytest.raises(RuntimeError) as caught:
        fd.execute(inputs)
    assert first in str(caught.value) and second in str(caught.value)
    right = [A, B] if make is matmul else [torch.ones(2), 3.0]
    assert len(fd.execute(right)) == 1


@pytest.mark.parametrize(
    "inputs", [A, [A, "x"], [A, None], 3, [A, 2**70], [A, object()]], ids=lambda x: type(x).__name__
)
def test_wrong_types(inputs):
    with pytest.raises(TypeError, match="execute"):
        matmul().execute(inputs)


def test_error_has_attributes():
    with pytest.raises(meshfuse.Error) as caught:
        matmul().execute([torch.ones(4, 8), B])
    assert (caught.value.tensor, caught.value.axis, caught.value.rank) == ("T0", 1, None)
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, RuntimeError)


def test_error_after_a_right_call():
    fd = matmul()
    fd.execute([A, B])
    with pytest.raises(RuntimeError, match="T0"):
        fd.execute([torch.ones(4, 8), B])
    torch.testing.assert_close(fd.execute([A, B])[0], A @ B)


def test_strides_after_a_right_call():
    """The short way that later calls take looks at strides, too."""
    with FusionDefinition() as fd:
        a = fd.define_tensor([4, 6], contiguity=True)
        fd.add_output(fd.ops.matmul(a, fd.define_tensor([6, 3])))
    for _ in range(3):
        fd.execute([A, B])
    message = (
        r"stride mismatch with contiguity info: input 0, .* declared contiguous, .* but it is 4"
    )
    with pytest.raises(meshfuse.Error, match=message):
        fd.execute([torch.ones(6, 4).t(), B])
    torch.testing.assert_close(fd.execute([A, B])[0], A @ B)


def test_sizes_that_disagree():
    fd = matmul((-1, -1), (-1, -1))
    torch.testing.assert_close(fd.execute([A, B])[0], A @ B)
    with pytest.raises(RuntimeError) as caught:
        fd.execute([torch.ones(4, 5), B])
    assert "5" in str(caught.value) and "6" in str(caught.value)


def test_local_size_that_contradicts_the_global_one():
    with FusionDefinition() as fd:
        x = fd.define_tensor([12])
        x.set_device_mesh(DeviceMesh(range(3)))
        fd.add_output(fd.ops.neg(x))
        x.outer_split(0, 3)
        x.axis(0).parallelize(ParallelType.mesh_x)
    with meshfuse.simulate(3) as sim:
        with pytest.raises(RuntimeError) as caught:
            sim.execute(fd, [[torch.ones(5)]] * 3)
        for number in ("12", "3", "4", "5"):
            assert number in str(caught.value)
        assert sim.run(fd, [torch.ones(12)])[0].tolist() == [-1.0] * 12


def test_log_once_and_raise_unchanged(caplog):
    with pytest.raises(meshfuse.Error):
        matmul().execute([A])
    records = [r for r in caplog.records if r.name == "meshfuse"]
    assert [r.levelname for r in records] == ["ERROR"]


def test_log_once_inside_a_block(caplog):
    with pytest.raises(meshfuse.Error):
        with FusionDefinition() as fd:
            fd.add_output(fd.define_tensor([2]))
            matmul().execute([A])
    assert len([r for r in caplog.records if r.name == "meshfuse"]) == 1


OPTIONS = [
    ({"_enable_options": ["colour"]}, RuntimeError, "Unrecognized enable_option: colour"),
    ({"_disable_options": ["colour"]}, RuntimeError, "Unrecognized disable_option: colour"),
    ({"device": 256}, RuntimeError, "Maximum device index is 255"),
    (
        {"device": "cuda:0"},
        RuntimeError,
        "Inputs are not all on the same device or don't match selection!",
    ),
    (
        {"_enable_options": ["fuse_matmul"], "_disable_options": ["matmul_expr_eval"]},
        RuntimeError,
        "Can not find a scheduler to schedule fusion segment",
    ),
]


@pytest.mark.cpu_only("the options name the CPU")
@pytest.mark.parametrize("executed", [False, True])
@pytest.mark.parametrize(("options", "kind", "message"), OPTIONS)
def test_wrong_options(options, kind, message, executed):
    fd = matmul()
    if executed:
        fd.execute([A, B])
    with pytest.raises(kind, match=re.escape(message)):
        fd.execute([A, B], **options)


@pytest.mark.cpu_only("the options name the CPU")
@pytest.mark.parametrize(
    "options",
    [
        {"device": "cpu"},
        {"device": torch.device("cpu")},
        {"contiguous_outputs": True},
        {"_enable_options": ["host_ir_lowering", "p2p_protocol(get)"]},
        {"_disable_options": ["infer_contiguity"]},
        {"override_user_schedule": True},
    ],
)
def test_accepted_options(options):
    fd = matmul()
    for _ in range(2):
        torch.testing.assert_close(fd.execute([A, B], **options)[0], A @ B)
    torch.testing.assert_close(fd.fec.execute([A, B])[0], A @ B)


def test_unknown_option_of_the_environment_is_a_warning(monkeypatch):
    monkeypatch.setenv("MESHFUSE_ENABLE", "colour,fuse_matmul")
    with pytest.warns(UserWarning, match="'colour' is not an option"):
        matmul().execute([A, B])


def test_dump(monkeypatch, capsys):
    monkeypatch.setenv("MESHFUSE_DUMP", "fusion_ir,host_ir")
    fd = matmul()
    fd.execute([A, B])
    assert fd.ir() in capsys.readouterr().out


def test_contiguous_outputs():
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, 4])
        fd.add_output(fd.ops.neg(x))
        fd.add_output(fd.ops.permute(x, [1, 0]))
        fd.add_output(fd.ops.neg(x), stride_order=[0, 1])
    value = torch.randn(4, 3).t()
    outs = fd.execute([value], contiguous_outputs=True)
    assert [out.is_contiguous() for out in outs] == [True, True, False]
    torch.testing.assert_close(outs[1], value.t())


def test_inputs_may_be_any_iterable_and_nested():
    fd = scaled()
    for inputs in (
        [torch.ones(2), 3.0],
        (torch.ones(2), 3.0),
        iter([torch.ones(2), 3.0]),
        [[torch.ones(2), [3.0]]],
        [torch.nn.Parameter(torch.ones(2)), 3],
        [torch.ones(2), True],
    ):
        assert fd.execute(inputs)[0].shape == (2,)


def test_inputs_that_require_grad():
    fd = matmul()
    a, b = A.clone().requires_grad_(), B.clone().requires_grad_()
    for _ in range(2):
        (out,) = fd.execute([a, b])
        assert not out.requires_grad
        torch.testing.assert_close(out, A @ B)


def test_large_int_scalars_are_exact():
    big = 2722423872872113
    with FusionDefinition() as fd:
        s = fd.define_scalar(DataType.Int)
        fd.add_output(s)
    assert fd.execute([big])[0].item() == big


def test_results_are_the_callers():
    fd = matmul()
    (first,) = fd.execute([A, B])
    kept = first.clone()
    fd.execute([A * 2, B])
    assert torch.equal(first, kept)
    first.zero_()
    assert torch.equal(fd.execute([A, B])[0], kept)


def test_rescheduling_after_an_execution():
    fd = matmul((4, 6), (6, 4))
    (a, b), (out,) = fd.fusion.inputs(), fd.fusion.outputs()
    value_a, value_b = torch.randn(4, 6), torch.randn(6, 4)
    torch.testing.assert_close(fd.execute([value_a, value_b])[0], value_a @ value_b)
    for t in (a, b, out):
        t.set_device_mesh(DeviceMesh(range(2)))
    b.outer_split(-1, 2)
    b.axis(-2).parallelize(ParallelType.mesh_x)
    out.outer_split(-2, 2)
    out.axis(-3).parallelize(ParallelType.mesh_x)
    (result,) = meshfuse.simulate(2).run(fd, [value_a, value_b])
    torch.testing.assert_close(result, value_a @ value_b)


def test_message_names_the_users_line():
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 6]), fd.define_tensor([5, 3])
        with pytest.raises(RuntimeError) as caught:
            fd.ops.matmul(a, b)
    assert "6" in str(caught.value) and "5" in str(caught.value)


def _negation():
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([2, 2])))
    return fd


def test_list_that_contains_itself_is_refused():
    """A list of inputs may be nested, but not endlessly."""
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(TypeError, match="nested more than 32 deep"):
        _negation().execute(endless)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.eye(2).to_sparse_csr(),
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(2)]),
    ],
    ids=["coordinates", "csr", "nested"],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_without_strides_are_refused(make):
    """Only dense tensors have the sizes and strides that a program describes."""
    with pytest.raises(meshfuse.Error, match=r"input 0, T0.*to be a dense tensor"):
        _negation().execute([make()])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "make",
    [lambda: torch.eye(4).to_sparse(), lambda: torch.nested.nested_tensor([torch.ones(4)] * 4)],
    ids=["coordinates", "nested"],
)
def test_tensors_without_parts_are_refused(make):
    """A sparse or nested tensor cannot be divided over devices."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 4])
        fd.add_output(fd.ops.neg(x))
        x.set_device_mesh(DeviceMesh(range(2)))
        x.outer_split(0, 2)
        x.axis(0).parallelize(ParallelType.mesh_x)
    message = r"shard_tensor: T0 was given a sparse or nested tensor.*Pass tensor\.to_dense\(\)"
    with meshfuse.simulate(2) as sim, pytest.raises(meshfuse.Error, match=message):
        sim.run(fd, [make()])


def test_arrays_of_other_libraries_are_refused():
    """An array is not a list of numbers."""
    numpy = pytest.importorskip("numpy")
    with pytest.raises(TypeError, match=r"(?s)input 0 is .*ndarray.*torch.from_numpy"):
        _negation().execute([numpy.ones((2, 2), numpy.float32)])


def test_devices_on_different_kinds_of_memory_are_refused():
    """All devices of a mesh hold their inputs in the same kind of memory."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, 2])
        fd.add_output(fd.ops.neg(x))
        x.set_device_mesh(meshfuse.DeviceMesh(range(2)))
    with (
        meshfuse.simulate(2) as sim,
        pytest.raises(meshfuse.Error, match=r"is on meta, that of another one on c(pu|uda)"),
    ):
        sim.execute(fd, [[torch.ones(2, 2)], [torch.ones(2, 2, device="meta")]])


def test_scalars_that_differ_between_devices_are_refused():
    """One program runs on all devices, with one value per scalar input."""
    with FusionDefinition() as fd:
        x, s = fd.define_tensor([2, 2]), fd.define_scalar(DataType.Double)
        fd.add_output(fd.ops.mul(x, s))
        x.set_device_mesh(meshfuse.DeviceMesh(range(2)))
    with (
        meshfuse.simulate(2) as sim,
        pytest.raises(meshfuse.Error, match="input 1 is 2 on device 0 but 5 on device 1"),
    ):
        sim.execute(fd, [[torch.ones(2, 2), 2.0], [torch.ones(2, 2), 5.0]])


def test_names_of_tensors_that_a_pass_made_are_not_shown():
    """A copy of T1 is divided as T3 is, which is not possible: the message is about T1."""
    with FusionDefinition(uneven=True) as fd:
        w, b = fd.define_tensor([8, 8]), fd.define_tensor([8])
        x = fd.ops.neg(b)
        fd.add_output(fd.ops.linear(x, w, b))
        for tv in (w, b, x):
            tv.set_device_mesh(DeviceMesh(range(3)))
        w.outer_split(1, 3)
        w.axis(1).parallelize(ParallelType.mesh_x)
        x.inner_split(0, 3)
        x.axis(1).parallelize(ParallelType.mesh_x)
    with (
        meshfuse.simulate(3) as sim,
        pytest.raises(meshfuse.Error, match=r"^axis 0 of T1 of size 8 is not divisible") as caught,
    ):
        sim.execute(fd, [[torch.ones(8, n), torch.ones(8)] for n in (3, 3, 2)])
    assert (caught.value.tensor, caught.value.axis) == ("T1", 0)

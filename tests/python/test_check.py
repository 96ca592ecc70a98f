# SPDX-License-Identifier: BSD-3-Clause
"""``fd.check``: right programs pass, wrong ones are found, made small and printed as a script."""

from __future__ import annotations

import logging
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from programs import X, Y, place, shard

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition, check_run
from meshfuse.check import CheckFailure
from meshfuse.check_inputs import lay_out, random_values
from meshfuse.program_text import in_double, parse, unsharded
from meshfuse.remesh import mesh_devices, mesh_shape, remesh

GOLDEN = Path(__file__).resolve().parent.parent / "golden"

PAIR = DeviceMesh(range(2))
SQUARE = DeviceMesh(torch.arange(4).reshape(2, 2))

NO_PRODUCTS = pytest.mark.cpu_only("torch multiplies no matrices of integers elsewhere")


def row_parallel(k=-1, mesh=PAIR, **kwargs) -> FusionDefinition:
    """relu((x @ w) + b), the inner axis over mesh_x."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, k], **kwargs)
        w = fd.define_tensor([k, 6], **kwargs)
        b = fd.define_tensor([-1, 6], **kwargs)
        product = fd.ops.matmul(x, w)
        fd.add_output(fd.ops.relu(fd.ops.add(product, b)))
        fd.add_output(fd.ops.sum(product, [0]))
        place(mesh, x, w)
        shard(x, 1, mesh.shape[-1])
        shard(w, 0, mesh.shape[-1])
    return fd


def test_right_program_passes():
    report = row_parallel().check()
    assert report.examples == len(report.sizes) == 20
    assert (report.refused, report.skipped) == ([], 0)
    assert report.max_share <= 1
    assert str(report).startswith("check: 20 examples on mesh(x=2) equal the program alone\n")


def test_sizes_fit_together_and_divide():
    """Sizes that meet are equal, those that a split divides are multiples, 0 and 1 occur."""
    sizes = row_parallel().check(examples=40).sizes
    assert all(s["T0.1"] == s["T1.0"] and s["T0.1"] % 2 == 0 for s in sizes)
    assert all(s["T0.0"] == s["T2.0"] for s in sizes)
    assert {0, 1} < {s["T0.0"] for s in sizes}
    assert 0 in {s["T0.1"] for s in sizes}


def test_same_seed_same_examples():
    fd = row_parallel()
    assert fd.check(seed=3).sizes == fd.check(seed=3).sizes != fd.check(seed=4).sizes


@pytest.mark.parametrize(
    "dtype",
    [
        DataType.Double,
        DataType.Float,
        DataType.Half,
        DataType.BFloat16,
        *(pytest.param(t, marks=NO_PRODUCTS, id=str(t)) for t in (DataType.Int, DataType.Int32)),
        DataType.ComplexFloat,
        DataType.ComplexDouble,
    ],
    ids=str,
)
def test_dtypes(dtype):
    with FusionDefinition() as fd:
        x, w = (fd.define_tensor([-1, -1], dtype=dtype) for _ in range(2))
        fd.add_output(fd.ops.sum(fd.ops.neg(fd.ops.matmul(x, w)), [1]))
        place(PAIR, x, w)
        shard(x, 1, 2)
        shard(w, 0, 2)
    assert fd.check(examples=8).examples == 8


def test_bool_and_scalars():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=DataType.Bool)
        s, n = fd.define_scalar(), fd.define_scalar(dtype=DataType.Int)
        fd.add_output(fd.ops.logical_not(x))
        fd.add_output(fd.ops.mul(fd.ops.add(fd.ops.sum(x, [0]), n), s))
        place(PAIR, x)
        shard(x, 0, 2)
    assert fd.check().examples == 20


@pytest.mark.parametrize("function", ["exp", "log", "floor", "rsqrt", "reciprocal", "tan", "eq"])
@pytest.mark.parametrize("dtype", [DataType.Float, DataType.Half], ids=str)
def test_no_false_alarm(function, dtype):
    """Steps, poles and ill-conditioned values: sums in another order are no failure."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1], dtype=dtype)
        total = fd.ops.sum(fd.ops.sin(fd.ops.mul(x, 0.7)), [1])
        args = [total, 0.5] if function == "eq" else [total]
        fd.add_output(getattr(fd.ops, function)(*args))
        place(PAIR, x)
        shard(x, 1, 2)
    assert fd.check(examples=40).examples == 40


def no_sum_of_deviations(fd, x):
    mean = fd.ops.mul(fd.ops.sum(x, [1], True), 1 / 12)
    return fd.ops.sum(fd.ops.sub(x, mean), [1])


def no_rest_of_softmax(fd, x):
    return fd.ops.sub(fd.ops.sum(fd.ops.softmax(x, 1), [1]), 1.0)


def no_mean_of_layer_norm(fd, x):
    return fd.ops.cumsum(fd.ops.layer_norm(x, [12]), 1)


@pytest.mark.parametrize("dtype", [DataType.Float, DataType.Double], ids=str)
@pytest.mark.parametrize(
    "function", [no_sum_of_deviations, no_rest_of_softmax, no_mean_of_layer_norm]
)
def test_no_false_alarm_where_results_cancel(function, dtype):
    """Results of 0 for any input, which rounding moves by steps of their terms."""
    for seed in range(3):
        with FusionDefinition() as fd:
            x = fd.define_tensor([24, 12], dtype=dtype)
            fd.add_output(function(fd, x))
            place(PAIR, x)
            shard(x, 1, 2)
        assert fd.check(examples=20, seed=seed).examples == 20


def test_selected_elements_are_exact(monkeypatch):
    """A comparison of a maximum with what it was taken from depends on no rounding."""
    with FusionDefinition() as fd:
        product = fd.ops.matmul(x := fd.define_tensor([6, 4]), w := fd.define_tensor([4, 6]))
        largest = fd.ops.max(product, [1], True)
        fd.add_output(fd.ops.sum(fd.ops.eq(product, largest), [1]))
        place(PAIR, x, w)
        shard(x, 0, 2)

    def one_more(fd, results):
        results[0][:] = [r + 1 if r.dtype == torch.int64 else r for r in results[0]]

    break_results(monkeypatch, one_more)
    with pytest.raises(CheckFailure, match=r"is \d+ at .*, but should be \d+ "):
        fd.check()


def test_class_with_multidevice_schedule():
    class Columns(FusionDefinition):
        def definition(self):
            self.x, self.w = self.define_tensor([-1, 4]), self.define_tensor([4, 6])
            self.add_output(self.ops.matmul(self.x, self.w))

        def multidevice_schedule(self):
            self.sched._set_device_mesh(self.w, PAIR)
            self.sched.split(self.w, -1, 2, False)
            self.sched.parallelize(self.w, -2, X)

    assert Columns().check().examples == 20


def test_result_in_an_input():
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, 4]), fd.define_tensor([-1, 4])
        fd.add_output(fd.ops.add(x, y), x)
        place(PAIR, x, y)
        shard(x, 1, 2)
        shard(y, 1, 2)
    assert fd.check().examples == 20


def test_contiguity_and_stride_order():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, -1, 4], contiguity=True, stride_order=[0, 2, 1])
        y = fd.define_tensor([-1, -1, 4], contiguity=[None, True, True])
        fd.add_output(fd.ops.add(x, y))
        place(PAIR, x)
        shard(x, 2, 2)
    assert fd.check().examples == 20


def test_strides_of_parts_vary(monkeypatch):
    """Inputs whose flags allow it come transposed, with gaps and expanded."""
    seen = set()
    run_all = meshfuse.FusionExecutorCache.run_all

    def record(self, rows, communicator):
        seen.update(part.stride() for row in rows for part in row if part.numel() > 4)
        return run_all(self, rows, communicator)

    monkeypatch.setattr(meshfuse.FusionExecutorCache, "run_all", record)
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        fd.add_output(fd.ops.neg(x))
        place(PAIR, x)
        shard(x, 1, 2)
    fd.check(examples=40)
    assert (1, 4) in seen and any(0 in s for s in seen) and any(min(s) > 1 for s in seen)


# ---- another mesh


@pytest.mark.parametrize("mesh", [1, 2, 3, 4, (2, 3), DeviceMesh([3, 1])], ids=str)
def test_splits_are_carried_over(mesh):
    report = row_parallel().check(mesh=mesh, examples=6)
    assert report.examples == 6
    last = mesh if isinstance(mesh, int) else mesh[-1] if isinstance(mesh, tuple) else 2
    assert all(s["T0.1"] % last == 0 for s in report.sizes)


def test_names_of_mesh_axes_are_kept():
    mesh = DeviceMesh([0, 1], names=["model"])
    assert row_parallel(mesh=mesh).check(mesh=3, examples=1).mesh == 'mesh(x=3 "model")'


def test_nested_and_cyclic_splits_are_carried_over():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 24])
        fd.add_output(fd.ops.relu(x))
        place(SQUARE, x)
        shard(x, 0, 2, Y, inner=True)
        x.split(2, 3, False)
        shard(x, 3, 2, X)
    report = fd.check(mesh=(3, 4), examples=6)
    assert all(s["T0.0"] % 3 == 0 for s in report.sizes)


def test_rfactor_is_carried_over():
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([4, 12]), fd.define_tensor([12, 6])
        out = fd.ops.matmul(x, w)
        fd.add_output(out)
        place(PAIR, x, w, out)
        shard(x, 1, 2)
        shard(w, 0, 2)
        out.outer_split(-1, 2)
        local = out.rfactor([-1])
        local.axis(-2).parallelize(X)
    assert fd.check(examples=4).examples == 4
    assert fd.check(mesh=3, examples=4).examples == 4


@pytest.mark.parametrize(
    ("mesh", "text"),
    [
        (5, r"axis 1 of T0, of which 12 elements are to be split, cannot be divided by 5"),
        ((), r"check: \(\) is not the shape of a mesh. Give 1 to 3 sizes"),
        (0, r"check: 0 is not the shape of a mesh"),
    ],
)
def test_mesh_that_does_not_fit(mesh, text):
    with pytest.raises(meshfuse.Error, match=text):
        row_parallel(k=12).check(mesh=mesh)


def test_mesh_without_the_axis():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 4])
        fd.add_output(fd.ops.relu(x))
        place(SQUARE, x)
        shard(x, 0, 2, Y)
    with pytest.raises(meshfuse.Error, match=r"T0 is on mesh_y, which .* lacks. Give a mesh of at"):
        fd.check(mesh=2)


def test_whole_axis_on_the_mesh():
    with FusionDefinition() as fd:
        x = fd.define_tensor([2, -1])
        fd.add_output(fd.ops.relu(x))
        place(PAIR, x)
        x.axis(0).parallelize(X)
    assert fd.check().examples == 20
    with pytest.raises(meshfuse.Error, match=r"axis 0 of T0 \(size 2\) is on mesh_x as a whole"):
        fd.check(mesh=3)


def test_several_meshes_are_not_replaced():
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4])
        y = fd.ops.set(x)
        fd.add_output(y)
        place(DeviceMesh([0]), x)
        place(DeviceMesh([1]), y)
    assert fd.check().examples == 20
    with pytest.raises(meshfuse.Error, match="the program has 2 meshes"):
        fd.check(mesh=2)


def test_examples_must_be_positive():
    with pytest.raises(meshfuse.Error, match=r"examples is 0. Give a number of at least 1"):
        row_parallel().check(examples=0)


# ---- what is found


def break_results(monkeypatch, change):
    """Let ``change`` alter the results of runs on more than one device."""
    real = check_run.run_on_mesh

    def run(fd, inputs, strides, devices):
        results = real(fd, inputs, strides, devices)
        if devices > 1:
            change(fd, results)
        return results

    monkeypatch.setattr(check_run, "run_on_mesh", run)


def spoil_last(fd, results):
    """Add 1 to the last device's part of every matrix of three rows or more."""
    results[-1][:] = [r + 1 if r.dim() == 2 and r.size(0) >= 3 else r for r in results[-1]]


def test_wrong_part_is_found_and_shrunk(monkeypatch):
    break_results(monkeypatch, spoil_last)
    with pytest.raises(CheckFailure, match=r"result 0 \(T\d\) on device 1 is") as caught:
        row_parallel().check()
    failure = caught.value
    assert isinstance(failure, AssertionError)
    assert failure.sizes["T0.0"] == 3 and failure.sizes["T0.1"] in (0, 2)
    assert failure.program.count("\n") == 4  # two inputs, the product, and return
    assert failure.script in str(failure) and failure.program in str(failure)


def test_smallest_program_keeps_what_matters(monkeypatch):
    """A fault that needs an add is shown by a program that has one."""

    def spoil(fd, results):
        if "add(" in fd.ir():
            spoil_last(fd, results)

    break_results(monkeypatch, spoil)
    with pytest.raises(CheckFailure) as caught:
        row_parallel().check()
    assert "add(" in caught.value.program and "relu(" not in caught.value.program


def test_exception_on_the_mesh_is_a_failure(monkeypatch):
    def fail(fd, results):
        raise meshfuse.InternalError("lost a part")

    break_results(monkeypatch, fail)
    with pytest.raises(CheckFailure, match="InternalError: lost a part") as caught:
        row_parallel().check()
    assert isinstance(caught.value.__cause__, meshfuse.InternalError)


def test_wrong_dtype_is_found(monkeypatch):
    def widen(fd, results):
        results[0][:] = [r.double() for r in results[0]]

    break_results(monkeypatch, widen)
    with pytest.raises(CheckFailure, match=r"on device 0 is torch.float64 of shape"):
        row_parallel().check()


@pytest.mark.parametrize("relative", [1e-3, 1e-5])
def test_small_errors_are_found(monkeypatch, relative):
    def scale(fd, results):
        results[0][:] = [r * (1 + relative) for r in results[0]]

    break_results(monkeypatch, scale)
    with pytest.raises(CheckFailure):
        row_parallel().check()
    assert row_parallel().check(rtol=10 * relative).examples == 20


def test_script_runs_by_itself(monkeypatch):
    """It passes in a library without the fault, and shows the fault in one with it."""
    break_results(monkeypatch, spoil_last)
    with pytest.raises(CheckFailure) as caught:
        row_parallel().check()
    script = caught.value.script
    with pytest.raises(AssertionError, match="result 0 on device 1"):
        exec(
            compile(
                script.replace("meshfuse.check import", "meshfuse.check_run import", 1)
                .replace(" random_values,", "")
                .replace(
                    "import torch\n",
                    "import torch\nfrom meshfuse.check_inputs import random_values\n",
                    1,
                ),
                "script",
                "exec",
            ),
            {},
        )
    monkeypatch.undo()
    subprocess.run([sys.executable, "-c", script], check=True)


def test_refusal_is_raised_and_not_logged(caplog):
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, 4])
        fd.add_output(fd.ops.relu(x))
        place(PAIR, x)
        x.merge(0, 1)
        shard(x, 0, 2)
    with caplog.at_level(logging.ERROR), pytest.raises(meshfuse.Error, match="NonRectangularShard"):
        fd.check()
    assert caplog.records == []


def test_inputs_larger_than_memory():
    largest = (1 << 63) - 1
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([largest, largest])))
    with pytest.raises(
        meshfuse.Error,
        match=r"check: inputs of \d{39} bytes on 1 simulated device need three times as much "
        r"memory, but this machine has \d+ bytes. Check the program with smaller sizes.",
    ):
        fd.check()


def test_inputs_that_never_fit():
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([-1, 4]), fd.define_tensor([3, 4])
        fd.add_output(fd.ops.add(x, y))
    assert {s["T0.0"] for s in fd.check().sizes} == {3}


# ---- the parts


def programs_of_golden_files():
    programs = []
    for file in sorted(GOLDEN.glob("*.mf")):
        for part in re.split(r"^// case: .*\n", file.read_text(), flags=re.MULTILINE)[1:]:
            programs.append(part.split("// ----")[0])
    return programs


@pytest.mark.parametrize("text", programs_of_golden_files())
def test_text_form_of_a_program(text):
    """It is printed as it was read; without annotations and in float64 it is still a program."""
    program = parse(text)
    assert str(program) == text
    for other in (unsharded(program), in_double(unsharded(program))):
        assert meshfuse.parse_ir(str(other)).ir()
    kept = program.keep_results([program.results[0]])
    assert meshfuse.parse_ir(str(kept)).ir() == str(kept)


@pytest.mark.parametrize("mesh", [2, 4, (2, 2), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("text", programs_of_golden_files())
def test_program_on_another_mesh(text, mesh):
    """What is carried over is a program on that mesh, and back again the same program."""
    shape = (mesh,) if isinstance(mesh, int) else mesh
    other = DeviceMesh(torch.arange(math.prod(shape)).reshape(shape))
    try:
        moved = remesh(parse(text), other)
    except meshfuse.Error as error:
        assert re.match(r"check: .*\. [A-Z].*\.$", str(error))
        return
    assert meshfuse.parse_ir(str(moved)).ir() == str(moved)
    old = parse(text).meshes()
    if old and len(mesh_shape(old[0])) == len(shape):
        back = remesh(
            moved, DeviceMesh(torch.tensor(mesh_devices(old[0])).reshape(mesh_shape(old[0])))
        )
        assert str(back) == text


def test_lay_out():
    t = torch.arange(6.0).reshape(2, 3)
    assert lay_out(t, (1, 0), (1, 1)).stride() == (1, 2)
    assert lay_out(t, (0, 1), (1, 2)).stride() == (6, 2)
    assert torch.equal(lay_out(t, (1, 0), (3, 2)), t)
    wide = lay_out(t[:1].expand(4, 3), (0, 1), (1, 1), (0,))
    assert wide.stride() == (0, 1) and torch.equal(wide, t[:1].expand(4, 3))
    assert lay_out(t[:0], (0, 1), (1, 1), (0,)).shape == (0, 3)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16, torch.float64], ids=str)
def test_random_values_are_exact(dtype):
    values = random_values([100], dtype, seed=1)
    assert torch.equal(values.double(), random_values([100], torch.float64, seed=1))
    assert values.double().abs().max() <= 2

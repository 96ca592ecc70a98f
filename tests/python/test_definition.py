# SPDX-License-Identifier: BSD-3-Clause
"""FusionDefinition: both styles, the order of its life, and its messages."""

from __future__ import annotations

import gc
import re
import threading
import weakref

import pytest
import torch

import meshfuse
from meshfuse import DataType, DeviceMesh, FusionDefinition, ParallelType, TensorView


class ColumnParallel(FusionDefinition):
    """The seed's program: a weight whose columns are divided over the mesh."""

    def __init__(self, d, b=2, s=3, e=4):
        super().__init__()
        self.d, self.sizes = d, (b, s, e)
        self.mesh = DeviceMesh(range(d))
        self.scheduled = 0

    def definition(self):
        b, s, e = self.sizes
        self.inp = self.define_tensor([b, s, e])
        self.weight = self.define_tensor([e, self.d * e])
        self.out = self.ops.matmul(self.inp, self.weight)
        self.add_output(self.out)

    def multidevice_schedule(self):
        self.scheduled += 1
        for t in [self.inp, self.weight, self.out]:
            self.sched._set_device_mesh(t, self.mesh)
        self.sched.split(self.weight, -1, self.d, False)
        self.sched.parallelize(self.weight, -2, ParallelType.mesh_x)
        self.sched.set_allocation_as_loop(self.weight)
        self.sched.split(self.out, -2, self.d, False)
        self.sched.parallelize(self.out, -3, ParallelType.mesh_x)
        self.sched.set_allocation_as_loop(self.out)


@pytest.mark.parametrize("d", [1, 2, 3, 4])
def test_class_style_column_parallel(d):
    """Each device returns its columns; the joined result equals torch.matmul."""
    fd = ColumnParallel(d)
    inp, weight = torch.randn(2, 3, 4), torch.randn(4, 4 * d)
    with meshfuse.simulate(d) as sim:
        (out,) = sim.run(fd, [inp, weight])
        assert sim.local(output=0, device=d - 1).shape == (2, 3, 4)
    torch.testing.assert_close(out, inp @ weight)


def test_class_style_schedule_runs_once():
    """A second execute neither defines nor splits again."""
    fd = ColumnParallel(1)
    inp, weight = torch.randn(2, 3, 4), torch.randn(4, 4)
    for _ in range(3):
        (out,) = fd.execute([inp, weight])
        torch.testing.assert_close(out, inp @ weight)
    assert fd.scheduled == 1
    assert fd.fec.stats()["compiles"] == 1


def test_direct_style_matmul():
    """Ops and scheduling mix inside the block; handles stay valid after it."""
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([-1, 4]), fd.define_tensor([4, 6])
        out = fd.ops.matmul(a, b)
        fd.add_output(out)
    x, y = torch.randn(3, 4), torch.randn(4, 6)
    (result,) = fd.execute([x, y])
    torch.testing.assert_close(result, x @ y)
    assert [axis.is_reduction() for axis in out.get_loop_domain()] == [False, False, True]
    assert out.ndim == 2
    assert fd.fusion.inputs() == [a, b]


def test_class_as_context_manager():
    """A class-style object may be defined in a block too."""
    with ColumnParallel(1) as fd:
        x = fd.define_tensor([4])
        fd.add_output(fd.ops.relu(x))
    (out,) = fd.execute([torch.tensor([-1.0, 2.0, -3.0, 4.0])])
    assert out.tolist() == [0.0, 2.0, 0.0, 4.0]


def test_free_ops_use_the_active_definition():
    """meshfuse.ops adds to the innermost open definition."""
    with FusionDefinition() as outer:
        x = outer.define_tensor([4])
        with FusionDefinition() as inner:
            y = inner.define_tensor([3])
            inner.add_output(meshfuse.ops.relu(y))
        outer.add_output(meshfuse.ops.neg(x))
    assert inner.execute([torch.tensor([-1.0, 0.0, 1.0])])[0].tolist() == [0.0, 0.0, 1.0]
    assert outer.execute([torch.ones(4)])[0].tolist() == [-1.0] * 4


def test_outer_definition_stays_open_inside_an_inner_one():
    """fd.ops adds to fd, whatever definition is innermost."""
    with FusionDefinition() as outer:
        x = outer.define_tensor([2])
        with FusionDefinition() as inner:
            y = outer.ops.neg(x)
            inner.add_output(inner.ops.neg(inner.define_tensor([2])))
        outer.add_output(y)
    assert outer.execute([torch.ones(2)])[0].tolist() == [-1.0, -1.0]


def test_definitions_in_two_threads():
    """The stack of active definitions belongs to the thread."""
    results, barrier = {}, threading.Barrier(2)

    def work(n):
        with FusionDefinition() as fd:
            x = fd.define_tensor([n])
            barrier.wait(timeout=30)
            fd.add_output(meshfuse.ops.neg(x))
            barrier.wait(timeout=30)
        results[n] = fd.execute([torch.ones(n)])[0].tolist()

    threads = [threading.Thread(target=work, args=(n,)) for n in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {2: [-1.0] * 2, 3: [-1.0] * 3}


def test_op_after_close():
    with FusionDefinition() as fd:
        x = fd.define_tensor([4])
        fd.add_output(x)
    with pytest.raises(RuntimeError, match="Attempting to add to a completed definition"):
        fd.ops.relu(x)
    with pytest.raises(RuntimeError, match="Attempting to add to a completed definition"):
        x + x


def test_sched_inside_definition_hook():
    class Early(FusionDefinition):
        def definition(self):
            x = self.define_tensor([4])
            self.sched.split(x, 0, 2)

    with pytest.raises(
        RuntimeError, match="Attempting to use a SchedOperators Op prior to definition!"
    ):
        Early().execute([torch.ones(4)])


@pytest.mark.parametrize(
    "call",
    [
        lambda fd: fd.define_tensor([4]),
        lambda fd: fd.define_scalar(1),
        lambda fd: fd.define_constant(1),
        lambda fd: fd.define_vector([1]),
        lambda fd: fd.from_pytorch(torch.ones(4)),
        lambda fd: fd.ops.relu(None),
        lambda fd: meshfuse.ops.relu(None),
    ],
)
def test_call_outside_a_definition(call):
    with pytest.raises(RuntimeError, match="must be called from an initialized definition"):
        call(FusionDefinition())


def test_entering_twice():
    with FusionDefinition() as fd:
        fd.add_output(fd.define_tensor([4]))
    with pytest.raises(RuntimeError, match="Fusion Schedule is already found!"):
        fd.__enter__()


def test_max_length():
    with pytest.raises(RuntimeError, match="more than 2 records"):
        with FusionDefinition(max_length=2) as fd:
            for _ in range(3):
                fd.define_tensor([4])


def test_schedule_and_multidevice_schedule():
    class Both(ColumnParallel):
        def schedule(self): ...

    with pytest.raises(AssertionError, match="not both"):
        Both(1).execute([torch.ones(2, 3, 4), torch.ones(4, 4)])


def test_user_schedule_is_refused_or_ignored(monkeypatch):
    class Scheduled(FusionDefinition):
        def definition(self):
            self.add_output(self.ops.neg(self.define_tensor([2])))

        def schedule(self):
            raise AssertionError("must not run")

    with pytest.raises(meshfuse.UnsupportedError, match="override_user_schedule=True"):
        Scheduled().execute([torch.ones(2)])
    with pytest.warns(UserWarning, match="is ignored"):
        (out,) = Scheduled().execute([torch.ones(2)], override_user_schedule=True)
    assert out.tolist() == [-1.0, -1.0]
    monkeypatch.setenv("MESHFUSE_IGNORE_USER_SCHEDULE", "1")
    with pytest.warns(UserWarning, match="is ignored"):
        Scheduled().execute([torch.ones(2)])


@pytest.mark.parametrize("kind", [FusionDefinition, type("Empty", (FusionDefinition,), {})])
def test_undefined(kind):
    message = "Fusion does not exist! Use `with FusionDefinition() as fd: ...` to define a fusion."
    with pytest.raises(NotImplementedError, match=re.escape(message)):
        kind().execute([])


def test_no_outputs():
    with FusionDefinition() as fd:
        fd.define_tensor([4])
    with pytest.raises(NotImplementedError, match="Fusion is empty!"):
        fd.execute([torch.ones(4)])


def test_exception_in_the_block_is_logged_once_and_passes(caplog):
    with pytest.raises(ZeroDivisionError):
        with FusionDefinition() as fd:
            fd.define_tensor([4])
            raise ZeroDivisionError("stop")
    assert [r.levelname for r in caplog.records if r.name == "meshfuse"] == ["ERROR"]
    assert "ZeroDivisionError: stop" in caplog.text
    assert fd.fusion is None


def test_failed_hook_leaves_nothing():
    class Twice(FusionDefinition):
        tries = 0

        def definition(self):
            self.tries += 1
            x = self.define_tensor([2])
            if self.tries == 1:
                raise KeyError("first")
            self.add_output(self.ops.neg(x))

    fd = Twice()
    with pytest.raises(KeyError):
        fd.execute([torch.ones(2)])
    assert fd.execute([torch.ones(2)])[0].tolist() == [-1.0, -1.0]


def test_attributes():
    fd = FusionDefinition()
    assert fd.fusion is None and not hasattr(fd, "fec")
    with fd:
        fd.w = fd.define_tensor([2])
        fd.add_output(fd.ops.neg(fd.w))
    assert isinstance(fd.fusion, meshfuse.Fusion)
    fd.execute([torch.ones(2)])
    assert hasattr(fd, "fec")
    del fd._fusion
    assert fd.execute([torch.ones(2)])[0].tolist() == [-1.0, -1.0]
    assert hasattr(FusionDefinition.Operators, "matmul")
    assert hasattr(FusionDefinition.SchedOperators, "_set_device_mesh")


def test_definition_does_not_leak():
    """Dropping a definition frees it without the garbage collector."""
    gc.disable()
    try:
        with FusionDefinition() as fd:
            fd.add_output(fd.ops.neg(fd.define_tensor([2])))
        fd.execute([torch.ones(2)])
        gone = weakref.ref(fd)
        del fd
        assert gone() is None
    finally:
        gc.enable()


def test_tensor_outlives_its_definition():
    def make():
        with FusionDefinition() as fd:
            return fd.define_tensor([2, 3])

    tv = make()
    gc.collect()
    assert "T0" in str(tv)
    assert [str(axis.extent()) for axis in tv.get_loop_domain()] == ["2", "3"]


def test_identity_and_hash():
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([2]), fd.define_tensor([2])
        fd.add_output(fd.ops.add(a, b))
    again = fd.fusion.inputs()[0]
    assert a == again and not a != again and a != b
    assert {a: "a", b: "b"}[again] == "a"
    assert (a == None) is False  # noqa: E711


def test_ops_are_named_and_documented():
    function = FusionDefinition.Operators.matmul
    assert function.__name__ == "matmul"
    assert "matmul(arg1: TensorView, arg2: TensorView)" in function.__doc__
    assert meshfuse.ops.matmul.__name__ == "matmul"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda fd, x: fd.ops.matmul(x), "matmul(): incompatible function arguments"),
        (lambda fd, x: fd.ops.matmul(x, 1), "matmul(): incompatible function arguments"),
        (lambda fd, x: fd.ops.matmul(x, x, x), "matmul(): incompatible function arguments"),
        (lambda fd, x: fd.ops.matmul(x, c=x), "matmul(): incompatible function arguments"),
        (lambda fd, x: fd.ops.permute(x, 1.5), "permute(): incompatible function arguments"),
        (lambda fd, x: fd.ops.permute(x, [2**70]), "permute(): incompatible function arguments"),
        (lambda fd, x: fd.ops.sum(x, 0.5), "sum(): incompatible function arguments"),
    ],
)
def test_wrong_op_arguments(call, text):
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 4])
        with pytest.raises(TypeError) as caught:
            call(fd, x)
    assert text in str(caught.value)
    assert "The following argument types are supported:\n    1. " in str(caught.value)
    assert "Invoked with: " in str(caught.value)


@pytest.mark.parametrize(
    ("args", "kwargs", "want"),
    [
        ((), {}, lambda x: x.sum()),
        ((0,), {}, lambda x: x.sum(0)),
        (([0, -1],), {}, lambda x: x.sum((0, 1))),
        ((), {"dim": 1}, lambda x: x.sum(1)),
        ((), {"dims": [1]}, lambda x: x.sum(1)),
        ((1, True), {}, lambda x: x.sum(1, keepdim=True)),
        ((DataType.Double,), {}, lambda x: x.double().sum()),
        (([1],), {"dtype": DataType.Double}, lambda x: x.double().sum(1)),
    ],
)
def test_op_arguments_are_matched_greedily(args, kwargs, want):
    with FusionDefinition() as fd:
        x = fd.define_tensor([3, 4])
        fd.add_output(fd.ops.sum(x, *args, **kwargs))
    value = torch.randn(3, 4)
    (out,) = fd.execute([value])
    torch.testing.assert_close(out, want(value))


@pytest.mark.parametrize(
    ("operation", "want"),
    [
        (lambda x, y: x + y, lambda x, y: x + y),
        (lambda x, y: x - y, lambda x, y: x - y),
        (lambda x, y: x * y, lambda x, y: x * y),
        (lambda x, y: x / y, lambda x, y: x / y),
        (lambda x, y: -x, lambda x, y: -x),
        (lambda x, y: abs(x), lambda x, y: abs(x)),
        (lambda x, y: 2.0 - x, lambda x, y: 2.0 - x),
        (lambda x, y: x * 3, lambda x, y: x * 3),
        (lambda x, y: x < y, lambda x, y: x < y),
        (lambda x, y: x == 1.0, lambda x, y: x == 1.0),
    ],
)
def test_python_operators(operation, want):
    with FusionDefinition() as fd:
        x, y = fd.define_tensor([3]), fd.define_tensor([3])
        result = operation(x, y)
        assert isinstance(result, TensorView)
        fd.add_output(result)
    a, b = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([2.0, -2.0, 0.5])
    (out,) = fd.execute([a, b])
    torch.testing.assert_close(out, want(a, b))


def test_python_operator_of_products():
    """``x @ w`` is matmul, with its messages."""
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, 3]), fd.define_tensor([3, -1])
        y = x @ w
        fd.add_output(y)
        with pytest.raises(meshfuse.Error, match="matmul: "):
            x @ fd.define_tensor([4, 2])
    assert y.definition().op == "matmul"
    a, b = torch.randn(2, 3), torch.randn(3, 4)
    torch.testing.assert_close(fd.execute([a, b, torch.ones(4, 2)])[0], a @ b)
    with pytest.raises(meshfuse.Error, match="matmul: an op must be called from an initialized"):
        x @ w


@pytest.mark.parametrize(
    "operation", [lambda x: x + "text", lambda x: x @ 2, lambda x: torch.ones(3) @ x]
)
def test_operator_of_unfit_operands(operation):
    with FusionDefinition() as fd:
        x = fd.define_tensor([3])
        with pytest.raises(TypeError, match="unsupported operand"):
            operation(x)


def test_tensors_of_two_definitions_do_not_mix():
    with FusionDefinition() as one:
        x = one.define_tensor([3])
    with FusionDefinition() as two:
        y = two.define_tensor([3])
        with pytest.raises(RuntimeError, match="belongs to another definition"):
            two.ops.add(x, y)


def test_text_form_round_trip():
    fd = ColumnParallel(2)
    again = meshfuse.parse_ir(fd.ir())
    assert again.ir() == fd.ir()
    assert again.fusion == fd.fusion
    inp, weight = torch.randn(2, 3, 4), torch.randn(4, 8)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(again, [inp, weight])
    torch.testing.assert_close(out, inp @ weight)


def test_texts_of_a_definition():
    fd = ColumnParallel(1)
    with pytest.raises(RuntimeError, match="Invalid fusion definition!"):
        FusionDefinition().last_scheduled_fusion_ir()
    assert "matmul" in fd.ir() and "matmul" in fd.compiled_ir()
    with pytest.raises(RuntimeError, match="Invalid fusion definition!"):
        fd.plan()
    fd.execute([torch.ones(2, 3, 4), torch.ones(4, 4)])
    assert "matmul" in fd.plan() and "matmul" in fd.last_scheduled_fusion_ir()
    assert (fd.inputs(), fd.outputs(), fd.id()) == ([0, 1], [2], None)
    assert fd.validate_definition() == (True, None)


def test_validate_definition_says_what_is_wrong():
    valid, text = FusionDefinition().validate_definition()
    assert not valid and "Fusion does not exist!" in text


def test_reduce_dtype_must_be_a_floating_type():
    with pytest.raises(meshfuse.Error, match=r"reduce_dtype: .*int"):
        FusionDefinition(reduce_dtype=DataType.Int).__enter__()


@pytest.mark.parametrize(
    "call",
    [
        lambda fd: fd.last_cuda_code(),
        lambda fd: fd.cuda_code_for([]),
        lambda fd: fd.manual_execute([]),
        lambda fd: fd.sched.inline_most(),
        lambda fd: fd.sched.schedule(),
        lambda fd: fd.fusion.print_kernel(),
    ],
)
def test_cuda_only_calls(call):
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([2])))
    with pytest.raises(meshfuse.UnsupportedError, match="ATen"):
        call(fd)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1j, DataType.Float),
        (float("inf"), DataType.Int),
        (float("nan"), DataType.Int),
        (3.5, DataType.Int),
        (-1, DataType.UInt64),
        (1e300, DataType.Float),
        (2**40, DataType.Int32),
        (70000.0, DataType.Half),
    ],
)
def test_constants_that_the_type_cannot_hold_are_refused(value, dtype):
    """A constant is never changed silently."""
    with (
        FusionDefinition() as fd,
        pytest.raises(meshfuse.Error, match="is not compatible with the expected data type"),
    ):
        fd.define_scalar(value, dtype)


def test_nothing_in_place_of_an_object_is_refused():
    """None where an object of the library is needed is a Python exception."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        with pytest.raises(meshfuse.Error, match="one of the axes given for T0 is None"):
            x.set_loop_domain([None, None])
        fd.add_output(fd.ops.neg(x))
    with pytest.raises(TypeError):
        meshfuse.FusionExecutorCache(None)
    with pytest.raises(IndexError, match="there are 1 tensors"):
        fd.fusion.outputs()[0].definition().input(7)


def test_tensors_of_another_fusion_are_refused():
    """Inputs and outputs belong to the program that they are added to."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4])
        fd.add_output(fd.ops.neg(x))
    other = meshfuse.Fusion()
    for add in (other.add_input, other.add_output):
        with pytest.raises(meshfuse.Error, match="T0 belongs to another definition"):
            add(x)
    with pytest.raises(meshfuse.Error, match="is an input already"):
        fd.fusion.add_input(x)

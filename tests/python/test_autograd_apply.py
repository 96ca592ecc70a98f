# SPDX-License-Identifier: BSD-3-Clause
"""Definitions as functions of torch autograd: what gradients flow where, and what is refused."""

from __future__ import annotations

import threading

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

import meshfuse
from meshfuse import DataType, FusionDefinition, autograd


def define(count, body, sizes=(-1,), dtype=DataType.Float, **options):
    """Return a definition of ``count`` tensors; ``body(ops, *tensors)`` gives its outputs."""
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(list(sizes), dtype=dtype, **options) for _ in range(count)]
        for output in body(fd.ops, *tensors):
            fd.add_output(output)
    return fd


def square(dtype=DataType.Float):
    return define(1, lambda ops, x: [ops.mul(x, x)], dtype=dtype)


def square_backward(dtype=DataType.Float):
    return define(2, lambda ops, g, x: [ops.mul(ops.mul(g, x), 2.0)], dtype=dtype)


def leaf(*values):
    return torch.tensor(values, requires_grad=True)


def apply_square(x):
    (y,) = autograd.apply(square(), square_backward(), x)
    return y


def test_product_passes_gradcheck():
    """Two inputs, one gradient each; inputs that need none get none."""
    shapes = {"sizes": (-1, -1), "dtype": DataType.Double}
    forward = define(2, lambda ops, x, w: [ops.matmul(x, w)], **shapes)
    backward = define(
        3,
        lambda ops, g, x, w: [
            ops.matmul(g, ops.permute(w, [1, 0])),
            ops.matmul(ops.permute(x, [1, 0]), g),
        ],
        **shapes,
    )
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.double, requires_grad=True)
    w = torch.randn(4, 2, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *t: autograd.apply(forward, backward, *t)[0], (x, w))
    (y,) = autograd.apply(forward, backward, x, w.detach())
    y.sum().backward()
    torch.testing.assert_close(x.grad, w.detach().sum(1).expand(3, 4))
    assert w.grad is None


def test_several_outputs_some_without_gradient():
    """Outputs that are not used have zeros, integer ones no gradient at all."""
    forward = define(
        1,
        lambda ops, x: [ops.mul(x, x), ops.gt(x, 1.0), ops.mul(x, 3.0), ops.cast(x, DataType.Int)],
    )
    backward = define(
        3, lambda ops, g, h, x: [ops.add(ops.mul(ops.mul(g, x), 2.0), ops.mul(h, 3.0))]
    )
    x = leaf(1.0, 3.0)
    y, larger, tripled, whole = autograd.apply(forward, backward, x)
    assert larger.tolist() == [False, True] and not larger.requires_grad
    assert whole.dtype == torch.int64 and not whole.requires_grad
    tripled.sum().backward(retain_graph=True)
    assert x.grad.tolist() == [3, 3]
    y.sum().backward()
    assert x.grad.tolist() == [5, 9]


def test_numbers_and_integer_inputs():
    """Only floating tensors have a place among a backward definition's outputs."""
    with FusionDefinition() as forward:
        x = forward.define_tensor([-1])
        index = forward.define_tensor([-1], dtype=DataType.Int)
        factor = forward.define_scalar(DataType.Double)
        forward.add_output(forward.ops.mul(forward.ops.index_select(x, index, 0), factor))
    with FusionDefinition() as backward:
        g, x = backward.define_tensor([-1]), backward.define_tensor([-1])
        index = backward.define_tensor([-1], dtype=DataType.Int)
        factor = backward.define_scalar(DataType.Double)
        zeros = backward.ops.mul(x, 0.0)
        backward.add_output(backward.ops.scatter(zeros, index, backward.ops.mul(g, factor), 0))
    x, index = leaf(1.0, 2.0, 3.0), torch.tensor([2, 0])
    (y,) = autograd.apply(forward, backward, x, index, 4.0)
    assert y.tolist() == [12, 4]
    (y * torch.tensor([1.0, 10.0])).sum().backward()
    assert x.grad.tolist() == [40, 0, 4]
    (y,) = autograd.apply(forward, backward, x, [index, 4.0])  # lists are flattened
    assert y.requires_grad and y.tolist() == [12, 4]


def test_function_as_backward():
    """It is given gradients, then inputs, and may return None."""
    forward = define(2, lambda ops, x, y: [ops.mul(x, y)])
    seen = []

    def backward(grad, x, y):
        seen.append((grad.tolist(), x.tolist(), y.tolist(), torch.is_grad_enabled()))
        return grad * y, None

    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    autograd.apply(forward, backward, x, y)[0].sum().backward()
    assert seen == [([1, 1], [1, 2], [3, 4], False)]
    assert x.grad.tolist() == [3, 4] and y.grad is None
    (only,) = autograd.apply(square(), lambda grad, x: 2 * grad * x, x)
    assert torch.autograd.grad(only.sum(), x)[0].tolist() == [2, 4]
    (none,) = autograd.apply(square(), lambda grad, x: None, x)
    assert torch.autograd.grad(none.sum(), x, allow_unused=True) == (None,)


def test_gradient_of_another_type_becomes_that_of_the_input():
    """Products of bfloat16 are Float in a definition."""
    forward = define(1, lambda ops, x: [ops.mul(x, 2.0)], dtype=DataType.BFloat16)
    with FusionDefinition() as backward:
        g = backward.define_tensor([-1])
        backward.define_tensor([-1], dtype=DataType.BFloat16)
        backward.add_output(backward.ops.mul(g, 2.0))
    x = torch.ones(3, dtype=torch.bfloat16, requires_grad=True)
    (y,) = autograd.apply(forward, backward, x)
    y.sum().backward()
    assert x.grad.dtype == torch.bfloat16 and x.grad.tolist() == [2, 2, 2]


def test_gradients_come_in_the_memory_order_of_outputs():
    """A definition that declares contiguous gradients takes those that autograd expands."""
    shapes = {"sizes": (-1, -1)}
    forward = define(1, lambda ops, x: [ops.mul(x, 2.0)], **shapes)
    backward = define(2, lambda ops, g, x: [ops.mul(g, 2.0)], contiguity=True, **shapes)
    x = torch.ones(2, 3, requires_grad=True)
    (y,) = autograd.apply(forward, backward, x)
    y.sum().backward()
    assert x.grad.tolist() == [[2.0] * 3] * 2
    (y,) = autograd.apply(forward, backward, x)
    y.t().backward(torch.ones(3, 2))
    assert x.grad.tolist() == [[4.0] * 3] * 2


def test_output_that_is_an_input():
    forward = define(1, lambda ops, x: [x, ops.mul(x, x)])
    backward = define(3, lambda ops, g, h, x: [ops.add(g, ops.mul(ops.mul(h, x), 2.0))])
    x = leaf(1.0, 3.0)
    same, squared = autograd.apply(forward, backward, x)
    assert same is not x and same.data_ptr() == x.data_ptr()
    (same.sum() + 2 * squared.sum()).backward()
    assert x.grad.tolist() == [5, 13]


def test_output_that_is_given_twice():
    with FusionDefinition() as forward:
        x = forward.define_tensor([-1])
        y = forward.ops.mul(x, x)
        for output in (y, y, x, x):
            forward.add_output(output)
    backward = define(
        5,
        lambda ops, g, h, k, m, x: [
            ops.add(ops.mul(ops.mul(ops.add(g, h), x), 2.0), ops.add(k, m))
        ],
    )
    x = leaf(1.0, 3.0)
    outputs = autograd.apply(forward, backward, x)
    sum(i * output.sum() for i, output in enumerate(outputs, start=1)).backward()
    assert x.grad.tolist() == [(1 + 2) * 2 + 3 + 4, (1 + 2) * 6 + 3 + 4]


def test_result_written_into_an_input():
    """Of buffers that need no gradient it is fine, of others it would spoil the graph."""
    with FusionDefinition() as forward:
        x, total = forward.define_tensor([-1]), forward.define_tensor([-1])
        forward.add_output(forward.ops.mul(x, 2.0))
        forward.add_output(forward.ops.add(total, x), total)
    backward = define(3, lambda ops, g, x, total: [ops.mul(g, 2.0), ops.mul(total, 0.0)])
    x, total = leaf(1.0, 3.0), torch.ones(2)
    (y,) = autograd.apply(forward, backward, x, total)
    y.sum().backward()
    assert total.tolist() == [2, 4] and x.grad.tolist() == [2, 2]
    with pytest.raises(meshfuse.Error, match="writes a result into input 1, which requires grad"):
        autograd.apply(forward, backward, x, x * 1)


def overwriting(target):
    """Return a gradient of ``square`` that writes a result into the gradient (0) or into x (1)."""
    with FusionDefinition() as fd:
        g, x = (fd.define_tensor([-1]) for _ in range(2))
        of_x = fd.ops.mul(fd.ops.mul(g, x), 2.0)
        fd.add_output(of_x)
        fd.add_output(fd.ops.mul(of_x, 3.0), alias_input=(g, x)[target])
    return fd


def test_gradients_are_not_overwritten():
    """They are torch's: a definition that writes into them is given copies."""
    x, grad = leaf(1.0, 3.0), torch.ones(2)
    (y,) = autograd.apply(square(), overwriting(0), x)
    y.backward(grad)
    assert grad.tolist() == [1, 1] and x.grad.tolist() == [2, 6]


def test_backward_that_overwrites_an_input():
    """A buffer of the caller's may take a result, a tensor that requires grad may not."""
    forward = define(2, lambda ops, x, total: [ops.mul(x, 2.0)])
    with FusionDefinition() as backward:
        g, _, total = (backward.define_tensor([-1]) for _ in range(3))
        of_x = backward.ops.mul(g, 2.0)
        backward.add_output(of_x)
        backward.add_output(backward.ops.mul(g, 0.0))
        backward.add_output(backward.ops.add(total, of_x), alias_input=total)
    x, total = leaf(1.0, 3.0), torch.ones(2)
    autograd.apply(forward, backward, x, total)[0].sum().backward()
    assert total.tolist() == [3, 3] and x.grad.tolist() == [2, 2]
    with pytest.raises(meshfuse.Error) as caught:
        autograd.apply(square(), overwriting(1), x)
    assert str(caught.value) == (
        "autograd.apply: fd_backward (T0, T1 -> T3, T4) writes a result into input 0 of "
        "fd_forward (T0 -> T1), which requires grad and belongs to the caller. Add the result as "
        "an ordinary output, or leave it out."
    )


def test_without_gradients():
    """Nothing is recorded where nothing needs a gradient, in no_grad and inference_mode."""
    x = leaf(1.0, 3.0)
    assert not apply_square(x.detach()).requires_grad
    with torch.no_grad():
        assert not apply_square(x).requires_grad
    with torch.inference_mode():
        assert apply_square(x).is_inference()


def test_retained_graph():
    x = leaf(1.0, 3.0)
    y = apply_square(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert x.grad.tolist() == [4, 12]
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.sum().backward()


def test_input_changed_after_the_call():
    z = leaf(1.0, 3.0) * 1
    y = apply_square(z)
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_output_changed_in_place():
    x = leaf(1.0, 3.0)
    apply_square(x).mul_(3).sum().backward()
    assert x.grad.tolist() == [6, 18]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    x = leaf(1.0, 3.0)
    checkpoint(lambda x: apply_square(apply_square(x)), x, use_reentrant=reentrant).sum().backward()
    assert x.grad.tolist() == [4, 108]


def test_backward_in_another_thread_beside_a_definition():
    """The stack of open definitions is each thread's own."""
    x = leaf(1.0, 3.0)
    y = apply_square(x).sum()
    with FusionDefinition() as open_definition:
        a = open_definition.define_tensor([-1])
        thread = threading.Thread(target=y.backward)
        thread.start()
        thread.join()
        open_definition.add_output(open_definition.ops.neg(a))
    assert x.grad.tolist() == [2, 6]
    assert open_definition.execute([torch.ones(1)])[0].tolist() == [-1]


def test_autocast_does_not_reach_in():
    """Types are those that the definitions declare, to the last bit."""
    shapes = {"sizes": (-1, -1)}
    forward = define(2, lambda ops, x, w: [ops.matmul(x, w)], **shapes)
    backward = define(
        3,
        lambda ops, g, x, w: [
            ops.matmul(g, ops.permute(w, [1, 0])),
            ops.matmul(ops.permute(x, [1, 0]), g),
        ],
        **shapes,
    )
    torch.manual_seed(0)
    x, w = (torch.randn(64, 64, requires_grad=True) for _ in range(2))
    (want,) = autograd.apply(forward, backward, x, w)
    wanted = torch.autograd.grad(want.sum(), (x, w))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (y,) = autograd.apply(forward, backward, x, w)
        found = torch.autograd.grad(y.sum(), (x, w))
    assert torch.equal(y, want)
    for a, b in zip(found, wanted, strict=True):
        assert torch.equal(a, b)


def test_gradients_of_gradients_are_refused():
    x = leaf(1.0, 3.0)
    (grad,) = torch.autograd.grad(apply_square(x).sum(), x, create_graph=True)
    assert grad.tolist() == [2, 6]
    with pytest.raises(meshfuse.Error) as caught:
        grad.sum().backward()
    assert str(caught.value) == (
        "autograd.apply(fd_forward (T0 -> T1), ...): gradients of its gradients are not available: "
        "the backward pass is a program that has none of its own. Call backward or "
        "torch.autograd.grad without create_graph=True, or write this part with torch operations."
    )


@pytest.mark.parametrize(
    "transform", [torch.vmap, torch.func.grad, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))]
)
def test_transforms_are_refused(transform):
    with pytest.raises(meshfuse.UnsupportedError, match=r"transforms of torch.func \(vmap, grad"):
        transform(lambda x: apply_square(x).sum())(torch.ones(2))


def test_batch_of_gradients_is_refused():
    x = leaf(1.0, 3.0)
    (y,) = autograd.apply(square(), square_backward(), x)
    with pytest.raises(meshfuse.UnsupportedError) as caught:
        torch.autograd.grad(y, x, torch.ones(5, 2), is_grads_batched=True, retain_graph=True)
    assert str(caught.value) == (
        "autograd.apply(fd_forward (T0 -> T1), ...): its backward pass was given a batch of "
        "gradients (is_grads_batched=True, or vectorize=True of jacobian or hessian), which does "
        "not reach into the operations of a definition. Call torch.autograd.grad once for each "
        "gradient."
    )
    with pytest.raises(meshfuse.UnsupportedError, match=r"transforms of torch\.func"):
        torch.vmap(lambda grad: torch.autograd.grad(y, x, grad, retain_graph=True))(torch.eye(2))
    assert torch.autograd.grad(y.sum(), x)[0].tolist() == [2, 6]


def test_tangents_are_refused():
    """In the forward pass and in the backward one; a level without dual tensors is fine."""
    x = leaf(1.0, 3.0)
    with forward_ad.dual_level():
        (y,) = autograd.apply(square(), square_backward(), x)
        for given in (x, x.detach()):
            dual = forward_ad.make_dual(given, torch.ones(2))
            with pytest.raises(meshfuse.UnsupportedError) as caught:
                autograd.apply(square(), square_backward(), dual)
            assert str(caught.value) == (
                "autograd.apply: input 0 has a tangent of forward-mode AD "
                "(torch.autograd.forward_ad or torch.func.jvp), but programs have none of their "
                "results. Use reverse mode, by meshfuse.autograd.apply or a layer of meshfuse.nn, "
                "or pass the tensor without its tangent: forward_ad.unpack_dual(x).primal."
            )
        grad = forward_ad.make_dual(torch.ones(2), torch.ones(2))
        with pytest.raises(meshfuse.UnsupportedError, match="the gradient of output 0 has a tang"):
            torch.autograd.grad(y, x, grad)


def test_fake_mode_is_refused():
    with FakeTensorMode(), pytest.raises(meshfuse.Error) as caught:
        autograd.apply(square(), square_backward(), leaf(1.0))
    assert str(caught.value) == (
        "autograd.apply: a FakeTensorMode is active, under which tensors have no memory, but the "
        "program reads and sends it. Leave the mode first."
    )


def wrong_count():
    return define(2, lambda ops, g, x: [g, x])


def one_for_two(grad, x):
    return grad, grad


def cut(grad, x):
    return grad[:1]


def text(grad, x):
    return ["gradient"]


@pytest.mark.parametrize(
    ("backward", "message"),
    [
        (
            square,
            "autograd.apply: fd_backward (T0 -> T1) has 1 input, but it is given 2 values: "
            "gradients of the 1 tensor output of floating type of fd_forward (T0 -> T1), then its "
            "1 input. Define inputs for all of them, in this order.",
        ),
        (
            wrong_count,
            "autograd.apply: fd_backward (T0, T1 -> T0, T1) has 2 outputs, but fd_forward "
            "(T0 -> T1) has 1 tensor input of floating type (positions: 0). Add their gradients as "
            "outputs, in this order, or pass a function that returns None for some of them.",
        ),
        (
            lambda: one_for_two,
            "autograd.apply: one_for_two returned 2 gradients, but fd_forward (T0 -> T1) has 1 "
            "input. Return a gradient or None for each of them.",
        ),
        (
            lambda: cut,
            "autograd.apply: the gradient of input 0 of fd_forward (T0 -> T1) that cut returned "
            "has local shape [1], but the input has [2]. Sum over what was broadcast, and divide "
            "the gradient over the mesh as the input is.",
        ),
        (
            lambda: text,
            "autograd.apply: the gradient of input 0 of fd_forward (T0 -> T1) that text returned "
            "is a str. Return a tensor or None.",
        ),
        (
            lambda: define(2, lambda ops, g, x: [ops.sum(g)]),
            "autograd.apply: the gradient of input 0 of fd_forward (T0 -> T1) that fd_backward "
            "(T0, T1 -> T2) returned has local shape [], but the input has [2]. Sum over what was "
            "broadcast, and divide the gradient over the mesh as the input is.",
        ),
    ],
    ids=["inputs", "outputs", "function", "shape", "type", "definition shape"],
)
def test_backward_that_does_not_fit(backward, message):
    with pytest.raises(meshfuse.Error) as caught:
        autograd.apply(square(), backward(), leaf(1.0, 3.0))[0].sum().backward()
    assert str(caught.value) == message


def test_wrong_kinds_of_arguments():
    with pytest.raises(TypeError, match="fd_forward must be a FusionDefinition, but it is a int"):
        autograd.apply(3, square_backward(), leaf(1.0))
    with pytest.raises(TypeError, match="fd_backward must be a FusionDefinition or a function"):
        autograd.apply(square(), 3, leaf(1.0))


def test_class_style():
    """Hooks of classes run when they are needed; messages name the class."""

    class Square(FusionDefinition):
        def definition(self):
            x = self.define_tensor([-1])
            self.add_output(self.ops.mul(x, x))

    forward, x = Square(), leaf(1.0, 3.0)
    autograd.apply(forward, square_backward(), x)[0].sum().backward()
    assert x.grad.tolist() == [2, 6]
    with pytest.raises(meshfuse.Error, match=r"fd_forward \(Square: T0 -> T1\)"):
        autograd.apply(forward, wrong_count(), x)


def test_backward_is_given_inputs_as_they_were():
    """Also one that the forward program overwrites, such as running statistics."""
    with FusionDefinition() as forward:
        w, x = forward.define_tensor([-1]), forward.define_tensor([-1])
        forward.add_output(forward.ops.mul(w, x))
        forward.add_output(forward.ops.add(x, 1.0), alias_input=x)
    w, x = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0])
    (y,) = autograd.apply(forward, lambda grad, w, x: (grad * x, None), w, x)
    assert y.tolist() == [3.0, 8.0] and x.tolist() == [4.0, 5.0]
    y.sum().backward()
    assert w.grad.tolist() == [3.0, 4.0]

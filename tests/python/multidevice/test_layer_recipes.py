# SPDX-License-Identifier: BSD-3-Clause
"""Layers as they are divided in practice: what is sent, and what every device holds.

With one process the bodies run on simulated meshes, under a launcher on its ranks.
"""

from __future__ import annotations

import pytest
import torch
from programs import X, Y, Z, assert_layout, assert_part, communications, lay, part_of, ramp
from torch.nn.functional import linear

from meshfuse import Communicator, DeviceMesh, FusionDefinition

LAUNCHED = Communicator.instance().is_available()
PAIR = DeviceMesh([0, 1])
SQUARE = DeviceMesh(torch.arange(4).reshape(2, 2))


def need(world, mesh):
    if world.size < 1 + max(mesh.devices):
        pytest.skip(f"needs {1 + max(mesh.devices)} devices")


def layer(op, tensors, cuts, mesh, *, out=None, **output):
    """Return the program of one op on tensors like these; ``out``: cuts of a declared result."""
    with FusionDefinition() as fd:
        tvs = [fd.define_tensor(list(t.shape)) for t in tensors]
        result = getattr(fd.ops, op)(*tvs)
        fd.add_output(result, **output)
        for tv, c in zip(tvs, cuts, strict=True):
            lay(tv, mesh, c)
        if out is not None:
            lay(result, mesh, out)
    return fd


# op; sizes of operands; their cuts; cuts of the declared result or None; where the result is
# divided; what is sent. Axis 3 of a linear's result of three axes is its reduction.
BIG = [(2, 1024, 768), (1536, 768), (1536,)]
LONG = [(2, 1024, 1536), (768, 1536), (768,)]
RECIPES = {
    "linear_column_parallel": (
        "linear", BIG, [[], [(0, X)], [(0, X)]], None, [(2, X)], [],
    ),
    "matmul_column_parallel": (
        "matmul", [(2, 1024, 768), (768, 1536)], [[], [(1, X)]], [(2, X)], [(2, X)], [],
    ),
    "linear_row_parallel": (
        "linear", LONG[:2], [[(2, X)], [(1, X)]], None, [], ["all-reduce x"],
    ),
    "linear_row_parallel_bias": (
        "linear", LONG, [[(2, X)], [(1, X)], []], None, [], ["all-reduce x"],
    ),
    "linear_reduce_scatter": (
        "linear", [(3, 10, 14), (7, 14), (7,)], [[(2, X)], [(1, X)], []],
        [(1, X), (3, X)], [(1, X)], ["reduce-scatter x"],
    ),
    "linear_sequence_parallel": (
        "linear", [(2, 1024, 768), (768, 768), (768,)], [[(1, X)], [(0, X)], [(0, X)]],
        [(1, X)], [(1, X)], ["all-gather x", "all-gather x"],
    ),
    "linear_weight_wins": (
        "linear", [(2, 1024, 768), (768, 768)], [[(1, X)], [(0, X)]], None, [(2, X)],
        ["all-gather x"],
    ),
    "matmul_data_parallel": (
        "matmul", [(4, 8), (8, 6)], [[(0, X)], []], None, [(0, X)], [],
    ),
    "add_follows_the_divided": (
        "add", [(4, 6), (4, 6)], [[], [(0, X)]], None, [(0, X)], [],
    ),
    "relu_replicated": ("relu", [(4, 6)], [[(0, X)]], [], [], ["all-gather x"]),
}  # fmt: skip
GRIDS = {
    "matmul_m_on_y_n_on_x": (
        "matmul", [(4, 8), (8, 6)], [[(0, Y)], [(1, X)]], None, [(0, Y), (1, X)], [],
    ),
    "matmul_m_on_y_k_on_x": (
        "matmul", [(4, 8), (8, 6)], [[(0, Y), (1, X)], [(0, X)]], None, [(0, Y)],
        ["all-reduce x"],
    ),
    "matmul_k_on_y_then_x": (
        "matmul", [(4, 8), (8, 6)], [[(1, Y), (1, X)], [(0, Y), (0, X)]], None, [],
        ["all-reduce x", "all-reduce y"],
    ),
    "matmul_k_on_x_then_y": (
        "matmul", [(4, 8), (8, 6)], [[(1, X), (1, Y)], [(0, X), (0, Y)]], None, [],
        ["all-reduce x", "all-reduce y"],
    ),
    "matmul_k_on_y_n_on_x": (
        "matmul", [(4, 8), (8, 6)], [[(1, Y)], [(0, Y), (1, X)]], None, [(1, X)],
        ["all-reduce y"],
    ),
}  # fmt: skip
TORCH = {"linear": linear, "matmul": torch.matmul, "add": torch.add, "relu": torch.relu}


def check_recipe(world, recipe, mesh):
    op, shapes, cuts, declared, result, sent = recipe
    need(world, mesh)
    tensors = [ramp(*s) for s in shapes]
    want = TORCH[op](*tensors)
    fd = layer(op, tensors, cuts, mesh, out=declared)
    for r, (out,) in world.run(fd, tensors).items():
        assert_part(out, part_of(want, mesh, result, r))
        if r in mesh.devices and not any("scatter" in s or "gather" in s for s in sent):
            assert_layout(out, out.shape, torch.empty(out.shape).stride())
    assert sorted(communications(fd)) == sent


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(world, name):
    check_recipe(world, RECIPES[name], PAIR)


@pytest.mark.parametrize("name", GRIDS)
def test_recipe_on_a_grid(world, name):
    check_recipe(world, GRIDS[name], SQUARE)


@pytest.mark.parametrize(
    ("order", "bias", "strides"),
    [
        (None, True, (7, 21, 1)),
        (None, False, (7, 21, 1)),
        ([2, 1, 0], False, (35, 7, 1)),
        ([2, 1, 0], True, (35, 7, 1)),
    ],
)
def test_memory_order_of_a_reduce_scatter(world, order, bias, strides):
    """Left free, the result keeps that of the communication: the scattered axis outermost."""
    need(world, PAIR)
    tensors = [ramp(3, 10, 14), ramp(7, 14), 100 * ramp(7)][: 3 if bias else 2]
    cuts = [[(2, X)], [(1, X)], []][: len(tensors)]
    fd = layer("linear", tensors, cuts, PAIR, out=[(1, X), (3, X)], stride_order=order)
    for r, (out,) in world.run(fd, tensors).items():
        assert_part(out, part_of(linear(*tensors), PAIR, [(1, X)], r))
        if r < 2:
            assert_layout(out, (3, 5, 7), strides)


def test_two_layers_with_named_axes(world):
    """Data parallel over dp, tensor parallel over tp: one all-reduce in each tp team."""
    dp = 2 if world.size >= 4 else 1
    tp = world.size // dp
    mesh = DeviceMesh(torch.arange(dp * tp).reshape(dp, tp), names=("dp", "tp"))
    assert mesh.names == ("dp", "tp")
    tensors = [ramp(7 * dp, 5, 3), ramp(12, 3), ramp(3, 12)]
    with FusionDefinition() as fd:
        x, up, down = (fd.define_tensor(list(t.shape)) for t in tensors)
        hidden = fd.ops.linear(x, up)
        out = fd.ops.linear(hidden, down)
        fd.add_output(hidden)
        fd.add_output(out)
        for tv, cuts in ((x, [(0, Y)]), (up, [(0, X)]), (down, [(1, X)])):
            lay(tv, mesh, cuts)
    wide = linear(*tensors[:2])
    for r, (h, o) in world.run(fd, tensors).items():
        assert_part(h, part_of(wide, mesh, [(0, Y), (2, X)], r))
        assert_part(o, part_of(linear(wide, tensors[2]), mesh, [(0, Y)], r))
    assert communications(fd) == (["all-reduce x"] if tp > 1 else [])


def test_gradient_of_a_weight(world):
    """The sum over data-parallel rows of x^T @ g, on a mesh with named axes."""
    d = world.size
    mesh = DeviceMesh(range(d), names=("dp",))
    x, g = ramp(4 * d, 6), ramp(4 * d, 3)
    with FusionDefinition() as fd:
        tx, tg = fd.define_tensor([4 * d, 6]), fd.define_tensor([4 * d, 3])
        fd.add_output(fd.ops.matmul(fd.ops.permute(tx, [1, 0]), tg))
        for tv in (tx, tg):
            lay(tv, mesh, [(0, X)])
    for _, (out,) in world.run(fd, [x, g]).items():
        assert torch.equal(out, x.t() @ g)
    assert communications(fd) == (["all-reduce x"] if d > 1 else [])


@pytest.mark.parametrize("shape", [(2, 1, 2), (1, 2, 2), (2, 2, 1)])
def test_three_mesh_axes(world, shape):
    """Batch on z, rows on y, the inner axis on x."""
    mesh = DeviceMesh(torch.arange(4).reshape(shape))
    need(world, mesh)
    tensors = [ramp(4, 4, 8), ramp(4, 8, 6)]
    fd = layer("matmul", tensors, [[(0, Z), (1, Y), (2, X)], [(0, Z), (1, X)]], mesh)
    for r, (out,) in world.run(fd, tensors).items():
        assert_part(out, part_of(tensors[0] @ tensors[1], mesh, [(0, Z), (1, Y)], r))
    assert communications(fd) == (["all-reduce x"] if shape[2] > 1 else [])


def test_pipeline_of_two_meshes(world):
    """Layers on {0, 1} and {2, 3}; between them the activations are sent."""
    first, second = DeviceMesh([0, 1]), DeviceMesh([2, 3])
    need(world, second)
    tensors = [ramp(4, 6), ramp(8, 6), ramp(6, 8)]
    with FusionDefinition() as fd:
        x, up, down = (fd.define_tensor(list(t.shape)) for t in tensors)
        hidden = fd.ops.linear(x, up)
        moved = fd.ops.set(hidden)
        fd.add_output(fd.ops.relu(fd.ops.linear(moved, down)))
        lay(x, first)
        lay(up, first, [(0, X)])
        lay(moved, second, [(1, X)])
        lay(down, second, [(1, X)])
    want = linear(linear(*tensors[:2]), tensors[2]).relu()
    for r, (out,) in world.run(fd, tensors).items():
        assert_part(out, part_of(want, second, [], r))
    assert communications(fd) == ["send-recv x", "all-reduce x"]


def two_stages(rows):
    """Return a program whose y is on device 0 and z on device 1, and both meshes."""
    first, second = DeviceMesh([0]), DeviceMesh([1])
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, 6])
        y = fd.ops.relu(x)
        z = fd.ops.set(y)
        fd.add_output(z)
        fd.add_output(y)
        for tv, mesh in ((x, first), (y, first), (z, second)):
            lay(tv, mesh)
    return fd, first, second


def check_stages(world, fd, first, second, rows):
    t = ramp(rows, 6)
    for r, (received, kept) in world.run(fd, [t]).items():
        assert_part(received, part_of(t.relu(), second, [], r))
        assert_part(kept, part_of(t.relu(), first, [], r))


def test_pipeline_of_two_devices(world):
    """The first device has nothing of what the second receives."""
    fd, first, second = two_stages(3)
    need(world, second)
    for _ in range(2):
        check_stages(world, fd, first, second, 3)
    assert communications(fd) == ["broadcast x"]


def test_pipeline_of_symbolic_size(world):
    fd, first, second = two_stages(-1)
    need(world, second)
    for rows in (3, 5, 3):
        check_stages(world, fd, first, second, rows)

# SPDX-License-Identifier: BSD-3-Clause
"""Well-known ways of dividing layers: only some tensors are annotated, the rest follows.

For each: the communications, what a device holds of the result, and the values against torch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
import torch
from programs import X, Y, mlp, mlp_inputs, mlp_reference, place, ramp, shard
from torch.nn.functional import linear

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, TensorView

ONE_AXIS = DeviceMesh(range(2))
SQUARE = DeviceMesh(torch.arange(4).reshape(2, 2))

Split = tuple[int, int, meshfuse.ParallelType]  # loop axis, parts, mesh axis


@dataclass(frozen=True)
class Recipe:
    """A layer, its annotations (None: not annotated), and what must come out."""

    op: Callable[[FusionDefinition, Sequence[TensorView]], TensorView]
    torch_op: Callable[..., torch.Tensor]
    inputs: Sequence[Sequence[int]]
    splits: Sequence[Sequence[Split] | None]
    out_splits: Sequence[Split] | None
    communications: Sequence[str]
    local_shape: Sequence[int]
    mesh: DeviceMesh = ONE_AXIS


def op(name: str) -> Callable[[FusionDefinition, Sequence[TensorView]], TensorView]:
    return lambda fd, tensors: getattr(fd.ops, name)(*tensors)


RECIPES = {
    "linear_column_parallel": Recipe(
        op("linear"), linear, [(2, 10, 6), (12, 6), (12,)],
        [[], [(0, 2, X)], [(0, 2, X)]], None, [], (2, 10, 6),
    ),
    "matmul_column_parallel": Recipe(
        op("matmul"), torch.matmul, [(2, 10, 6), (6, 12)], [[], [(1, 2, X)]], None, [], (2, 10, 6),
    ),
    "linear_row_parallel": Recipe(
        op("linear"), linear, [(2, 10, 12), (6, 12)],
        [[(2, 2, X)], [(1, 2, X)]], None, ["all-reduce mesh_x"], (2, 10, 6),
    ),
    "linear_row_parallel_bias": Recipe(
        op("linear"), linear, [(2, 10, 12), (6, 12), (6,)],
        [[(2, 2, X)], [(1, 2, X)], []], None, ["all-reduce mesh_x"], (2, 10, 6),
    ),
    "linear_reduce_scatter": Recipe(
        op("linear"), linear, [(3, 10, 14), (7, 14), (7,)],
        [[(2, 2, X)], [(1, 2, X)], []], [(-1, 2, X), (1, 2, X)], ["reduce-scatter mesh_x"],
        (3, 5, 7),
    ),
    "linear_sequence_parallel": Recipe(
        op("linear"), linear, [(2, 64, 6), (6, 6), (6,)],
        [[(1, 2, X)], [(0, 2, X)], [(0, 2, X)]], [(1, 2, X)], ["all-gather mesh_x"] * 2,
        (2, 32, 6),
    ),
    "linear_both_divided": Recipe(
        op("linear"), linear, [(2, 10, 6), (8, 6)],
        [[(1, 2, X)], [(0, 2, X)]], None, ["all-gather mesh_x"], (2, 10, 4),
    ),
    "matmul_data_parallel": Recipe(
        op("matmul"), torch.matmul, [(4, 8), (8, 6)], [[(0, 2, X)], []], None, [], (2, 6),
    ),
    "matmul_rows_and_columns": Recipe(
        op("matmul"), torch.matmul, [(4, 8), (8, 6)], [[(0, 2, Y)], [(1, 2, X)]], None, [], (2, 3),
        SQUARE,
    ),
    "matmul_rows_and_inner": Recipe(
        op("matmul"), torch.matmul, [(4, 8), (8, 6)],
        [[(0, 2, Y), (2, 2, X)], [(0, 2, X)]], None, ["all-reduce mesh_x"], (2, 6), SQUARE,
    ),
    "relu_gathered": Recipe(
        op("relu"), torch.relu, [(4, 8)], [[(0, 2, X)]], [], ["all-gather mesh_x"], (4, 8),
    ),
    "add_follows_the_divided_operand": Recipe(
        op("add"), torch.add, [(4, 8), (4, 8)], [[], [(0, 2, X)]], None, [], (2, 8),
    ),
    "source_follows_its_reader": Recipe(
        lambda fd, t: fd.ops.add(t[0], fd.ops.cos(t[1])), lambda x, y: x + torch.cos(y),
        [(4, 8), (4, 8)], [[(0, 2, X)], None], None, [], (2, 8),
    ),
    "sum_past_the_divided_axis": Recipe(
        lambda fd, t: fd.ops.sum(t[0], [1]), lambda x: x.sum(1), [(4, 8)], [[(0, 2, X)]], None, [],
        (2,),
    ),
    "sum_over_the_divided_axis": Recipe(
        lambda fd, t: fd.ops.sum(t[0], [0, 1]), lambda x: x.sum(), [(4, 8)], [[(0, 2, X)]], None,
        ["all-reduce mesh_x"], (),
    ),
    "permute_broadcast_cast": Recipe(
        lambda fd, t: fd.ops.cast(
            fd.ops.broadcast(fd.ops.permute(t[0], [1, 0]), [True, False, False]),
            meshfuse.DataType.Double,
        ),
        lambda x: x.t()[None].double(), [(4, 8)], [[(1, 2, X)]], None, [], (1, 4, 4),
    ),
}  # fmt: skip


def define(recipe: Recipe) -> FusionDefinition:
    with FusionDefinition() as fd:
        tensors = [fd.define_tensor(shape) for shape in recipe.inputs]
        out = recipe.op(fd, tensors)
        fd.add_output(out)
        for tv, splits in zip([*tensors, out], [*recipe.splits, recipe.out_splits], strict=True):
            if splits is None:
                continue
            place(recipe.mesh, tv)
            for split in splits:
                shard(tv, *split)
    return fd


def kinds(fd: FusionDefinition) -> list[str]:
    return [f"{c.kind} {c.mesh_axis}" for c in fd.explain().communications]


@pytest.mark.parametrize("name", RECIPES)
def test_recipe(name):
    recipe = RECIPES[name]
    fd = define(recipe)
    inputs = [ramp(*shape) for shape in recipe.inputs]
    with meshfuse.simulate(recipe.mesh.size) as sim:
        (out,) = sim.run(fd, inputs)
        local = sim.local()
    torch.testing.assert_close(out, recipe.torch_op(*inputs), check_stride=False)
    assert tuple(local.shape) == tuple(recipe.local_shape)
    assert kinds(fd) == list(recipe.communications)


@pytest.mark.parametrize("d", [2, 4, 8])
@pytest.mark.parametrize("in_seq", [False, True], ids=["x whole", "x seq"])
@pytest.mark.parametrize("out_seq", [False, True], ids=["y whole", "y seq"])
def test_megatron_mlp(d, in_seq, out_seq):
    """Annotated on its weights alone, and with its ends divided along the sequence."""
    fd = mlp(DeviceMesh(range(d)), in_seq=in_seq, out_seq=out_seq)
    want = ["all-gather mesh_x"] if in_seq else []
    assert kinds(fd) == [*want, "reduce-scatter mesh_x" if out_seq else "all-reduce mesh_x"]
    inputs = mlp_inputs(d)
    with meshfuse.simulate(d) as sim:
        (y,) = sim.run(fd, inputs)
    torch.testing.assert_close(y, mlp_reference(*inputs), rtol=1e-5, atol=1e-5)


def test_data_and_tensor_parallel_mlp():
    """One all-reduce, within each team along x."""
    with FusionDefinition() as fd:
        x, up, down = (fd.define_tensor(s) for s in ([14, 5, 3], [12, 3], [3, 12]))
        hidden = fd.ops.linear(x, up)
        out = fd.ops.linear(fd.ops.relu(hidden), down)
        fd.add_output(hidden)
        fd.add_output(out)
        place(SQUARE, x, up, down)
        shard(x, 0, 2, Y)
        shard(up, 0, 2, X)
        shard(down, 1, 2, X)
    (c,) = fd.explain().communications
    assert (c.kind, c.mesh_axis, c.teams) == ("all-reduce", "mesh_x", [[0, 1], [2, 3]])
    inputs = [ramp(14, 5, 3), ramp(12, 3), ramp(3, 12)]
    with meshfuse.simulate(4) as sim:
        results = sim.run(fd, inputs)
        assert [tuple(sim.local(i).shape) for i in range(2)] == [(7, 5, 6), (7, 5, 3)]
    want = linear(inputs[0], inputs[1])
    assert torch.equal(results[0], want)
    assert torch.equal(results[1], linear(want.relu(), inputs[2]))


@pytest.mark.parametrize("seed", range(20))
def test_any_annotation_of_a_graph_gives_the_same_values(seed):
    """Whatever is annotated, and whatever propagation makes of it."""
    generator = torch.Generator().manual_seed(seed)

    def choose(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    with FusionDefinition() as fd:
        x, w1, b1, w2 = (fd.define_tensor(s) for s in ([4, 8], [8, 4], [4], [4, 8]))
        h = fd.ops.add(fd.ops.matmul(x, w1), b1)
        g = fd.ops.relu(h)
        y = fd.ops.add(fd.ops.matmul(g, w2), x)
        rows = fd.ops.sum(y, [1])
        fd.add_output(y)
        fd.add_output(rows)
        for tv in (x, w1, b1, w2, h, g, y, rows):
            if tv is not x and choose(2):
                continue
            place(ONE_AXIS, tv)
            axis = choose(tv.ndim + 1) - 1
            if axis >= 0:
                shard(tv, axis, 2)
    inputs = [ramp(4, 8), ramp(8, 4), ramp(4), ramp(4, 8)]
    with meshfuse.simulate(2) as sim:
        results = sim.run(fd, inputs)
    want = torch.relu(inputs[0] @ inputs[1] + inputs[2]) @ inputs[3] + inputs[0]
    assert torch.equal(results[0], want)
    assert torch.equal(results[1], want.sum(1))
    explained = fd.explain()
    assert all(c.lines and c.bytes > 0 for c in explained.communications)


def test_operands_divided_alike_of_which_one_declares_the_size():
    """Also where each device has one element: then there is nothing below the division."""
    with FusionDefinition() as fd:
        a, c = fd.define_tensor([3, -1]), fd.define_tensor([3, 2])
        fd.add_output(fd.ops.add(a, c))
    place(DeviceMesh(range(2)), a, c)
    shard(a, 1, 2)
    shard(c, 1, 2)
    x = ramp(3, 2)
    assert fd.explain(inputs=[x, x]).communications == []
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x, x])[0], x + x)

# SPDX-License-Identifier: BSD-3-Clause
"""Layouts that autoshard finds, and that the programs still compute the same."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys

import pytest
import torch
from programs import place, shard
from torch.nn import functional as F

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, autoshard, plan_costs
from meshfuse.planner import candidates
from meshfuse.planner.annotations import Annotation, annotate, possible_annotations

FOUR = DeviceMesh(range(4))


@pytest.fixture(autouse=True)
def _published_figures(monkeypatch, tmp_path):
    """Use the same figures on every machine."""
    monkeypatch.delenv("MESHFUSE_LINKS", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def mlp(rows=8, hidden=64, **options):
    with FusionDefinition(**options) as fd:
        x = fd.define_tensor([rows, hidden])
        w1, b1 = fd.define_tensor([hidden, 4 * hidden]), fd.define_tensor([4 * hidden])
        w2, b2 = fd.define_tensor([4 * hidden, hidden]), fd.define_tensor([hidden])
        h = fd.ops.gelu(fd.ops.add(fd.ops.matmul(x, w1), b1))
        fd.add_output(fd.ops.add(fd.ops.matmul(h, w2), b2))
    return fd


def attention(rows=1, length=16, hidden=64, heads=8):
    with FusionDefinition() as fd:
        x = fd.define_tensor([rows, length, hidden])
        weights = [fd.define_tensor([hidden, hidden]) for _ in range(4)]
        shape = [rows, length, heads, hidden // heads]
        q, k, v = (
            fd.ops.permute(fd.ops.reshape(fd.ops.linear(x, w), shape), [0, 2, 1, 3])
            for w in weights[:3]
        )
        out = fd.ops.sdpfa_fwd(q, k, v, None, True, None)[0]
        out = fd.ops.reshape(fd.ops.permute(out, [0, 2, 1, 3]), [rows, length, hidden])
        fd.add_output(fd.ops.linear(out, weights[3]))
    return fd


def mlp_by_torch(x, w1, b1, w2, b2):
    return F.gelu(x @ w1 + b1) @ w2 + b2


def attention_by_torch(x, wq, wk, wv, wo):
    q, k, v = (F.linear(x, w).unflatten(-1, (8, -1)).transpose(1, 2) for w in (wq, wk, wv))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(out.transpose(1, 2).flatten(2), wo)


def sharding(fd):
    return {t.name: t.sharding for t in fd.explain().tensors}


def kinds(fd):
    return [c.kind for c in fd.explain().communications]


def random_inputs(fd, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn([int(str(n)) for n in tv.shape()], generator=generator) / 4
        for tv in fd.fusion.inputs()
    ]


def assert_equals_torch(fd, devices, reference):
    inputs = random_inputs(fd)
    with meshfuse.simulate(devices) as sim:
        (out,) = sim.run(fd, inputs)
    torch.testing.assert_close(out, reference(*inputs), rtol=1e-4, atol=1e-5)
    fd.check(examples=3)


@pytest.mark.parametrize(("rows", "hidden"), [(8, 64), (1, 512), (8, 1024), (32, 1024)])
def test_mlp_of_few_rows_is_megatrons(rows, hidden):
    """Weights decide the time of few rows: columns, then rows, one all-reduce."""
    fd = autoshard(mlp(rows, hidden), FOUR)
    assert kinds(fd) == ["all-reduce"]
    found = sharding(fd)
    assert [found[f"T{i}"] for i in range(5)] == [
        {},
        {"mesh_x": 1},
        {"mesh_x": 0},
        {"mesh_x": 0},
        {},
    ]


def test_mlp_of_many_rows_divides_the_rows():
    fd = autoshard(mlp(4096, 64), FOUR)
    assert kinds(fd) == ["all-gather"]
    assert sharding(fd)["T0"] == {"mesh_x": 0}


@pytest.mark.parametrize(
    ("length", "hidden", "mesh"),
    [
        (16, 64, FOUR),
        (16, 1024, FOUR),
        (64, 256, DeviceMesh([0, 1])),
        (16, 512, DeviceMesh([0, 1])),
        (16, 512, DeviceMesh(range(8))),  # takes a change of two annotations
    ],
)
def test_attention_divides_heads(length, hidden, mesh):
    fd = autoshard(attention(1, length, hidden), mesh)
    assert kinds(fd) == ["all-reduce"]
    found = sharding(fd)
    divided = [found[f"T{i}"] for i in range(5)]
    assert divided == [{}, {"mesh_x": 0}, {"mesh_x": 0}, {"mesh_x": 0}, {"mesh_x": 1}]
    heads = [t for t in fd.explain().tensors if t.sharding == {"mesh_x": 1}]
    assert len(heads) >= 4  # q, k, v and the result of attention


@pytest.mark.parametrize("mesh", [2, 4, 8, (2, 4)], ids=str)
@pytest.mark.parametrize(
    ("length", "hidden", "heads"), [(16, 512, 8), (128, 1024, 16), (32, 96, 4)]
)
def test_attention_is_not_slower_than_megatrons(mesh, length, hidden, heads):
    """Heads divided over mesh_x, as by hand; within what the model is taken to know of times."""
    fd = attention(1, length, hidden, heads)
    shape = (mesh,) if isinstance(mesh, int) else mesh
    on = DeviceMesh(torch.arange(math.prod(shape)).reshape(shape))
    hand = attention(1, length, hidden, heads)
    x, *weights = hand.fusion.inputs()
    place(on, x, *weights)
    for weight, axis in zip(weights, (0, 0, 0, 1), strict=True):
        shard(weight, axis, shape[-1])
    assert plan_costs(autoshard(fd, mesh)).time_us <= 1.01 * plan_costs(hand).time_us


def test_equal_programs_are_read_once(monkeypatch):
    """Different annotations often make the same program."""
    read = []
    original = candidates.ProgramReader.read
    monkeypatch.setattr(
        candidates.ProgramReader,
        "read",
        lambda self, text: read.append(text) or original(self, text),
    )
    autoshard(mlp(), (2, 2))
    assert read and len(read) - len(set(read)) <= 4  # what is said of the result is read again


def test_limit_that_the_quickest_keeps_changes_nothing():
    fd = attention(1, 32, 96, 4)
    free = plan_costs(autoshard(fd, (2, 4)))
    for limit in (free.peak_memory, 10**12):
        assert plan_costs(autoshard(fd, (2, 4), memory_limit=limit)).time_us == free.time_us


@pytest.mark.parametrize("mesh", [4, (2, 4)], ids=str)
@pytest.mark.parametrize(
    ("program", "reference"),
    [
        (mlp, mlp_by_torch),
        (attention, attention_by_torch),
        (lambda: mlp(512, 32), mlp_by_torch),
        (lambda: attention(8, 16, 32), attention_by_torch),
    ],
    ids=["mlp", "attention", "mlp_many", "attention_many"],
)
def test_results_are_those_of_torch(mesh, program, reference):
    fd = autoshard(program(), mesh)
    assert any(sharding(fd).values())
    assert_equals_torch(fd, torch.tensor(mesh).prod().item(), reference)


def test_every_program_was_tried():
    """No assignment of inputs and results of products to mesh axes is modelled to be quicker."""
    with FusionDefinition() as fd:
        x, w, v = (fd.define_tensor(s) for s in ([8, 16], [16, 32], [32, 8]))
        h = fd.ops.matmul(x, w)
        y = fd.ops.matmul(h, v)
        fd.add_output(y)
    free = [t.name for t in (x, w, v, h)]
    lists = [[None, *possible_annotations(t, FOUR, {})] for t in (x, w, v, h)]
    whole = Annotation((None,))
    times = []
    for picked in itertools.product(*lists):
        fusion = fd.fusion.clone()
        for tv in fusion.tensors():
            given = dict(zip(free, picked, strict=True)) | {y.name: whole}
            if given.get(tv.name) is not None:
                annotate(tv, FOUR, given[tv.name])
        one = FusionDefinition()
        one._lifecycle.adopt(fusion)
        times.append(plan_costs(one).time_us)
    assert plan_costs(autoshard(fd, FOUR)).time_us <= 1.01 * min(times)


def test_the_given_definition_is_not_changed():
    fd = mlp()
    before = fd.ir()
    autoshard(fd, FOUR)
    assert fd.ir() == before
    assert kinds(fd) == []


def test_annotations_of_the_user_are_kept():
    fd = mlp()
    w1 = fd.fusion.inputs()[1]
    place(FOUR, w1)
    shard(w1, 0, 4)
    y = fd.fusion.outputs()[0]
    place(FOUR, y)
    shard(y, 1, 4)
    found = autoshard(fd, FOUR)
    assert sharding(found)["T1"] == {"mesh_x": 0}
    assert sharding(found)[y.name] == {"mesh_x": 1}
    assert_equals_torch(found, 4, mlp_by_torch)


def test_annotations_are_carried_over_to_the_mesh():
    fd = mlp()
    w1 = fd.fusion.inputs()[1]
    place(DeviceMesh(range(2)), w1)
    shard(w1, 1, 2)
    found = autoshard(fd, 8)
    assert sharding(found)["T1"] == {"mesh_x": 1}
    assert {t.mesh for t in found.explain().tensors} == {"DeviceMesh{0 1 2 3 4 5 6 7}"}


def test_deterministic():
    first, second = (autoshard(mlp(), (2, 2)).ir() for _ in range(2))
    assert first == second


def test_deterministic_across_processes():
    """Ranks are processes whose hashes of strings differ."""
    script = (
        "import sys; sys.path.insert(0, 'tests/python')\n"
        "import test_planner_autoshard as t\n"
        "print(t.autoshard(t.mlp(8, 512), 4).ir())\n"
    )
    texts = set()
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", script],
            env=dict(os.environ, PYTHONHASHSEED=seed),
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        texts.add(done.stdout)
    assert len(texts) == 1


def test_memory_limit():
    """Divided rows leave every device all weights; the next best divides these."""
    free = autoshard(mlp(128, 512), FOUR)
    most = plan_costs(free).peak_memory
    assert sharding(free)["T1"] == {}
    limited = autoshard(mlp(128, 512), FOUR, memory_limit=most // 2)
    assert sharding(limited)["T1"] != {}
    assert plan_costs(limited).peak_memory <= most // 2
    assert plan_costs(limited).time_us > plan_costs(free).time_us
    assert autoshard(mlp(128, 512), FOUR, memory_limit=most).ir() == free.ir()


def test_memory_limit_that_is_just_met():
    with pytest.raises(meshfuse.Error, match="the least that was possible") as caught:
        autoshard(mlp(), FOUR, memory_limit=1000)
    least = int(str(caught.value).split(" is ")[2].split(".")[0])
    assert plan_costs(autoshard(mlp(), FOUR, memory_limit=least)).peak_memory == least
    with pytest.raises(meshfuse.Error, match=f"memory_limit is {least - 1} bytes per device"):
        autoshard(mlp(), FOUR, memory_limit=least - 1)


@pytest.mark.parametrize(
    "limit",
    [0, -5, 0.5, float("nan"), float("inf"), -float("inf"), "1e3", b"9", True, [1]],
    ids=repr,
)
def test_senseless_memory_limit(limit):
    with pytest.raises(meshfuse.Error) as caught:
        autoshard(mlp(), FOUR, memory_limit=limit)
    assert str(caught.value) == (
        f"autoshard: memory_limit is {limit!r}. Give a number of bytes above 0, or None for "
        "no limit."
    )


def test_memory_limit_in_a_beam():
    most = plan_costs(autoshard(attention(), (2, 2))).peak_memory
    whole = plan_costs(attention()).peak_memory
    assert most < whole
    with pytest.raises(meshfuse.Error, match="the least that was found"):
        autoshard(attention(), (2, 2), memory_limit=1000)


def test_open_sizes_are_not_divided():
    """The annotations fit every size."""
    fd = autoshard(mlp(-1, 64), FOUR)
    assert kinds_of_symbolic(fd)
    inputs = [torch.randn(7, 64), *random_inputs(mlp())[1:]]
    with meshfuse.simulate(4) as sim:
        (out,) = sim.run(fd, inputs)
    torch.testing.assert_close(out, mlp_by_torch(*inputs), rtol=1e-4, atol=1e-5)
    fd.check(examples=5)


def kinds_of_symbolic(fd):
    return [c.kind for c in fd.explain(sizes={"T0.0": 8}).communications]


def test_sizes_that_do_not_divide():
    """Nothing can be divided: everything is whole."""
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.matmul(fd.define_tensor([3, 5]), fd.define_tensor([5, 7])))
    found = autoshard(fd, FOUR)
    assert not any(sharding(found).values())
    assert kinds(found) == []


def test_results_that_are_read_again_may_be_divided():
    with FusionDefinition() as fd:
        x, w1, w2 = (fd.define_tensor(s) for s in ([8, 64], [64, 256], [256, 64]))
        h = fd.ops.matmul(x, w1)
        fd.add_output(h)
        fd.add_output(fd.ops.matmul(fd.ops.relu(h), w2))
    found = autoshard(fd, FOUR)
    assert kinds(found) == ["all-reduce"]
    assert sharding(found)[h.name] == {"mesh_x": 1}


def test_one_device():
    found = autoshard(mlp(), 1)
    assert kinds(found) == []
    assert_equals_torch(found, 1, mlp_by_torch)


def test_strict_programs_have_no_communication():
    """What a strict program would not write down is not chosen."""
    found = autoshard(mlp(strict=True), FOUR)
    assert all(c.kind == "all-reduce" for c in found.explain().communications)
    found.compiled_ir()


@pytest.mark.parametrize("layers", [1, 12], ids=["enumerated", "beam"])
def test_strict_program_that_is_refused(layers):
    """No further annotation takes away the communication that two given ones need."""
    with FusionDefinition(strict=True) as fd:
        x = fd.define_tensor([4, 8])
        y = fd.ops.relu(x)
        place(FOUR, x, y)
        shard(x, 1, 4)
        for _ in range(layers):
            y = fd.ops.matmul(y, fd.define_tensor([8, 8]))
        fd.add_output(y)
    with pytest.raises(meshfuse.Error, match="strict mode: relu: T1 needs an implicit all-gather"):
        autoshard(fd, FOUR)


def test_inputs_say_where_they_lie():
    found = autoshard(mlp(), FOUR)
    assert all(tv.has_device_mesh() for tv in found.fusion.inputs())
    parts = [
        meshfuse._C.shard_tensor(t, tv, 3)
        for t, tv in zip(random_inputs(found), found.fusion.inputs(), strict=True)
    ]
    assert [list(p.shape) for p in parts] == [[8, 64], [64, 64], [64], [64, 64], [64]]


def deep(layers):
    """Layers of a product, bias, gelu, product, bias, residual and layer_norm: 8 ops each."""
    with FusionDefinition() as fd:
        y = fd.define_tensor([3, 256])
        for _ in range(layers):
            w1, b1 = fd.define_tensor([256, 512]), fd.define_tensor([512])
            w2, b2 = fd.define_tensor([512, 256]), fd.define_tensor([256])
            h = fd.ops.layer_norm(y, [256])
            h = fd.ops.gelu(fd.ops.add(fd.ops.matmul(h, w1), b1))
            y = fd.ops.add(y, fd.ops.add(fd.ops.matmul(h, w2), b2))
        fd.add_output(fd.ops.relu(y))
    return fd


def deep_by_torch(x, *weights):
    for w1, b1, w2, b2 in (weights[i : i + 4] for i in range(0, len(weights), 4)):
        h = F.gelu(F.layer_norm(x, [256]) @ w1 + b1)
        x = x + (h @ w2 + b2)
    return F.relu(x)


def test_many_operations(monkeypatch):
    """Layers of Megatron's layout, by a beam that tries a bounded number of programs."""
    from meshfuse.planner import sharded

    fd = deep(9)
    assert len(fd.fusion.exprs()) > 60
    counted = []
    original = sharded.search

    def search(*args):
        found = original(*args)
        counted.append(found.evaluations)
        assert not found.exact
        return found

    monkeypatch.setattr(sharded, "search", search)
    found = autoshard(fd, FOUR)
    assert counted[0] < 8000
    assert kinds(found) == ["all-reduce"] * 9
    assert_equals_torch(found, 4, deep_by_torch)


def test_mesh_with_too_many_axes():
    with pytest.raises(meshfuse.Error, match="is not the shape of a mesh"):
        autoshard(mlp(), (2, 2, 2, 2))


def test_unused_input():
    """Nothing reads it, so that no mesh would reach it."""
    with FusionDefinition() as fd:
        fd.define_tensor([8])
        fd.add_output(fd.ops.neg(fd.define_tensor([8])))
    sharded = meshfuse.autoshard(fd, mesh=2)
    with meshfuse.simulate(2) as sim:
        (out,) = sim.run(sharded, [torch.zeros(8), torch.ones(8)])
    assert torch.equal(out, -torch.ones(8))

# SPDX-License-Identifier: BSD-3-Clause
"""One definition executed again and again, and several definitions side by side."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
import torch
from programs import X, Y, block, matmul_cut, place, ramp, shard, sharded_matmul
from torch.nn.functional import linear

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition


def test_sizes_that_change():
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1, 4]), fd.define_tensor([6, 4])
        fd.add_output(fd.ops.linear(x, w))
        place(DeviceMesh(range(2)), x, w)
        shard(w, 0, 2)
    weight, kept = ramp(6, 4), []
    with meshfuse.simulate(2) as sim:
        for shape in ((2, 3, 4), (1, 5, 4), (2, 3, 4), (0, 3, 4), (1, 5, 4)):
            (out,) = sim.run(fd, [ramp(*shape), weight])
            locals_ = [sim.local(device=r) for r in range(2)]
            kept.append((linear(ramp(*shape), weight), out, locals_))
    for want, out, parts in kept:
        assert torch.equal(out, want)
        assert torch.equal(torch.cat(parts, -1), want)


@pytest.mark.parametrize("wrong", [(4, 8), (6, 4), (4, 5), (0, 6), (4, 0)])
def test_declared_sizes_do_not_change(wrong):
    x, w = ramp(4, 6), ramp(6, 8)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 2)
    with meshfuse.simulate(2) as sim:
        assert torch.equal(sim.run(fd, [x, w])[0], x @ w)
        with pytest.raises(meshfuse.Error, match="T0"):
            sim.run(fd, [ramp(*wrong), w])
        assert torch.equal(sim.run(fd, [x, w])[0], x @ w)


def on_square(rows_on, columns_on, devices=(0, 1, 2, 3)):
    with FusionDefinition() as fd:
        a, b = fd.define_tensor([4, 6]), fd.define_tensor([6, 8])
        fd.add_output(fd.ops.matmul(a, b))
        place(DeviceMesh(torch.tensor(devices).reshape(2, 2)), a, b)
        shard(a, 0, 2, rows_on)
        shard(b, 1, 2, columns_on)
    return fd


def test_same_shapes_on_other_mesh_axes():
    """A plan is kept for a program and its mesh axes, not for shapes."""
    x, w = ramp(4, 6), ramp(6, 8)
    first, second = on_square(Y, X), on_square(X, Y)
    with meshfuse.simulate(4) as sim:
        for _ in range(2):
            for fd, swapped in ((first, False), (second, True)):
                assert torch.equal(sim.run(fd, [x, w])[0], x @ w)
                for device in range(4):
                    y, i = divmod(device, 2)
                    if swapped:
                        y, i = i, y
                    part = block(block(x @ w, 0, 2, y), 1, 2, i)
                    assert torch.equal(sim.local(device=device), part)


def test_same_shapes_on_permuted_meshes():
    x, w = ramp(4, 6), ramp(6, 8)
    cut = matmul_cut((4, 6), (6, 8), "n")
    fds = [(m, sharded_matmul(x, w, cut, 2, mesh=DeviceMesh(m))) for m in ([0, 1], [1, 0])]
    with meshfuse.simulate(2) as sim:
        for _ in range(2):
            for mesh, fd in fds:
                assert torch.equal(sim.run(fd, [x, w])[0], x @ w)
                assert torch.equal(sim.local(device=mesh[0]), block(x @ w, 1, 2, 0))


def test_one_definition_on_worlds_of_several_sizes():
    x, w = ramp(4, 6), ramp(6, 8)
    fd = sharded_matmul(x, w, matmul_cut((4, 6), (6, 8), "n"), 2)
    for size in (2, 3, 2, 5):
        with meshfuse.simulate(size) as sim:
            assert torch.equal(sim.run(fd, [x, w])[0], x @ w)


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_many_sizes():
    """Results are right and memory levels off: old plans are dropped."""
    w = ramp(4, 6)
    fd = sharded_matmul(ramp(7, 4), w, matmul_cut((7, 4), (4, 6), "n"), 2, symbolic=True)
    sizes = [(7 * i) % 500 + 2 for i in range(2000)]
    rows = ramp(502, 4)
    want = rows @ w
    with meshfuse.simulate(2) as sim:
        for i, m in enumerate(sizes):
            (out,) = sim.run(fd, [rows[:m], w])
            assert torch.equal(out, want[:m])
            if i == 1000:
                middle = resident_bytes()
    assert resident_bytes() - middle < 4 * 2**20
    assert fd._executor().stats()["runs"] == 2000


def test_many_definitions():
    """A definition that is dropped takes its plans along."""
    x, w = ramp(4, 6), ramp(6, 8)
    cut = matmul_cut((4, 6), (6, 8), "n")
    with meshfuse.simulate(2) as sim:
        for i in range(600):
            if i == 300:
                middle = resident_bytes()
            (out,) = sim.run(sharded_matmul(x, w, cut, 2), [x, w])
        assert torch.equal(out, x @ w)
    assert resident_bytes() - middle < 4 * 2**20


BITS = """
import hashlib, sys, torch
torch.set_num_threads(1)
import meshfuse
from test_reuse import layer_bits
print(layer_bits())
"""


def layer_bits():
    """Run a two-layer program on three devices; return a digest of the bits of all results."""
    torch.manual_seed(7)
    x, w, v = torch.randn(33, 65), torch.randn(65, 96), torch.randn(96)
    with FusionDefinition() as fd:
        a, b, c = fd.define_tensor([-1, 65]), fd.define_tensor([65, 96]), fd.define_tensor([96])
        fd.add_output(fd.ops.gelu(fd.ops.add(fd.ops.matmul(a, b), c), "tanh"))
        place(DeviceMesh(range(3)), a, b, c)
        shard(b, 1, 3)
        shard(c, 0, 3)
    digest = hashlib.sha256()
    with meshfuse.simulate(3) as sim:
        first = sim.run(fd, [x, w, v])[0]
        assert torch.equal(first, sim.run(fd, [x, w, v])[0])
        for r in range(3):
            digest.update(sim.local(device=r).cpu().numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.cpu_only("the other process computes on the CPU")
def test_same_bits_in_one_process_and_in_two():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = layer_bits()
        assert layer_bits() == here
    finally:
        torch.set_num_threads(threads)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{BITS}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.strip() == here

# SPDX-License-Identifier: BSD-3-Clause
"""Several threads that define and execute."""

from __future__ import annotations

import threading
import time

import pytest
import torch
from programs import matmul_cut, ramp, sharded_matmul

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, ParallelType


def in_threads(*functions):
    """Run functions side by side; raise what they raised."""
    errors = []

    def guarded(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[f]) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def simulated(rows, d, times=200):
    def work():
        x, w = ramp(rows, 6), ramp(6, 8)
        fd = sharded_matmul(x, w, matmul_cut(x.shape, w.shape, "n"), d)
        with meshfuse.simulate(d) as sim:
            for _ in range(times):
                assert torch.equal(sim.run(fd, [x, w])[0], x @ w)

    return work


def on_a_mesh_of_one(rows, times=200):
    def work():
        x, w = ramp(rows, 6), ramp(6, 8)
        fd = sharded_matmul(x, w, matmul_cut(x.shape, w.shape, "n"), 1)
        for _ in range(times):
            assert torch.equal(fd.execute([x, w])[0], x @ w)

    return work


def test_two_meshes_of_one():
    in_threads(on_a_mesh_of_one(3), on_a_mesh_of_one(5))


def test_two_simulated_meshes():
    in_threads(simulated(3, 2), simulated(5, 4))


def test_simulated_mesh_beside_a_mesh_of_one():
    in_threads(simulated(3, 2), on_a_mesh_of_one(5))


@pytest.mark.cpu_only("the default device of torch is each thread's own")
def test_one_definition_in_two_threads():
    w = ramp(6, 8)
    fd = sharded_matmul(ramp(3, 6), w, matmul_cut((3, 6), (6, 8), "n"), 1, symbolic=True)

    def work(rows):
        def run():
            for i in range(200):
                x = ramp(rows + i % 5, 6)
                assert torch.equal(fd.execute([x, w])[0], x @ w)

        return run

    in_threads(work(2), work(20))
    assert fd.fec.stats()["runs"] == 400


def test_one_definition_on_two_simulated_meshes():
    """The plans of two worlds take turns in one definition."""
    x, w = ramp(3, 6), ramp(6, 8)
    fd = sharded_matmul(x, w, matmul_cut((3, 6), (6, 8), "n"), 2)

    def work(size):
        def run():
            with meshfuse.simulate(size) as sim:
                for _ in range(50):
                    assert torch.equal(sim.run(fd, [x, w])[0], x @ w)

        return run

    in_threads(work(2), work(3))


def test_first_execution_in_two_threads():
    """Hooks and compilation run once, whoever comes first."""
    for _ in range(20):
        x, w = ramp(3, 6), ramp(6, 8)
        fd = sharded_matmul(x, w, matmul_cut((3, 6), (6, 8), "n"), 1)
        barrier = threading.Barrier(2)

        def run(fd=fd, barrier=barrier, x=x, w=w):
            barrier.wait()
            assert torch.equal(fd.execute([x, w])[0], x @ w)

        in_threads(run, run)


class Slow(FusionDefinition):
    """A class whose hooks give the interpreter away in the middle."""

    def definition(self):
        self.x, self.w = self.define_tensor([-1, 6]), self.define_tensor([6, 8])
        time.sleep(0.02)
        self.y = self.ops.matmul(self.x, self.w)
        self.add_output(self.y)

    def multidevice_schedule(self):
        for t in (self.x, self.w, self.y):
            self.sched._set_device_mesh(t, DeviceMesh([0]))
        time.sleep(0.02)
        self.sched.split(self.w, -1, 1, False)
        self.sched.parallelize(self.w, -2, ParallelType.mesh_x)


def test_first_execution_of_a_class_in_two_threads():
    fd = Slow()
    x, w = ramp(3, 6), ramp(6, 8)

    def run():
        assert torch.equal(fd.execute([x, w])[0], x @ w)

    in_threads(run, run)
    assert len(fd.w.get_loop_domain()) == 3


@pytest.mark.cpu_only("the host does not wait for other devices")
def test_execution_gives_the_interpreter_away():
    """Another thread goes on while a product is computed."""
    x, w = torch.randn(256, 512), torch.randn(512, 512)
    fd = sharded_matmul(x, w, matmul_cut(x.shape, w.shape, "n"), 1)
    fd.execute([x, w])
    count, stop = 0, threading.Event()

    def tick():
        nonlocal count
        while not stop.is_set():
            count += 1
            stop.wait(0.0005)

    def run():
        for _ in range(100):
            fd.execute([x, w])
        stop.set()

    in_threads(tick, run)
    assert count > 10

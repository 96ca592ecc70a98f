# SPDX-License-Identifier: BSD-3-Clause
"""The fixture ``world``: real ranks under a launcher, simulated meshes without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch

import meshfuse
from meshfuse import Communicator, DeviceMesh, FusionDefinition, TensorView
from meshfuse.simulation import Simulation

SIMULATED_SIZES = [1, 2, 4]  # a test module may have its own list of that name


class World:
    """Runs a program on parts of global inputs and gives the results of the ranks of this process.

    That is one rank under a launcher, and all devices of a simulated mesh, so a test body that
    loops over ``run(...).items()`` checks what it can see in either case.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.mesh = DeviceMesh(range(size))

    def run(self, fd: FusionDefinition, inputs: Iterable[Any]) -> dict[int, list[torch.Tensor]]:
        raise NotImplementedError

    def barrier(self) -> None:
        """Wait for the other ranks."""


class LaunchedWorld(World):
    """One rank per process."""

    def __init__(self) -> None:
        self.communicator = Communicator.instance()
        self.rank = self.communicator.rank()
        super().__init__(self.communicator.size())

    def run(self, fd, inputs):
        declared = fd._executor().fusion().inputs()
        parts = [self._part(t, tv) for t, tv in zip(inputs, declared, strict=True)]
        return {self.rank: fd.execute(parts)}

    def barrier(self):
        self.communicator.barrier()

    def _part(self, value, tv):
        if not isinstance(tv, TensorView) or not tv.has_device_mesh():
            return value
        return meshfuse.multidevice.shard_tensor(value, tv)


class SimulatedWorld(World):
    """All devices in this process."""

    def run(self, fd, inputs):
        with Simulation(self.size) as sim:
            return dict(enumerate(sim.execute(fd, sim.shard(fd, inputs))))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        launched = Communicator.instance().is_available()
        simulated = getattr(metafunc.module, "SIMULATED_SIZES", SIMULATED_SIZES)
        sizes = [Communicator.instance().size()] if launched else simulated
        metafunc.parametrize("world", sizes, indirect=True, ids=lambda n: f"{n}ranks")


@pytest.fixture
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Give the ranks; all of them wait for each other after the test."""
    torch.manual_seed(0)
    launched = Communicator.instance().is_available()
    env = LaunchedWorld() if launched else SimulatedWorld(request.param)
    yield env
    env.barrier()

# SPDX-License-Identifier: BSD-3-Clause
"""pytest plugin for programs on several devices.

Fixtures: ``multidevice_test`` for suites started by a launcher, ``mesh_env`` for tests that run on
any engine, ``setup_default_process_group``. Marker: ``mesh(n)``. Options: ``--mesh-backend``,
``--mesh-timeout``, ``--mesh-reports``, ``--mf-cpu``.
"""

from __future__ import annotations

import json
import os
from argparse import SUPPRESS
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from .. import _C
from .._C import Communicator, Error
from ..compat.cuda_to_cpu import redirect_cuda_to_cpu
from .board import Board, default_folder
from .by_rank import ByRank
from .deadline import Deadline
from .environments import LaunchedMeshEnv, MultideviceTest, SimulatedMeshEnv, target_device
from .launcher import DEFAULT_SIZE, Launcher, mesh_size
from .ranks import RankSession, uses_mesh

__all__ = [
    "LaunchedMeshEnv",
    "MultideviceTest",
    "SimulatedMeshEnv",
    "mesh_env",
    "multidevice_test",
    "redirect_cuda_to_cpu",
    "setup_default_process_group",
    "target_device",
]

_BACKENDS = ("simulated", "mpi", "c10d")
_TIMEOUT = 120.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --mesh-backend and its companions, and --mf-cpu."""
    group = parser.getgroup("meshfuse")
    group.addoption(
        "--mesh-backend",
        choices=_BACKENDS,
        default="simulated",
        help="where tests with the marker mesh(n) or the fixture mesh_env run (default: "
        "simulated). mpi, c10d: on the ranks of the mpirun or torchrun that started pytest, else "
        "on ranks that pytest starts",
    )
    group.addoption(
        "--mesh-timeout",
        type=_seconds,
        default=_TIMEOUT,
        metavar="SECONDS",
        help=f"how long a test on several devices may take (default: {_TIMEOUT:g}); 0: any time",
    )
    group.addoption(
        "--mesh-reports",
        type=Path,
        metavar="FOLDER",
        help="folder through which ranks tell one another how tests ended (default: a temporary "
        "one; ranks on several machines need one that all of them see)",
    )
    group.addoption("--mesh-job", type=Path, help=SUPPRESS)
    group.addoption(
        "--mf-cpu",
        action="store_true",
        help="send CUDA calls of the tests to the CPU, for suites that hard-code CUDA",
    )


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds < float("inf"):
        raise ValueError(text)
    return seconds


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Register the marker mesh(n), and what the options ask for."""
    config.addinivalue_line(
        "markers", "mesh(n): run the test on a mesh of n devices, see --mesh-backend"
    )
    if config.getoption("--mf-cpu"):
        config.add_cleanup(redirect_cuda_to_cpu().stop)
    backend, timeout = config.getoption("--mesh-backend"), config.getoption("--mesh-timeout")
    if backend == "simulated":
        _register(config, Deadline(timeout, "the simulated mesh", uses_mesh))
        return
    launched = _C.launched_as()
    if launched is not None:
        _join_ranks(config, *launched, timeout)
    else:
        by_rank = ByRank()
        _register(config, Launcher(config, by_rank, timeout, backend))
        _register(config, by_rank)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """Say where CUDA calls go."""
    return ["meshfuse: CUDA calls go to the CPU"] if config.getoption("--mf-cpu") else []


def _join_ranks(config: pytest.Config, rank: int, size: int, timeout: float) -> None:
    try:
        Communicator.instance()  # here, so that its time is not that of the first test
    except Error as error:
        raise pytest.UsageError(str(error)) from error
    job = config.getoption("--mesh-job")
    board = Board(job or config.getoption("--mesh-reports") or default_folder(), size, rank)
    by_rank = ByRank() if rank == 0 and job is None else None
    deadline = Deadline(timeout, f"rank {rank}", lambda item: True)
    # The deadline is the inner one of both: what it raises is part of the report.
    _register(config, RankSession(board, deadline, by_rank, restartable=job is not None))
    _register(config, deadline)
    if by_rank is not None:
        _register(config, by_rank)


def _register(config: pytest.Config, plugin: object) -> None:
    config.pluginmanager.register(plugin, f"meshfuse-{type(plugin).__name__}")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give tests with the marker mesh(n) their mesh, also where they don't name the fixture."""
    names = getattr(item, "fixturenames", None)
    if mesh_size(item) is not None and names is not None and "mesh_env" not in names:
        names.append("mesh_env")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """As a rank that pytest started: take the tests of this job."""
    job = config.getoption("--mesh-job")
    if job is None:
        return
    by_id = {item.nodeid: item for item in items}
    items[:] = [by_id[name] for name in json.loads((job / "tests.json").read_text())]


@pytest.fixture
def multidevice_test(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MultideviceTest]:
    """Give a MultideviceTest; wait for all ranks after the test."""
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    fixture = MultideviceTest()
    yield fixture
    session = request.config.pluginmanager.get_plugin("meshfuse-RankSession")
    if session is None or session.parted is None:
        fixture.communicator.barrier()


@pytest.fixture
def mesh_env(request: pytest.FixtureRequest) -> Iterator[SimulatedMeshEnv | LaunchedMeshEnv]:
    """Give ``size``, ``mesh`` and ``run(fd, global_inputs)`` on the engine of --mesh-backend.

    During the test the mesh is the current communicator: ``Communicator.instance().size()`` is its
    size. On real ranks, tests whose marker asks for another number of devices are skipped.
    """
    wanted = mesh_size(request.node)
    backend = request.config.getoption("--mesh-backend")
    torch.manual_seed(0)
    if backend == "simulated":
        simulated = SimulatedMeshEnv(DEFAULT_SIZE if wanted is None else wanted)
        with simulated.simulation:
            yield simulated
        return
    env = LaunchedMeshEnv()
    actual = Communicator.instance().backend()
    if actual not in (backend, "single"):
        raise Error(
            f"--mesh-backend={backend}: this process runs on '{actual}'. Start pytest with the "
            "launcher of that backend."
        )
    if wanted is not None and wanted != env.size:
        pytest.skip(f"needs {wanted} ranks, {env.size} were started")
    yield env


@pytest.fixture(scope="session")
def setup_default_process_group() -> Iterator[None]:
    """Open the default torch.distributed group from the launcher's variables; close it later."""
    import torch.distributed as dist

    if dist.is_initialized():  # by the suite
        yield
        return
    communicator = Communicator.instance()
    options: dict[str, Any] = {"backend": "gloo"}
    if torch.cuda.device_count() >= communicator.local_size():
        options = {"backend": "nccl", "device_id": target_device()}
    address = os.environ.get("MASTER_ADDR", "localhost")
    dist.init_process_group(
        init_method=f"tcp://{address}:{os.environ.get('MASTER_PORT', '29500')}",
        world_size=communicator.size(),
        rank=communicator.rank(),
        **options,
    )
    yield
    dist.destroy_process_group()

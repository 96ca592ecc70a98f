# SPDX-License-Identifier: BSD-3-Clause
"""What the fixtures give to tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from .. import _C, multidevice
from .._C import Communicator, DeviceMesh, ParallelType, TensorView
from ..definition import FusionDefinition
from ..pytorch_utils import torch_dtype_to_meshfuse_dtype
from ..simulation import Simulation


def target_device() -> torch.device:
    """Return this rank's CUDA device, which others may share, or the CPU where there is no CUDA."""
    if torch.cuda.is_available():
        return torch.device(
            "cuda", Communicator.instance().local_rank() % torch.cuda.device_count()
        )
    return torch.device("cpu")


class MultideviceTest:
    """What a test on several ranks needs: who it is, and its part of global tensors."""

    def __init__(self) -> None:
        """Join the other ranks and seed torch equally on all of them."""
        self._communicator = Communicator.instance()
        self._device = target_device()
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        torch.manual_seed(0)

    @property
    def communicator(self) -> Communicator:
        """The communicator of this process."""
        return self._communicator

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._communicator.size()

    @property
    def rank(self) -> int:
        """Number of this rank."""
        return self._communicator.rank()

    @property
    def local_size(self) -> int:
        """Number of ranks on this node."""
        return self._communicator.local_size()

    @property
    def local_rank(self) -> int:
        """Number of this rank on this node."""
        return self._communicator.local_rank()

    def shard_tensor(
        self, t: torch.Tensor, where: TensorView | int, mesh: DeviceMesh | None = None
    ) -> torch.Tensor:
        """Return this rank's part of a CPU tensor, on this rank's device.

        Takes ``(t, tv)``, as a tensor of a definition is sharded, or ``(t, dim, mesh)``.
        """
        assert t.device.type == "cpu", f"expected a CPU tensor, but t is on {t.device}"
        if isinstance(where, int):
            if mesh is None:
                raise TypeError("shard_tensor(t, dim, mesh): the mesh is missing")
            return mesh.shard_tensor(t, where, self.rank).to(self._device)
        return multidevice.shard_tensor(t, where).to(self._device)

    def shard_tensor_1d(self, t: torch.Tensor, dim: int, mesh: DeviceMesh) -> torch.Tensor:
        """Return this rank's block of one dim of a CPU tensor, on this rank's device."""
        return self.shard_tensor(t, dim, mesh)


class SimulatedMeshEnv:
    """Programs on global tensors, all devices in this process."""

    def __init__(self, size: int) -> None:
        """Prepare ``size`` devices."""
        self.simulation = Simulation(size)
        self.size = size
        self.mesh = DeviceMesh(range(size))

    def run(self, fd: FusionDefinition, global_inputs: Iterable[Any]) -> list[torch.Tensor]:
        """Run a program on global inputs; return global outputs."""
        return self.simulation.run(fd, global_inputs)


class LaunchedMeshEnv:
    """Programs on global tensors, one device per rank of a launcher."""

    def __init__(self) -> None:
        """Join the other ranks."""
        self._rank = Communicator.instance().rank()
        self.size = Communicator.instance().size()
        self.mesh = DeviceMesh(range(self.size))

    def run(self, fd: FusionDefinition, global_inputs: Iterable[Any]) -> list[torch.Tensor]:
        """Run a program on this rank's part of global inputs; return global outputs."""
        declared = fd._executor().fusion().inputs()
        local = [self._part(v, tv) for v, tv in zip(global_inputs, declared, strict=True)]
        outputs = fd.execute(local)
        devices = list(range(self.size))
        return [
            fd.fec.unshard_output(k, self._gather(part), devices) for k, part in enumerate(outputs)
        ]

    def _part(self, value: Any, tv: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not isinstance(tv, TensorView):
            return value
        if not tv.has_device_mesh():
            return value
        return _C.shard_tensor(value, tv, self._rank)

    def _gather(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Return the parts of all ranks; their sizes may differ."""
        shape = torch.tensor([part.dim(), *part.shape])
        ndim = int(self._gather_equal(shape[:1]).max())
        sizes = self._gather_equal(torch.nn.functional.pad(shape[1:], (0, ndim - part.dim())))
        longest = max(1, int(sizes.prod(1).max()) if ndim else 1)
        flat = torch.nn.functional.pad(part.reshape(-1), (0, longest - part.numel()))
        rows = self._gather_equal(flat)
        return [
            row[: int(n.prod()) if ndim else 1].reshape(n.tolist())
            for row, n in zip(rows, sizes, strict=True)
        ]

    def _gather_equal(self, row: torch.Tensor) -> torch.Tensor:
        """Return a tensor whose row r is rank r's ``row``."""
        if row.numel() == 0:
            return row.new_zeros(self.size, 0)
        with FusionDefinition() as fd:
            dtype = torch_dtype_to_meshfuse_dtype(row.dtype)
            x = fd.define_tensor([self.size, row.numel()], dtype=dtype)
            y = fd.ops.set(x)
            fd.add_output(y)
            x.set_device_mesh(self.mesh)
            y.set_device_mesh(self.mesh)
            x.axis(0).parallelize(ParallelType.mesh_x)
        (rows,) = fd.execute([row.unsqueeze(0)])
        return rows

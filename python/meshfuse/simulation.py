# SPDX-License-Identifier: BSD-3-Clause
"""The simulated mesh: all devices of a mesh in this process, run in lock-step."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch

from . import _C, failure
from ._C import Communicator, CommunicatorGuard, Error, TensorView
from .limits import MAX_DEVICES
from .profiled_run import noted
from .progress import busy
from .repro_on_failure import write_bundle_of_failure

if TYPE_CHECKING:
    from .definition import FusionDefinition


@functools.cache
def _communicator(size: int) -> Communicator:
    # One per size for the life of the process: it has no state, and compiled programs refer to it.
    return _C.make_simulated_communicator(size)


class Simulation:
    """A mesh of ``size`` simulated devices; made by ``meshfuse.simulate(n)``."""

    def __init__(self, size: int) -> None:
        """Prepare a mesh of ``size`` devices."""
        if size > MAX_DEVICES:
            raise Error(
                f"simulate: {size} devices are more than one process can hold. Simulate at most "
                f"{MAX_DEVICES}."
            )
        self._communicator = _communicator(size)
        self._guards: list[CommunicatorGuard] = []
        self._last: list[list[torch.Tensor]] | None = None

    def __enter__(self) -> Simulation:
        """Make this mesh the communicator of this thread."""
        self._guards.append(CommunicatorGuard(self._communicator))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the thread its former communicator back."""
        self._guards.pop().release()

    @property
    def size(self) -> int:
        """Number of devices."""
        return self._communicator.size()

    def run(self, fd: FusionDefinition, global_inputs: Iterable[Any]) -> list[torch.Tensor]:
        """Cut global inputs as the definition says, run every device, join the results.

        Raises:
            meshfuse.Error: inputs do not fit, or an axis does not divide evenly.
        """
        given = flat_inputs(global_inputs)
        parts = self.shard(fd, given)
        with noted(fd, given, is_local=False, devices=self.size):
            self._last = self.execute(fd, parts)
        cache, devices = fd._executor(), list(range(self.size))
        _write_back(fd, given, parts, devices)
        count = len(self._last[0])
        return [
            cache.unshard_output(k, [outputs[k] for outputs in self._last], devices)
            for k in range(count)
        ]

    def local(self, output: int = 0, device: int = 0) -> torch.Tensor:
        """Return one device's part of an output of the last run."""
        if self._last is None:
            raise Error("local: nothing was run on this simulated mesh yet. Call run first.")
        if not 0 <= device < self.size:
            raise Error(
                f"local: device {device} is not one of the {self.size} simulated devices. "
                f"Use 0 to {self.size - 1}."
            )
        outputs = self._last[device]
        if not -len(outputs) <= output < len(outputs):
            raise Error(f"local: output {output} does not exist; the last run had {len(outputs)}.")
        return outputs[output]

    def shard(self, fd: FusionDefinition, global_inputs: Iterable[Any]) -> list[list[Any]]:
        """Return for each device its list of inputs."""
        given = flat_inputs(global_inputs)
        declared = fd._executor().fusion().inputs()
        columns = [
            self._parts(value, declared[i] if i < len(declared) else None)
            for i, value in enumerate(given)
        ]
        return [[column[device] for column in columns] for device in range(self.size)]

    def execute(
        self, fd: FusionDefinition, per_rank_inputs: Sequence[Sequence[Any]]
    ) -> list[list[torch.Tensor]]:
        """Run every device on its own inputs; return for each device its list of outputs."""
        if len(per_rank_inputs) != self.size:
            raise Error(
                f"execute: {len(per_rank_inputs)} lists of inputs were given for {self.size} "
                "simulated devices. Give one list per device."
            )
        try:
            cache = fd._executor()
            with (
                contextlib.nullcontext() if cache.was_run() else busy("compiling and executing"),
                noted(fd, per_rank_inputs[0], is_local=True, devices=self.size),
            ):
                return cache.run_all(list(per_rank_inputs), self._communicator)
        except Exception as error:
            failure.log_once(error, "executing a fusion on a simulated mesh")
            _write_bundle(error, fd, per_rank_inputs)
            raise

    def shard_tensor(self, tensor: torch.Tensor, tv: TensorView) -> list[torch.Tensor]:
        """Return every device's part of a global tensor as ``tv`` is sharded."""
        return [_C.shard_tensor(tensor, tv, device) for device in range(self.size)]

    def _parts(self, value: Any, declared: Any) -> list[Any]:
        if not isinstance(value, torch.Tensor) or not isinstance(declared, TensorView):
            return [value] * self.size
        if not any(axis.is_device_dim() for axis in declared.get_loop_domain()):
            return [value] * self.size
        return [_in_order_of(part, value) for part in self.shard_tensor(value, declared)]


def simulate(n: int) -> Simulation:
    """Return a context with ``n`` simulated devices.

    Example:
        >>> import meshfuse, torch
        >>> with meshfuse.FusionDefinition() as fd:
        ...     x, w = fd.define_tensor([-1, 4]), fd.define_tensor([4, 6])
        ...     fd.add_output(fd.ops.matmul(x, w))
        ...     for t in (x, w):
        ...         t.set_device_mesh(meshfuse.DeviceMesh(range(2)))
        ...     _ = w.outer_split(-1, 2)
        ...     w.axis(-2).parallelize(meshfuse.ParallelType.mesh_x)
        >>> with meshfuse.simulate(2) as sim:
        ...     (out,) = sim.run(fd, [torch.ones(3, 4), torch.ones(4, 6)])
        >>> out.shape, sim.local(output=0, device=1).shape
        (torch.Size([3, 6]), torch.Size([3, 3]))
    """
    return Simulation(n)


def flat_inputs(inputs: Iterable[Any]) -> list[Any]:
    """Return inputs with the lists inside them flattened."""
    flat: list[Any] = []
    for value in inputs:
        flat.extend(flat_inputs(value) if isinstance(value, list | tuple) else [value])
    return flat


def _in_order_of(part: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """Copy ``part`` into the order of dims in memory that ``whole`` has."""
    if whole.is_contiguous() or 0 in part.stride():  # an expanded part stays expanded
        return part
    order = sorted(range(whole.dim()), key=lambda i: -whole.stride()[i])
    back = [order.index(i) for i in range(whole.dim())]
    return part.permute(order).contiguous().permute(back)


def _write_bundle(
    error: Exception, fd: FusionDefinition, per_rank_inputs: Sequence[Sequence[Any]]
) -> None:
    """Write the inputs of a device that is on a mesh, if MESHFUSE_REPRO_DIR asks for it."""
    fusion = None if fd._cache is None else fd._cache.fusion()
    meshes = (
        [tv.get_device_mesh() for tv in fusion.tensors() if tv.has_device_mesh()] if fusion else []
    )
    device = min((min(mesh.devices) for mesh in meshes), default=0)
    given = per_rank_inputs[device] if device < len(per_rank_inputs) else None
    write_bundle_of_failure(error, fusion, given, device)


def _write_back(
    fd: FusionDefinition, given: list[Any], parts: list[list[Any]], devices: list[int]
) -> None:
    """Join the parts of inputs into the global inputs, if the program writes into inputs."""
    fusion = fd._executor().fusion()
    if not any(fusion.hidden_outputs()):
        return
    for i, declared in enumerate(fusion.inputs()):
        own = [inputs[i] for inputs in parts]
        cut = isinstance(given[i], torch.Tensor) and own[0] is not given[i]
        if cut and isinstance(declared, TensorView):
            given[i].copy_(_C.unshard_tensor(own, devices, declared))

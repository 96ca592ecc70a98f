# SPDX-License-Identifier: BSD-3-Clause
"""PythonProfiler: what the steps of executions were, their times, and how much they moved."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from . import profiled_run, trace
from ._C import Error, ProfileRecorder, RunProfile, StepProfile
from .profiled_run import ProfiledRun

_NOTHING = (
    "no kernel segments were profiled. Execute a definition inside the `with PythonProfiler()` "
    "block, on the thread that entered it."
)


@dataclass(frozen=True)
class KernelProfile:
    """One step of an execution.

    Times are wall times in milliseconds, bandwidths gigabytes per second, sizes bytes. On a
    simulated mesh a step is that of all devices together, and so are its time and sizes.
    """

    name: str  #: as ``fd.plan()`` shows the step
    segment_id: int  #: place among the steps of its execution
    scheduler: str  #: "communication", "expr_eval" (computed or copied by ATen), "no_op" (a view)
    time_ms: float
    input_bytes: int
    output_bytes: int
    device: int  #: rank that ran it; 0 on a simulated mesh
    start_ns: int = 0  #: when it began, in nanoseconds since 1970
    host_time_ms: float = 0.0  #: until the host had done or queued the work
    device_time_ms: float = 0.0  #: of the work on a CUDA device, by its events; 0 without one
    stream: int = 0
    correlation_id: int = 0
    compile_time_ms: float = 0.0
    percentage_peak_bandwidth: float = 0.0
    grid_str: str = ""
    block_str: str = ""
    cluster_str: str = ""
    shared_mem_str: str = ""
    registers: int = 0
    devices: int = 1  #: that the step was of; those of the mesh where it is simulated

    @property
    def effective_bandwidth_gbs(self) -> float:
        """Bytes read and written, by the time."""
        return _bandwidth(self.input_bytes + self.output_bytes, self.time_ms)


@dataclass(frozen=True)
class FusionProfile:
    """The executions of one ``with PythonProfiler()`` block.

    Times are wall times in milliseconds and, like sizes, summed over the executions.
    """

    fusion_id: int  #: id of the last definition that was executed; 0 when it has none
    kernel_profiles: list[KernelProfile]  #: every step, in order
    host_time_ms: float  #: of the executions, reading arguments and wrapping results excluded
    compile_time_ms: float  #: to find the plans or compile them
    cuda_evt_time_ms: float  #: from the first to the last step of each execution
    input_bytes: int
    output_bytes: int
    verbose: bool = False
    percentage_peak_bandwidth: float = 0.0
    #: the executions, with the sizes of their inputs
    runs: tuple[ProfiledRun, ...] = field(default=(), repr=False, compare=False)

    @property
    def segments(self) -> int:
        """Number of steps."""
        return len(self.kernel_profiles)

    @property
    def kernel_time_ms(self) -> float:
        """Sum of the times of the steps."""
        return sum(step.time_ms for step in self.kernel_profiles)

    @property
    def communication_time_ms(self) -> float:
        """Sum of the times of the communications."""
        return sum(s.time_ms for s in self.kernel_profiles if s.scheduler == "communication")

    @property
    def device_time_ms(self) -> float:
        """Sum of the times of the steps on a CUDA device, by its events; 0 without one."""
        return sum(step.device_time_ms for step in self.kernel_profiles)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the steps as a trace that Perfetto and ``chrome://tracing`` show.

        Each rank is a track. ``{rank}`` in the path stands for the number of this one, so that the
        ranks of a job write files of their own; ``merge_traces`` makes one of them.
        """
        rank = self.kernel_profiles[0].device if self.kernel_profiles else 0
        target = os.fspath(path).replace("{rank}", str(rank))
        Path(target).write_text(trace.trace_text(self.kernel_profiles), encoding="utf-8")

    @property
    def effective_bandwidth_gbs(self) -> float:
        """Bytes of inputs and outputs, by the time of the steps."""
        return _bandwidth(self.input_bytes + self.output_bytes, self.kernel_time_ms)

    @property
    def percentage_peak_bandwith(self) -> float:
        """The historical spelling of ``percentage_peak_bandwidth``."""
        return self.percentage_peak_bandwidth

    def __str__(self) -> str:
        """Return one line per step."""
        columns = ("time, ms", "host, ms", "device, ms")
        lines = [
            f"{'scheduler':13}  {'  '.join(f'{column:>10}' for column in columns)}"
            f"  {'bytes in':>12}  {'bytes out':>12}  step"
        ]
        for s in self.kernel_profiles:
            lines.append(
                f"{s.scheduler:13}  {s.time_ms:10.4f}  {s.host_time_ms:10.4f}"
                f"  {s.device_time_ms:10.4f}  {s.input_bytes:12}  {s.output_bytes:12}  {s.name}"
            )
        return "\n".join(lines)


class PythonProfiler:
    """Records the executions of this thread inside a ``with`` block.

    Blocks may be nested; the outer one gets what the inner one recorded too. An execution that
    raises is left out.

    Example:
        >>> import torch
        >>> from meshfuse import FusionDefinition, PythonProfiler
        >>> with FusionDefinition() as fd:
        ...     x = fd.define_tensor([2, 3])
        ...     fd.add_output(fd.ops.relu(fd.ops.broadcast(x, [True, False, False])))
        >>> with PythonProfiler() as prof:
        ...     _ = fd.execute([torch.ones(2, 3)])
        >>> [step.scheduler for step in prof.profile.kernel_profiles]
        ['no_op', 'expr_eval']
    """

    def __init__(self, auto_scheduled: bool = True) -> None:
        """Prepare; ``auto_scheduled`` is accepted and makes no difference."""
        self.auto_scheduled = auto_scheduled
        self._recorder = ProfileRecorder()
        self._runs: list[RunProfile] = []
        self._noted: list[ProfiledRun] = []

    def __enter__(self) -> PythonProfiler:
        """Begin to record."""
        self._runs = []
        self._recorder.start()
        self._noted = profiled_run.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        profiled_run.stop(self._noted)
        self._runs = self._recorder.stop()
        _last.runs, _last.noted = self._runs, self._noted

    @property
    def profile(self) -> FusionProfile:
        """What was recorded; there is nothing before the block ends.

        Raises:
            meshfuse.Error: no definition was executed in the block.
        """
        return _fusion_profile(self._runs, self._noted)


class _Last(threading.local):
    """What the last block of this thread recorded."""

    def __init__(self) -> None:
        self.runs: list[RunProfile] = []
        self.noted: list[ProfiledRun] = []


_last = _Last()


def get_fusion_profile() -> FusionProfile:
    """Return what the last profiler of this thread recorded.

    Raises:
        meshfuse.Error: nothing was recorded since the last ``reset_profiler()``.
    """
    return _fusion_profile(_last.runs, _last.noted)


def reset_profiler() -> None:
    """Forget what ``get_fusion_profile`` returns."""
    _last.runs, _last.noted = [], []


def _fusion_profile(runs: list[RunProfile], noted: list[ProfiledRun]) -> FusionProfile:
    if not runs:
        raise Error(_NOTHING)
    return FusionProfile(
        fusion_id=runs[-1].fusion_id,
        kernel_profiles=[
            _kernel_profile(run, i, step, devices)
            for run, devices in zip(runs, _devices(runs, noted), strict=True)
            for i, step in enumerate(run.steps)
        ],
        host_time_ms=sum(run.host_ms for run in runs),
        compile_time_ms=sum(run.compile_ms for run in runs),
        cuda_evt_time_ms=sum(run.steps_ms for run in runs),
        input_bytes=sum(run.input_bytes for run in runs),
        output_bytes=sum(run.output_bytes for run in runs),
        runs=tuple(noted),
    )


def _devices(runs: list[RunProfile], noted: list[ProfiledRun]) -> list[int]:
    """Return how many devices each execution was of."""
    found = [profiled_run.run_at(noted, run.start_ns) for run in runs]
    return [1 if run is None else run.devices for run in found]


def _kernel_profile(run: RunProfile, index: int, step: StepProfile, devices: int) -> KernelProfile:
    return KernelProfile(
        name=step.name,
        segment_id=index,
        scheduler=step.kind,
        time_ms=step.time_ms,
        input_bytes=step.input_bytes,
        output_bytes=step.output_bytes,
        device=run.device,
        start_ns=run.start_ns + round(step.start_ms * 1e6),
        host_time_ms=step.host_ms,
        device_time_ms=step.device_ms,
        devices=devices,
    )


def _bandwidth(bytes_moved: int, time_ms: float) -> float:
    return bytes_moved / (time_ms * 1e6) if time_ms > 0 else 0.0

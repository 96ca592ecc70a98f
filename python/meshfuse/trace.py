# SPDX-License-Identifier: BSD-3-Clause
"""Profiles in the trace format of Chrome, which Perfetto reads too; one track per rank."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .exceptions import Error

if TYPE_CHECKING:
    from .profile import KernelProfile


def trace_text(steps: Sequence[KernelProfile]) -> str:
    """Return the trace of the steps of a profile; times are microseconds since 1970."""
    devices = {step.device: step.devices for step in steps}
    events = [_metadata(rank, devices[rank]) for rank in sorted(devices)]
    for step in steps:
        events.append(
            {
                "name": step.name,
                "cat": step.scheduler,
                "ph": "X",
                "ts": step.start_ns / 1000,
                "dur": step.time_ms * 1000,
                "pid": step.device,
                "tid": 0,
                "args": {
                    "step": step.segment_id,
                    "bytes in": step.input_bytes,
                    "bytes out": step.output_bytes,
                    "host ms": step.host_time_ms,
                    "device ms": step.device_time_ms,
                },
            }
        )
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})


def merge_traces(paths: Iterable[str | os.PathLike[str]], merged: str | os.PathLike[str]) -> None:
    """Make one trace of the traces of ranks, on a common clock.

    Times are those of the clocks of the ranks' machines, so tracks of different machines may be
    shifted by the difference of their clocks.

    Args:
        paths: What ``FusionProfile.save_trace`` wrote.
        merged: File to write.

    Raises:
        meshfuse.Error: a file is no trace, or two are of the same rank.
    """
    events: list[dict[str, Any]] = []
    seen: dict[int, str] = {}
    for given in paths:
        path = os.fspath(given)
        own = _events(path)
        for rank in sorted({event["pid"] for event in own}):
            if rank in seen:
                raise Error(
                    f"merge_traces: {path} and {seen[rank]} are both of rank {rank}. Give one file "
                    "per rank: save_trace('trace-{rank}.json')."
                )
            seen[rank] = path
        events += own
    text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
    Path(merged).write_text(text, encoding="utf-8")


def _events(path: str) -> list[dict[str, Any]]:
    try:
        events = json.loads(Path(path).read_text(encoding="utf-8"))["traceEvents"]
        if all(isinstance(event["pid"], int) for event in events):
            return list(events)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise Error(f"merge_traces: {path} is no trace. Give files that save_trace wrote.")


def _metadata(rank: int, devices: int) -> dict[str, Any]:
    # On a simulated mesh a step is that of all devices.
    name = f"rank {rank}" if devices == 1 else f"simulated devices 0 to {devices - 1}"
    return {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": name}}

# SPDX-License-Identifier: BSD-3-Clause
"""The parts of docs/benchmarks.md that programs write; the rest of the page stays."""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from pathlib import Path

import torch

import harness

PAGE = harness.ROOT / "docs" / "benchmarks.md"


def write(table: str, command: str, remarks: list[str]) -> None:
    """Replace the part of the page that a command writes."""
    start, end = f"<!-- written by {command} -->", f"<!-- end of what {command} writes -->"
    section = "\n".join([start, circumstances(command, remarks), "", table, end])
    page = PAGE.read_text()
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    if not pattern.search(page):
        raise RuntimeError(f"write: {PAGE} has no line {start}. Put it back, and {end} behind it.")
    PAGE.write_text(pattern.sub(lambda _: section, page))


def circumstances(command: str, remarks: list[str]) -> str:
    """Return machine, versions, date and command."""
    import meshfuse

    load = os.getloadavg()[0]
    versions = [
        f"meshfuse {meshfuse.__version__}",
        f"torch {torch.__version__}",
        f"Python {platform.python_version()}",
    ]
    lines = [
        f"- Machine: {_cpu()}, {os.cpu_count()} cores, load {load:.1f} when it ended{_gpu()}",
        f"- Versions: {', '.join(versions)}",
        f"- Date: {datetime.now(UTC):%Y-%m-%d}",
        f"- Command: `{command}`",
        *(f"- {remark}" for remark in remarks),
    ]
    return "\n".join(lines)


def _gpu() -> str:
    return f"; {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    found = re.search(r"model name\s*:\s*(.*)", text)
    return found.group(1) if found else platform.machine()

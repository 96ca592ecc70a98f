# SPDX-License-Identifier: BSD-3-Clause
"""Runs a script for which ``import nvfuser`` and ``import nvfuser_direct`` give meshfuse.

Usage: ``python -m meshfuse.compat [--mf-cpu] script.py [arguments]``. With ``--mf-cpu`` CUDA calls
of the script go to the CPU.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from . import install, redirect_cuda_to_cpu

_USAGE = "usage: python -m meshfuse.compat [--mf-cpu] script.py [arguments]"


def main(arguments: Sequence[str]) -> int:
    """Run the script; returns 2 where the usage is wrong, else what ``runpy`` leaves."""
    rest = list(arguments)
    on_cpu = bool(rest) and rest[0] == "--mf-cpu"
    if on_cpu:
        del rest[0]
    if not rest or rest[0].startswith("-"):
        print(_USAGE, file=sys.stdout if rest[:1] in (["-h"], ["--help"]) else sys.stderr)
        return 0 if rest[:1] in (["-h"], ["--help"]) else 2
    script = Path(rest[0])
    if not script.is_file():
        print(f"meshfuse.compat: there is no script {script}", file=sys.stderr)
        return 2
    install()
    if on_cpu:
        redirect_cuda_to_cpu()
        print("meshfuse.compat: CUDA calls go to the CPU", file=sys.stderr)
    sys.argv = rest
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(str(script), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

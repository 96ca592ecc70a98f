#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks that the folders of csrc/meshfuse depend on one another in one direction only.

Prints one line per include that breaks a rule, and exits with 1 when there is one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Folder -> the folders whose headers it may include, besides its own.
ALLOWED: dict[str, set[str]] = {
    "base": set(),
    "ir": {"base"},
    "schedule": {"base", "ir"},
    "ops": {"base", "ir", "schedule"},
    "text": {"base", "ir", "schedule", "ops"},
    "passes": {"base", "ir", "schedule", "ops"},
    "eval": {"base", "ir", "schedule", "ops"},
    "comm": {"base"},
    "plan": {"base", "ir", "schedule", "ops", "passes", "text", "eval", "comm"},
    "exec": {"base", "ir", "schedule", "ops", "passes", "text", "eval", "comm", "plan"},
}
# Only .cpp files of these folders may include torch, except those that CMake compiles without it.
TORCH_FOLDERS = {"ops", "eval", "plan", "exec", "comm"}
# Headers whose types hold torch's; only files of TORCH_FOLDERS include them.
TORCH_HEADERS = {
    "ops/creation.h",
    "ops/philox.h",
    "ops/sdpa.h",
    "ops/torch_types.h",
    "plan/signature.h",
}
TORCH_FREE = {"ops/registry.cpp", "ops/build.cpp", "ops/factor_map.cpp", "ops/einsum.cpp"}
TOO_WIDE = {"ATen/ATen.h", "torch/torch.h", "torch/extension.h", "torch/all.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')


def includes(file: Path) -> Iterator[tuple[int, str]]:
    """Yield line number and header of every include of ``file``."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if match := INCLUDE.match(line):
            yield number, match[1]


def fault(path: str, folder: str, header: str) -> str | None:
    """Say which rule the include of ``header`` by ``path`` breaks, or None."""
    if header.startswith("meshfuse/"):
        target = header.split("/")[1]
        if target not in ALLOWED:
            return f"{header} is in no known folder"
        if target != folder and target not in ALLOWED[folder]:
            allowed = ", ".join(sorted(ALLOWED[folder])) or "no other folder"
            return f"{folder} may not include {header}; it may use {allowed}"
    elif header.startswith(("ATen/", "c10/", "torch/")):
        if header in TOO_WIDE:
            return f"{header} is slow to compile; include the narrow header, as ATen/ops/<op>.h"
        if header.startswith("c10/cuda"):
            return f"{header} needs CUDA headers, which the build may not need"
        source = path.endswith(".cpp") or path in TORCH_HEADERS
        if folder not in TORCH_FOLDERS or not source or path in TORCH_FREE:
            return f"{header}: only .cpp files of {', '.join(sorted(TORCH_FOLDERS))} use torch"
    elif header.startswith("pybind11/") or header == "Python.h":
        return f"{header}: there is no Python in csrc"
    return None


def main() -> int:
    """Check every file; return the exit status."""
    root = Path(__file__).resolve().parent.parent / "csrc" / "meshfuse"
    faults = []
    for file in sorted([*root.rglob("*.h"), *root.rglob("*.cpp")]):
        path = file.relative_to(root).as_posix()
        folder = path.split("/")[0]
        if folder not in ALLOWED:
            faults.append(f"csrc/meshfuse/{path}: folder {folder} has no rule in check_includes.py")
            continue
        for number, header in includes(file):
            if text := fault(path, folder, header):
                faults.append(f"csrc/meshfuse/{path}:{number}: {text}")
    print("\n".join(faults), end="\n" if faults else "")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

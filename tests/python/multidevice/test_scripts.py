# SPDX-License-Identifier: BSD-3-Clause
"""The scripts of scripts/, which users may copy: as they stand, on all ranks or on one."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script(script: Path) -> None:
    runpy.run_path(str(script), run_name="__main__")

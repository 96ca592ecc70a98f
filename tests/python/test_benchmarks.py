# SPDX-License-Identifier: BSD-3-Clause
"""The benchmarks run: few turns of tiny sizes, whose figures mean nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from rows import ROWS, Figure, table, verdict  # noqa: E402

LACKING = ("is not built", "is not installed", "no benchmark", "no gloo")


def test_every_row_of_a_smoke_run_is_printed() -> None:
    """A row has a figure, or says which program or package is missing."""
    page = ROOT / "docs" / "benchmarks.md"
    before = page.read_bytes()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_"))}
    run = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--smoke"],
        env=environment | {"PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    cells = {
        found[1]: [cell.strip() for cell in line.split("|")]
        for line in run.stdout.splitlines()
        if (found := re.match(r"\| ([^|#-][^|]*?) \|", line))
    }
    assert list(cells) == [row.key for row in ROWS]
    lacking = [(key, row[7]) for key, row in cells.items() if row[6] == ""]
    assert [(key, why) for key, why in lacking if not any(word in why for word in LACKING)] == []
    assert page.read_bytes() == before


def test_verdict_compares_with_target_and_aim() -> None:
    row = ROWS[0]
    values = [row.aim, row.target, row.target + 0.01]
    assert [verdict(row, Figure(row.key, v)) for v in values] == ["pass, aim", "pass", "**fail**"]
    assert verdict(row, Figure(row.key, missing="no mpirun")) == "not run: no mpirun"


def test_table_has_rows_that_were_not_measured() -> None:
    assert table([]).count("not run: it was not measured") == len(ROWS)

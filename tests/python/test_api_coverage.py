# SPDX-License-Identifier: BSD-3-Clause
"""The package has the public names that scripts for its predecessors use."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "api_coverage.py"
PENDING = {"ops.grouped_mm", "ops.reshape", "ops.slice"}  # ops of tier 1 that are still to come


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("api_coverage", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_names_of_tier_1(tool):
    coverage = tool.compare([name for name in tool.read_names() if name.tier == 1])
    assert {name.name for name in coverage.missing} - PENDING == set()


def test_parameter_names(tool):
    """Functions that the list gives parameters for have exactly these."""
    coverage = tool.compare(tool.read_names())
    assert [(name.name, actual) for name, actual in coverage.differing] == []


def test_missing_and_differing_names_are_told(tool):
    names = [
        tool.PublicName(1, "FusionDefinition", None),
        tool.PublicName(1, "FusionDefinition.fly", None),
        tool.PublicName(2, "FusionDefinition.from_pytorch", ("self", "x")),
        tool.PublicName(2, "KernelProfile.name", None),
        tool.PublicName(2, "no_module.name", None),
    ]
    coverage = tool.compare(names)
    assert [name.name for name in coverage.missing] == ["FusionDefinition.fly", "no_module.name"]
    assert [actual for _, actual in coverage.differing] == [("self", "tensor", "static_sizes")]
    assert tool.table(names, coverage) == "tier 1:   1 / 2\ntier 2:   2 / 3"


def test_no_name_twice(tool):
    names = [name.name for name in tool.read_names()]
    assert sorted(names) == sorted(set(names))

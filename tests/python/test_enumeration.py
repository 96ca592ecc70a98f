# SPDX-License-Identifier: BSD-3-Clause
"""Every op, all placements of its operands and results: the right values or a useful refusal.

A seeded sample runs by default. ``MESHFUSE_PLACEMENTS=all`` runs up to 5,000 placements of each
example on each mesh, another number as many.
"""

from __future__ import annotations

import json
import logging
import os

import pytest
import torch
from op_examples import REGISTERED, Example, N, examples_of
from placements import (
    JSON,
    LIMIT,
    MESHES,
    Fault,
    general,
    is_useful,
    outcome,
    placements,
    sample,
    survey,
)

import meshfuse
from meshfuse import DeviceMesh

ASKED = os.environ.get("MESHFUSE_PLACEMENTS", "8")
COUNT = LIMIT if ASKED == "all" else int(ASKED)
RELU = Example("relu", (torch.ones(N, N),), torch.relu)


@pytest.fixture(autouse=True)
def _quiet():
    """Refusals are expected here; the log would be long."""
    log = logging.getLogger("meshfuse")
    before, log.disabled = log.disabled, True
    yield
    log.disabled = before


def test_every_op_has_an_example():
    missing = []
    for op in REGISTERED:
        try:
            assert examples_of(op)
        except KeyError:
            missing.append(op)
    assert missing == [], "give these ops an entry in tests/python/op_examples.py"


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("op", sorted(REGISTERED))
def test_placements(op, mesh):
    for example in examples_of(op):
        counts, faults = survey(example, mesh, COUNT)
        assert faults == [], f"{len(faults)} faults, {counts}; the first:\n{faults[0]}"
        assert counts.total() == len(sample(example, MESHES[mesh], COUNT)[1])


def test_placements_of_a_matrix_on_a_square_mesh():
    """Nowhere, a row or column axis per mesh axis, both on one axis in two orders, or no mesh."""
    found = placements([N, N], (2, 2))
    assert len(found) == len(set(found)) == 9 + 2 + 1
    assert {((0, 1), ()), ((1, 0), ()), ((), ()), ((0,), (1,)), None} <= set(found)
    assert placements([N], (2,)) == [None, ((),), ((0,),)]


def test_axes_that_do_not_divide_are_left_out():
    assert placements([3], (2,)) == [None, ((),)]
    assert placements([6], (2, 2)) == [None, ((),), ((1,),), ((0,),)]


def test_wrong_values_are_a_fault():
    wrong = Example("relu", (torch.ones(N, N),), lambda x: x + 1)
    with pytest.raises(Fault, match="not close"):
        outcome(wrong, DeviceMesh(range(2)), [((0,), ()), None])


def test_wrong_part_of_a_device_is_a_fault(monkeypatch):
    monkeypatch.setattr(meshfuse.simulation.Simulation, "local", lambda *_: torch.zeros(6, N))
    with pytest.raises(Fault, match="not close"):
        outcome(RELU, DeviceMesh(range(2)), [((0,), ()), ((0,), ())])


@pytest.mark.parametrize("kind", [meshfuse.InternalError, AssertionError, IndexError])
def test_other_exceptions_are_faults(monkeypatch, kind):
    def run(*_):
        raise kind("no")

    monkeypatch.setattr(meshfuse.simulation.Simulation, "run", run)
    with pytest.raises(Fault, match=f"{kind.__name__}: no"):
        outcome(RELU, DeviceMesh(range(2)), [None, None])


def test_refusal_must_name_tensor_and_advice(monkeypatch):
    def run(*_):
        raise meshfuse.Error(text)

    monkeypatch.setattr(meshfuse.simulation.Simulation, "run", run)
    text = "relu: axis 0 of T0 has size 3. Choose 4."
    assert outcome(RELU, DeviceMesh(range(2)), [None, None]) == text
    assert general(text) == "relu: axis n of T has size n"
    for text in ("relu: axis 0 has size 3. Choose 4.", "relu: axis 0 of T0 has size 3"):
        assert not is_useful(text)
        with pytest.raises(Fault, match="without a tensor or without advice"):
            outcome(RELU, DeviceMesh(range(2)), [None, None])


def test_committed_table_has_every_op():
    """``python -m placements`` writes it anew."""
    table = json.loads(JSON.read_text())
    assert sorted(table) == sorted(REGISTERED)
    assert all(set(row) == set(MESHES) for row in table.values())

# SPDX-License-Identifier: BSD-3-Clause
"""Progress bars: on terminals only, after a while only, and nothing stays of them."""

from __future__ import annotations

import io
import sys
import threading

import pytest
import torch

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Returns a function to be called in the test, since capturing sets stderr before it."""

    def begin() -> Terminal:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setattr(sys, "stderr", Terminal())
        return sys.stderr

    return begin


def test_items_that_take_long_have_a_bar(terminal, monkeypatch):
    stderr = terminal()
    pytest.importorskip("rich")
    monkeypatch.setattr(progress, "DELAY", 0)
    assert list(progress.tracked("abc", "reading")) == ["a", "b", "c"]
    assert "reading" in stderr.getvalue()


def test_short_work_has_none(terminal):
    stderr = terminal()
    assert list(progress.tracked(range(3), "reading")) == [0, 1, 2]
    with progress.busy("compiling"):
        pass
    assert stderr.getvalue() == ""


def test_no_bar_where_stderr_is_no_terminal(monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert list(progress.tracked(iter("ab"), "reading")) == ["a", "b"]
    with progress.busy("compiling"):
        assert "meshfuse progress" not in [thread.name for thread in threading.enumerate()]
    assert sys.stderr.getvalue() == ""


def test_no_bar_without_rich(terminal, monkeypatch):
    stderr = terminal()
    monkeypatch.setattr(progress, "DELAY", 0)
    for name in ("rich.console", "rich.progress"):
        monkeypatch.setitem(sys.modules, name, None)
    assert list(progress.tracked("ab", "reading")) == ["a", "b"]
    assert stderr.getvalue() == ""


def test_a_block_that_takes_long_is_shown(terminal, monkeypatch):
    stderr = terminal()
    pytest.importorskip("rich")
    monkeypatch.setattr(progress, "DELAY", 0)
    started = threading.Event()
    make = progress._bar

    def bar():
        result = make()
        add = result.add_task

        def add_task(*args, **options):
            try:
                return add(*args, **options)
            finally:
                started.set()

        result.add_task = add_task
        return result

    monkeypatch.setattr(progress, "_bar", bar)
    with progress.busy("compiling"):
        assert started.wait(30)
    assert "compiling" in stderr.getvalue()


def test_a_bar_inside_a_bar_is_left_out(terminal, monkeypatch):
    terminal()
    pytest.importorskip("rich")
    monkeypatch.setattr(progress, "DELAY", 0)
    pairs = [(a, b) for a in progress.tracked("ab", "outer") for b in progress.tracked("xy", "in")]
    assert pairs == [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y")]


def test_one_bar_at_a_time(terminal, monkeypatch):
    """Of threads and of nested work; the outer work has its bar once the inner one has gone."""
    stderr = terminal()
    pytest.importorskip("rich")
    monkeypatch.setattr(progress, "DELAY", 0)
    with progress.Progress("first") as first:
        first.advance(0, 2)
        with progress.busy("second"), progress.Progress("third") as third:
            third.advance(1, 2)
        assert "second" not in stderr.getvalue() and "third" not in stderr.getvalue()
    with progress.Progress("late") as late:
        with progress.Progress("inner") as inner:
            inner.advance(0, 2)
            late.advance(0, 2)
        late.advance(1, 2)
    assert "late" in stderr.getvalue()


def test_dumb_terminals_have_no_bar(terminal, monkeypatch):
    stderr = terminal()
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(progress, "DELAY", 0)
    assert list(progress.tracked("ab", "reading")) == ["a", "b"]
    assert stderr.getvalue() == ""


def test_what_may_take_long_says_so(terminal, monkeypatch):
    """Compiling, explaining, planning, and what runs a definition for the first time."""
    seen = []
    monkeypatch.setattr(progress, "_show_until", lambda what, ended: seen.append(what))
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        fd.add_output(fd.ops.relu(x))
    calls = {
        fd.compiled_ir: ["compiling"],
        fd.explain: ["explaining", "explaining: cost"],
        lambda: meshfuse.plan_costs(fd, mesh=2): ["planning"],
        lambda: fd.execute([torch.ones(4, 6)]): ["compiling and executing"],
        lambda: fd.execute([-torch.ones(4, 6)]): [],
    }
    terminal()
    for call, names in calls.items():
        seen.clear()
        call()
        assert seen == names
    with FusionDefinition() as other, meshfuse.simulate(2) as sim:
        other.add_output(other.ops.relu(other.define_tensor([4, 6])))
    sim.run(other, [torch.ones(4, 6)])
    sim.run(other, [torch.ones(4, 6)])
    assert seen == ["compiling and executing"]


def test_annotations_that_are_tried_have_a_bar(terminal, monkeypatch):
    stderr = terminal()
    pytest.importorskip("rich")
    monkeypatch.setattr(progress, "DELAY", 0)
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([8, 16]), fd.define_tensor([16, 8])
        fd.add_output(fd.ops.matmul(x, w))
        x.set_sharding(meshfuse.from_partition_spec("x, None", DeviceMesh(range(2))))
    fd.explain(suggest=True)
    assert "annotations tried" in stderr.getvalue()


@pytest.mark.parametrize("closed", [False, True])
def test_no_bar_without_stderr(monkeypatch, closed):
    stderr = io.StringIO() if closed else None
    if stderr is not None:
        stderr.close()
    monkeypatch.setattr(sys, "stderr", stderr)
    assert list(progress.tracked("ab", "reading")) == ["a", "b"]
    with progress.busy("compiling"):
        pass


def test_exceptions_end_the_bar(terminal, monkeypatch):
    terminal()
    pytest.importorskip("rich")
    monkeypatch.setattr(progress, "DELAY", 0)
    with pytest.raises(ValueError, match="inside"), progress.busy("compiling"):
        raise ValueError("inside")
    assert "meshfuse progress" not in [thread.name for thread in threading.enumerate()]

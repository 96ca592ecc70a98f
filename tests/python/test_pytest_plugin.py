# SPDX-License-Identifier: BSD-3-Clause
"""The pytest plugin: sessions of their own, on simulated meshes and on real ranks."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_job_end import WRAPPER, find_mpirun
from test_job_end import pytestmark as needs_mpi

import meshfuse

PACKAGE = str(Path(meshfuse.__file__).parents[1])

PROGRAM = """
import os, time
import pytest, torch
from meshfuse import Communicator, DeviceMesh, FusionDefinition, ParallelType, PeerError

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", 0))


def row_parallel(mesh):
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([3, 2 * mesh.size]), fd.define_tensor([5, 2 * mesh.size])
        fd.add_output(fd.ops.linear(x, w))
        for t in (x, w):
            t.set_device_mesh(mesh)
            t.outer_split(-1, mesh.size)
            t.axis(-2).parallelize(ParallelType.mesh_x)
    return fd


def run(mesh_env):
    n = mesh_env.size
    x, w = torch.randn(3, 2 * n), torch.randn(5, 2 * n)
    (out,) = mesh_env.run(row_parallel(mesh_env.mesh), [x, w])
    torch.testing.assert_close(out, torch.nn.functional.linear(x, w))
"""

ALL_PASS = """
def test_fixture(mesh_env):
    run(mesh_env)

@pytest.mark.mesh(2)
def test_marker_alone():
    assert Communicator.instance().size() == 2

@pytest.mark.mesh(3)
@pytest.mark.parametrize("again", [0, 1])
def test_three(mesh_env, again):
    assert mesh_env.size == 3 and mesh_env.mesh == DeviceMesh(range(3))
    run(mesh_env)

def test_no_mesh():
    assert Communicator.instance().size() in (1, 2)
"""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder for tests whose sessions have this package and its plugin."""
    monkeypatch.setenv("PYTHONPATH", PACKAGE)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    if find_mpirun() is not None:
        monkeypatch.setenv("MPIEXEC", find_mpirun())
    return pytester


def run_ranks(session, ranks, *args, limit=120):
    """Run pytest under mpirun; return the exit code, the output and the seconds it took."""
    start = time.monotonic()
    command = [str(WRAPPER), "-np", str(ranks), sys.executable, "-m", "pytest", "-p"]
    done = subprocess.run(
        [*command, "no:cacheprovider", "--color=no", "--mesh-backend=mpi", *args],
        cwd=session.path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=limit,
    )
    return done.returncode, done.stdout, time.monotonic() - start


def section(output):
    """Return the lines of the section on ranks."""
    found = re.search(r"^=+ failures by rank =+$\n(.*?)^[=-]", output, re.DOTALL | re.MULTILINE)
    return [] if found is None else found.group(1).splitlines()


# ---- simulated


def test_simulated_mesh(session):
    session.makepyfile(PROGRAM + ALL_PASS)
    result = session.runpytest_subprocess()
    result.assert_outcomes(passed=5)
    assert section(result.stdout.str()) == []


@pytest.mark.parametrize("marker", ["mesh()", "mesh(0)", "mesh(2, 2)", "mesh('2')", "mesh(n=2)"])
def test_wrong_marker(session, marker):
    session.makepyfile(f"import pytest\n@pytest.mark.{marker}\ndef test_a(): pass")
    result = session.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    given = re.escape(marker.replace('"', "'"))
    text = result.stdout.str() + result.stderr.str()
    assert re.search(rf"test_a: {given} is not a number of devices", text), text


def test_deadline_on_a_simulated_mesh(session):
    """A test of a mesh has one; others are not ours to limit."""
    session.makepyfile(
        """
        import time, pytest
        @pytest.mark.mesh(2)
        def test_hangs(): time.sleep(60)
        def test_other(): time.sleep(1)
        """
    )
    result = session.runpytest_subprocess("--mesh-timeout=0.5", timeout=50)
    result.assert_outcomes(failed=1, passed=1)
    assert "the simulated mesh was not done with the test after 0.5 s." in result.stdout.str()


@pytest.mark.parametrize("seconds", ["-1", "nan", "soon"])
def test_wrong_deadline(session, seconds):
    result = session.runpytest_subprocess(f"--mesh-timeout={seconds}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "--mesh-timeout" in result.stderr.str()


def test_c10d_without_a_launcher(session):
    """Pytest starts a torchrun per number of ranks."""
    session.makepyfile(
        """
import pytest
from meshfuse import Communicator

@pytest.mark.mesh(2)
def test_ranks(mesh_env):
    assert Communicator.instance().backend() == "c10d"
    assert Communicator.instance().size() == 2

def test_here(): assert Communicator.instance().size() == 1
"""
    )
    result = session.runpytest_subprocess("--mesh-backend=c10d", "-q")
    result.assert_outcomes(passed=2)


def test_no_mpirun(session, monkeypatch):
    monkeypatch.setenv("MPIEXEC", "/nowhere/mpirun")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(sys, "executable", sys.executable)
    body = (
        "import sys, meshfuse.testing.launcher as launcher, pytest\n"
        "sys.executable = '/nowhere/python'\n"
        "try: launcher.find_mpirun()\n"
        "except pytest.UsageError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", body], capture_output=True, text=True, timeout=60)
    assert "there is no mpirun. Put it on PATH, set MPIEXEC to it" in done.stdout


# ---- ranks of a launcher


class TestRanks:
    """Sessions that mpirun starts."""

    pytestmark = needs_mpi

    def test_pass(self, session):
        session.makepyfile(PROGRAM + ALL_PASS)
        code, output, _ = run_ranks(session, 2)
        assert code == 0, output
        assert output.count("test session starts") == 1  # only rank 0 prints
        assert "3 passed, 2 skipped" in output
        assert section(output) == []

    def test_failure_on_one_rank(self, session):
        """The test failed on all, and the next one runs."""
        session.makepyfile(
            PROGRAM
            + """
def test_before(mesh_env):
    run(mesh_env)

def test_x(mesh_env):
    run(mesh_env)
    assert RANK != 1, "only here"

def test_after(mesh_env):
    run(mesh_env)
"""
        )
        code, output, _ = run_ranks(session, 2, "--junitxml=out.xml")
        assert code != 0
        assert "1 failed, 2 passed" in output, output
        assert "Failed on rank 1:" in output
        name = "test_failure_on_one_rank.py::test_x"
        assert section(output) == [
            f"rank 1: {name}: AssertionError: only here",
            "rank 0: no failure",
        ]
        assert (session.path / "out.xml").read_text().count("<testsuite ") == 1

    def test_failure_on_all_ranks(self, session):
        session.makepyfile(
            PROGRAM
            + """
def test_x(mesh_env):
    run(mesh_env)
    assert RANK == 7

def test_y(mesh_env):
    with FusionDefinition() as fd:
        fd.add_output(fd.define_tensor([2]))
    fd.execute([torch.ones(3)])

def test_after(mesh_env):
    run(mesh_env)
"""
        )
        code, output, _ = run_ranks(session, 2)
        assert code != 0
        assert "2 failed, 1 passed" in output, output
        lines = section(output)
        assert [line[:7] for line in lines] == ["rank 0:", "rank 0:", "rank 1:", "rank 1:"]
        assert lines[2].endswith("test_x: AssertionError: assert 1 == 7")
        assert "test_y: Error: " in lines[3]

    def test_exception_between_collectives(self, session):
        """Rank 0 waits for rank 1, is released, and the rest is not run."""
        session.makepyfile(
            PROGRAM
            + """
def test_x(mesh_env):
    run(mesh_env)
    if RANK == 1:
        raise KeyError("between")
    run(mesh_env)

def test_after(mesh_env):
    run(mesh_env)

def test_no_mesh():
    pass
"""
        )
        code, output, seconds = run_ranks(session, 2)
        assert code != 0 and seconds < 60
        assert "1 failed, 1 passed, 1 skipped" in output, output
        rank0, rank1, note = section(output)
        assert "rank 0: " in rank0 and "test_x: PeerError: " in rank0 and "rank 1" in rank0[8:]
        assert rank1.startswith("rank 1: ") and rank1.endswith("test_x: KeyError: 'between'")
        assert "rank 1 failed while others communicated" in note

    @pytest.mark.parametrize(
        "hang", ["time.sleep(100)", "open_ended()"], ids=["sleeps", "swallows"]
    )
    def test_hang_of_one_rank(self, session, hang):
        """One that a signal ends, and one that nothing ends."""
        session.makepyfile(
            PROGRAM
            + f"""
def open_ended():
    while True:
        try:
            time.sleep(100)
        except BaseException:
            pass

def test_x(mesh_env):
    run(mesh_env)
    if RANK == 1:
        {hang}
    run(mesh_env)
"""
        )
        code, output, seconds = run_ranks(session, 2, "--mesh-timeout=5")
        assert code != 0 and seconds < 60
        lines = section(output)
        assert lines[0].startswith("rank 0: "), output
        if hang.startswith("time"):
            assert "rank 1 was not done with the test after 5 s." in lines[1]
            assert "PeerError" in lines[0] and "rank 1" in lines[0][8:]
        else:
            assert "TimeoutError" in lines[0] and "while it waited for other ranks" in lines[0]
            assert lines[1].startswith("rank 1: ") and "no report in time" in lines[1]

    def test_different_tests_on_the_ranks(self, session):
        session.makepyfile(
            PROGRAM
            + """
@pytest.mark.parametrize("n", range(2 + RANK))
def test_x(mesh_env, n): pass
"""
        )
        code, output, _ = run_ranks(session, 2)
        assert code != 0
        assert (
            "--mesh-backend: the ranks collected different tests: rank 0 has nothing where rank 1 "
            "has"
        ) in output

    def test_launcher_of_another_backend(self, session):
        session.makepyfile(PROGRAM + "def test_x(mesh_env): pass")
        code, output, _ = run_ranks(session, 2, "--mesh-backend=c10d")
        assert code != 0
        assert (
            "Error: --mesh-backend=c10d: this process runs on 'mpi'. Start pytest with the "
            "launcher of that backend."
        ) in output

    def test_stop_after_first_failure(self, session):
        """-x stops all ranks, also those on which the test passed."""
        session.makepyfile(
            PROGRAM
            + """
def test_x(mesh_env):
    assert RANK != 1

def test_after(mesh_env): run(mesh_env)
"""
        )
        code, output, seconds = run_ranks(session, 2, "-x")
        assert code != 0 and seconds < 60
        assert "1 failed" in output and "passed" not in output

    def test_failure_in_teardown_of_one_rank(self, session):
        session.makepyfile(
            PROGRAM
            + """
@pytest.fixture
def broken():
    yield
    assert RANK != 1

def test_x(mesh_env, broken): run(mesh_env)
def test_after(mesh_env): run(mesh_env)
"""
        )
        code, output, _ = run_ranks(session, 2)
        assert code != 0
        assert "2 passed, 1 error" in output, output
        assert section(output)[0].startswith("rank 1: ")


# ---- ranks that pytest starts


class TestLauncher:
    """Sessions that start mpirun."""

    pytestmark = needs_mpi

    def test_groups(self, session):
        """Each test runs on as many ranks as its mesh has devices, others in this process."""
        session.makepyfile(
            PROGRAM
            + ALL_PASS
            + """
@pytest.mark.mesh(3)
def test_ranks(mesh_env):
    assert int(os.environ["OMPI_COMM_WORLD_SIZE"]) == 3
    print("said by a rank")

def test_here():
    assert "OMPI_COMM_WORLD_SIZE" not in os.environ
"""
        )
        result = session.runpytest_subprocess("--mesh-backend=mpi", "-rP", timeout=120)
        result.assert_outcomes(passed=7)
        assert result.ret == 0
        assert "said by a rank" in result.stdout.str()

    def test_skip_on_the_ranks(self, session):
        """The summary has the reason, and the line where the test was skipped."""
        session.makepyfile(
            PROGRAM
            + """
def test_skipped(mesh_env):
    pytest.skip("not on these ranks")
"""
        )
        result = session.runpytest_subprocess("--mesh-backend=mpi", "-rs", timeout=120)
        result.assert_outcomes(skipped=1)
        result.stdout.re_match_lines([r"SKIPPED \[1\] .*\.py:\d+: not on these ranks"])

    def test_failures(self, session):
        """After a group is closed other ranks run the rest."""
        session.makepyfile(
            PROGRAM
            + """
def test_assert(mesh_env):
    run(mesh_env)
    assert RANK != 1, "only here"

def test_between(mesh_env):
    if RANK == 1:
        raise KeyError("between")
    run(mesh_env)

def test_dies(mesh_env):
    if RANK == 0:
        print("last words", flush=True)
        os._exit(3)
    run(mesh_env)

def test_after(mesh_env):
    run(mesh_env)
"""
        )
        result = session.runpytest_subprocess("--mesh-backend=mpi", timeout=120)
        result.assert_outcomes(failed=3, passed=1)
        lines = section(result.stdout.str())
        assert any(re.match("rank 1: .*test_assert: AssertionError: only here", x) for x in lines)
        assert any(re.match("rank 0: .*test_between: PeerError: ", x) for x in lines)
        assert any(re.match("rank 1: .*test_between: KeyError: 'between'", x) for x in lines)
        assert any(re.match("rank 0: .*test_dies: no report; the job of 2 ranks", x) for x in lines)

    def test_hang(self, session):
        session.makepyfile(
            PROGRAM
            + """
def test_x(mesh_env):
    if RANK == 1:
        time.sleep(100)
    run(mesh_env)

def test_after(mesh_env): run(mesh_env)
"""
        )
        result = session.runpytest_subprocess("--mesh-backend=mpi", "--mesh-timeout=5", timeout=120)
        result.assert_outcomes(failed=1, passed=1)
        lines = section(result.stdout.str())
        assert "rank 1 was not done with the test after 5 s." in lines[1]

    def test_job_that_does_not_begin(self, session):
        """All tests of the group fail with what the job printed."""
        session.makepyfile(PROGRAM + ALL_PASS)
        session.makeconftest("import os\nif 'OMPI_COMM_WORLD_RANK' in os.environ: os._exit(5)")
        result = session.runpytest_subprocess("--mesh-backend=mpi", timeout=120)
        result.assert_outcomes(failed=4, passed=1)
        assert "the job of 2 ranks ended with exit code" in result.stdout.str()

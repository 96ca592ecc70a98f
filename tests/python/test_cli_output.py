# SPDX-License-Identifier: BSD-3-Clause
"""Standard output of the command line: terminals, files, pipes, and what scripts write to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from cli_programs import ROW_PARALLEL, run, written

from meshfuse import cli


@pytest.fixture
def text(tmp_path):
    return written(tmp_path, "model.mf", ROW_PARALLEL)


def call(*arguments, **options):
    """Call the command line in a process of its own; names in capitals are variables."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment |= {name: options.pop(name) for name in list(options) if name.isupper()}
    start = options.pop("start", ["-m", "meshfuse"])
    command = [sys.executable, *start, *map(str, arguments)]
    options = {"stderr": subprocess.PIPE, **options}
    return subprocess.run(command, env=environment, timeout=120, check=False, **options)


# ---- JSON


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["explain"], "Missing argument 'FILE'."),
        (["explain", "FILE", "--fly"], "No such option"),
        (["check", "FILE", "--mesh", "two"], "'two' is not a mesh."),
        (["check", "FILE", "--examples"], "requires an argument"),
        (["check", "FILE", "--examples", "0"], "0 is not in the range x>=1"),
        (["explain", "FILE", "--size", "T0=a"], "'T0=a' is not NAME=SIZE."),
        (["run", "-n", "two"], "'two' is not a valid integer range"),
        (["fly"], "No such command 'fly'."),
    ],
    ids=" ".join,
)
def test_wrong_usage_is_json(text, arguments, message):
    command, *rest = (str(text) if word == "FILE" else word for word in arguments)
    result = run(command, "--json", *rest)
    assert result.exit_code == 2
    assert message in json.loads(result.stdout)["error"]
    assert run(command, *rest).stdout == ""


def test_json_that_a_script_of_run_asks_for(text):
    """Its own arguments are no options of this command."""
    result = run("run", "-n", "two", text, "--json")
    assert (result.exit_code, result.stdout) == (2, "")


NOISY = """\
import atexit, os
from meshfuse import FusionDefinition
os.write(1, b"raw\\n")
atexit.register(lambda: os.write(1, b"raw at the end\\n"))
atexit.register(lambda: print("printed at the end"))
def make():
    os.system("echo from a process")
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.neg(fd.define_tensor([4])))
    return fd
"""


@pytest.mark.parametrize("command", ["explain", "plan", "check", "visualize"])
def test_what_scripts_write_is_on_stderr(tmp_path, command):
    """Past Python's stdout, too, and while the process ends."""
    script = written(tmp_path, "noisy.py", NOISY)
    result = call(command, f"{script}:make", "--json", stdout=subprocess.PIPE, text=True)
    assert result.returncode == 0 and json.loads(result.stdout)
    written_by_it = {"raw", "from a process", "printed at the end", "raw at the end"}
    assert set(result.stderr.splitlines()) == written_by_it


def test_stdout_is_given_back(tmp_path, capfd):
    """A program that calls the command line keeps its standard output."""
    script = written(tmp_path, "noisy.py", NOISY.replace("atexit.register", "(lambda f: f)"))
    code = (
        "import os, sys; from meshfuse import cli; "
        f"print(cli.main(['plan', {str(script) + ':make'!r}, '--json'])); os.write(1, b'raw')"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.startswith("[\n") and sorted(shown.stdout[-5:].split()) == ["0", "raw"]
    assert cli.main(["plan", f"{script}:make"]) == 0


# ---- where it cannot be written


@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "FILE"],
        ["explain", "FILE", "--json"],
        ["explain", "none", "--json"],
        ["plan", "FILE"],
        ["visualize", "FILE"],
        ["doctor", "--quick"],
        ["--help"],
    ],
    ids=" ".join,
)
def test_full_device(text, arguments):
    arguments = [str(text) if word == "FILE" else word for word in arguments]
    with open("/dev/full", "w") as full:
        result = call(*arguments, stdout=full, text=True)
    command = f"{arguments[0]}: " if arguments[0] != "--help" else ""
    assert (result.returncode, result.stderr) == (
        1,
        f"meshfuse: {command}cannot write to standard output: No space left on device.\n",
    )


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_closed_stdout(text, more):
    result = call("explain", text, *more, preexec_fn=lambda: os.close(1), text=True)
    assert (result.returncode, result.stderr) == (
        1,
        "meshfuse: explain: cannot write to standard output: it is closed.\n",
    )


def test_pipe_that_nobody_reads(text):
    """As of other programs: no word, and the exit code that shells give SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    result = call("explain", text, stdout=writer)
    os.close(writer)
    assert (result.returncode, result.stderr) == (141, b"")


def test_closed_stderr(text):
    result = call("explain", text, stdout=subprocess.PIPE, preexec_fn=lambda: os.close(2))
    assert result.returncode == 0 and result.stdout.startswith(b"1 communication")


def test_encoding_that_lacks_a_letter(text):
    """The line of a table."""
    result = call("plan", text, stdout=subprocess.PIPE, PYTHONIOENCODING="ascii")
    assert result.returncode == 0 and result.stdout.startswith(b"mesh")


# ---- terminals


def on_terminal(*arguments, **options):
    """Return what a terminal gets."""
    ours, theirs = os.openpty()
    environment = {"TERM": "xterm-256color", **options}
    result = call(*arguments, stdout=theirs, stderr=theirs, **environment)
    os.close(theirs)
    shown = b""
    while True:
        try:
            shown += os.read(ours, 65536)
        except OSError:  # the end
            break
    os.close(ours)
    assert result.returncode == 0, shown
    return shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("command", ["explain", "visualize"])
@pytest.mark.parametrize(
    ("variables", "coloured"),
    [({}, True), ({"TERM": "dumb"}, False), ({"NO_COLOR": "1"}, False)],
    ids=["colours", "dumb", "no-color"],
)
def test_colours(text, command, variables, coloured):
    shown = on_terminal(command, text, **variables)
    assert ("\x1b[3" in shown) == coloured


@pytest.mark.parametrize("columns", ["20", "0", "1"])
def test_narrow_terminals(text, columns):
    """Lines are the terminal's to wrap: nothing is cut."""
    assert "communications" in on_terminal("plan", text, COLUMNS=columns, TERM="dumb")
    assert "1. all-reduce over mesh_x" in on_terminal("explain", text, COLUMNS=columns, TERM="dumb")


def test_one_bar_at_a_time(text):
    """Bars of examples and of their executions do not overwrite each other."""
    at_once = "from meshfuse import cli, progress; progress.DELAY = 0; cli.main()"
    shown = on_terminal("check", text, start=["-c", at_once])
    assert "check: examples" in shown and "executing" not in shown and "checking" not in shown

# SPDX-License-Identifier: BSD-3-Clause
"""The command line as a whole; FILE in all its forms; ``explain`` and ``check``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_programs import ROW_PARALLEL, SCRIPT, failed, ok, ok_json, process, run, written

import meshfuse
from meshfuse import FusionDefinition, cli
from meshfuse.cli.app import COMMANDS
from meshfuse.cli.command import WrongInput
from meshfuse.cli.program_file import load
from meshfuse.cli.sizes import names_of_text


@pytest.fixture
def script(tmp_path):
    return written(tmp_path, "model.py", SCRIPT)


@pytest.fixture
def text(tmp_path):
    return written(tmp_path, "model.mf", ROW_PARALLEL)


# ---- the whole


def test_list_of_commands():
    shown = ok("--help")
    assert all(
        re.search(rf"^  {name} +{line[:20]}", shown, re.M) for name, line in COMMANDS.items()
    )
    assert "Exit codes: 0 fine, 1 what was asked for does not hold, 2 wrong usage." in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_command(name):
    """Every command has help, --json and --traceback."""
    shown = ok(name, "--help")
    assert f" {name} [OPTIONS]" in shown and "--json" in shown and "--traceback" in shown


def test_version():
    assert ok("--version") == f"meshfuse, version {meshfuse.__version__}\n"


@pytest.mark.parametrize("arguments", [["fly"], ["explain"], ["check", "x", "--examples", "0"]])
def test_wrong_usage(arguments):
    assert run(*arguments).exit_code == 2


def test_main_returns_the_exit_code(text, capsys):
    assert cli.main(["explain", str(text)]) == 0
    assert cli.main(["explain"]) == 2
    assert "Missing argument 'FILE'" in capsys.readouterr().err


def test_import_of_meshfuse_imports_no_command_line():
    code = (
        "import sys, meshfuse; print([m for m in ('click', 'rich', 'meshfuse.cli') "
        "if m in sys.modules])"
    )
    call = [sys.executable, "-c", code]
    assert subprocess.run(call, capture_output=True, text=True, check=True).stdout == "[]\n"


def test_as_a_process(text):
    """No colours, no traceback, and the exit codes, where output goes to a file."""
    good, bad = process("explain", text), process("explain", "missing.mf")
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.startswith("1 communication, 128 bytes per device\n\n")
    assert "\n1. all-reduce over mesh_x" in good.stdout
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == (
        "meshfuse: there is no file missing.mf. Give a program in text form, or SCRIPT.py:OBJECT.\n"
    )


# ---- FILE


@pytest.mark.parametrize("name", ["definition", "matmul", "Neg"])
def test_objects_of_a_script(script, name):
    """An instance, a function and a class; what the script prints is not on standard output."""
    result = run("explain", f"{script}:{name}", "--json")
    assert result.exit_code == 0
    assert {t["name"] for t in json.loads(result.stdout)["tensors"]} >= {"T0", "T1"}
    assert result.stderr == "the script ran\n"


HAS = (
    "It has matmul (function), Neg (class), Sized (class of n), nothing (function), given "
    "(function of fd), failing (function), refused (function), definition (definition)."
)


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        ("", f"FILE is a script: say which of its objects, as in FILE:NAME. {HAS}"),
        (":other", f"FILE has no other. {HAS}"),
        (
            ":number",
            "FILE:number is of type int, not a FusionDefinition, a class of definitions or a "
            f"function that returns one. {HAS}",
        ),
        (
            ":torch",
            "FILE:torch is the module torch, not a FusionDefinition, a class of definitions or a "
            f"function that returns one. {HAS}",
        ),
        (
            ":DeviceMesh",
            "FILE:DeviceMesh is the class DeviceMesh, not a FusionDefinition, a class of "
            f"definitions or a function that returns one. {HAS}",
        ),
        (
            ":Sized",
            "FILE:Sized is a class that needs arguments (n), but it is called without any. Give "
            "them defaults, or add to the script a function without parameters that calls it.",
        ),
        (
            ":given",
            "FILE:given is a function that needs arguments (fd), but it is called without any. "
            "Give them defaults, or add to the script a function without parameters that calls it.",
        ),
        (":nothing", "FILE:nothing returned None, not a FusionDefinition. Return the definition."),
        (":failing", "FILE:failing raised OSError: no weights at FILE:37."),
        (
            ":refused",
            "FILE:refused raised Error: matmul: axis 1 of T0 has size 6 but axis 0 of T1 has size "
            "7; both are 'k' of the operation. Give operands whose sizes agree at FILE:42.",
        ),
    ],
    ids=lambda value: value.split(" ")[0].strip(":") or "none",
)
def test_wrong_objects(script, suffix, message):
    code, told = failed("explain", f"{script}{suffix}")
    told = told.removeprefix("the script ran\n").removeprefix("called\n")
    assert code == 2
    assert told.removeprefix("meshfuse: ") == message.replace("FILE", str(script))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = (", "FILE is not Python: '(' was never closed, in line 1."),
        ("x = '\0'", "FILE is not Python: source code string cannot contain null bytes."),
        ("raise BaseException(2)", "FILE raised BaseException: 2 at FILE:1."),
        ("1 / 0", "FILE raised ZeroDivisionError: division by zero at FILE:1."),
        ("import no_such_module", "FILE raised ModuleNotFoundError: No module named"),
        ("raise SystemExit(3)", "FILE raised SystemExit: 3 at FILE:1."),
        ("x = 1", "It has no definitions and no functions."),
    ],
)
def test_wrong_scripts(tmp_path, content, message):
    file = written(tmp_path, "bad.py", content)
    code, told = failed("explain", f"{file}:{'x' if content != 'x = 1' else 'y'}")
    assert code == 2 and message.replace("FILE", str(file)) in told


def test_script_that_is_missing():
    assert failed("check", "nope.py:f") == (2, "there is no script nope.py.")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hello", "is not a program in text form, as fd.ir() prints it: parseIr: line 1"),
        ("T0: f32[i0{4}]\n", "is not a program in text form"),
        (b"\xff\xfe\x00", "cannot be read as text"),
        ("T0: f32[]\n\0", "is not text: line 2 has a zero byte."),
    ],
)
def test_wrong_text(tmp_path, content, message):
    file = tmp_path / "bad.mf"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    code, told = failed("explain", file)
    assert code == 2 and message in told and told.startswith(str(file))


def test_text_with_a_byte_order_mark(tmp_path):
    (tmp_path / "bom.mf").write_bytes(b"\xef\xbb\xbf" + ROW_PARALLEL.encode())
    assert ok("explain", tmp_path / "bom.mf").startswith("1 communication")


def test_file_without_an_end():
    code, told = failed("explain", "/dev/zero")
    assert code == 2 and told.startswith("/dev/zero has more than 67108864 bytes, too many for a")


def test_standard_input():
    result = run("explain", "-", input=ROW_PARALLEL)
    assert result.exit_code == 0 and result.stdout.startswith("1 communication")
    assert failed("explain", "-", input="hello")[1].startswith("standard input is not a program")


def test_standard_input_that_is_closed(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(WrongInput, match=r"input cannot be read as text: .* it is closed"):
        load("-")


def test_folder_is_no_program(tmp_path):
    code, told = failed("explain", tmp_path)
    assert code == 2 and "cannot be read as text" in told


def test_json_has_the_error_too(tmp_path):
    result = run("explain", tmp_path / "none.mf", "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"].startswith("there is no file ")


def test_traceback(tmp_path):
    """--traceback, and the variable, show it; message and exit code stay."""
    file = written(tmp_path, "bad.mf", "hello")
    for result in (
        run("explain", file, "--traceback"),
        run("explain", file, env={"MESHFUSE_TRACEBACK": "1"}),
    ):
        assert result.exit_code == 2
        assert result.stderr.startswith("Traceback (most recent call last)")
        assert f"\nmeshfuse: {file} is not a program in text form" in result.stderr


# ---- explain


def test_explain_is_the_report(text):
    assert ok("explain", text) == str(meshfuse.parse_ir(ROW_PARALLEL).explain()) + "\n"
    assert ok_json("explain", text) == meshfuse.parse_ir(ROW_PARALLEL).explain().to_dict()


UNEVEN = """\
T0: f32[i0{5}, i1{4}] { i2{2}@x, i3{3} = split i0 outer 2 } mesh(x=2 "a) b")
T1 = sum(T0, dims=[0]): f32[r0{5}, i1{4}]
return T1
"""


def test_uneven_programs_in_text_form(tmp_path):
    file = written(tmp_path, "uneven.mf", UNEVEN)
    assert failed("explain", file)[0] == 2
    assert ok_json("explain", file, "--uneven")["bytes"] == 16
    assert "20 examples on mesh" in ok("check", file, "--uneven")
    assert ok_json("plan", file, "--uneven", "--mesh", "5")[0]["peak_memory"] == 32
    assert "T0: f32[5@x, 4]" in ok("visualize", file, "--uneven")


FAULTS = """\
from meshfuse import FusionDefinition
never, begun = FusionDefinition(), FusionDefinition()
begun.__enter__()
with FusionDefinition() as empty:
    pass
class Holder:
    @property
    def fd(self):
        raise ValueError("no weights")
holder = Holder()
class Odd(BaseException):
    def __str__(self):
        raise RuntimeError
def odd():
    raise Odd
def generator():
    raise GeneratorExit
class Liar:
    @property
    def __class__(self):
        raise OSError("no class")
liar = Liar()
class Later(FusionDefinition):
    def definition(self):
        raise NotImplementedError("later")
def by_torch():
    import torch
    torch.distributed.init_process_group("none")
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("never", "is not a finished definition: Fusion does not exist! Use"),
        ("begun", "is not a finished definition: the definition is still open. Leave its `with`"),
        ("empty", "is not a finished definition: Fusion is empty! Add an output"),
        ("holder.fd", "raised ValueError: no weights at FILE:9."),
        ("odd", "raised Odd (its __str__ raises RuntimeError) at FILE:15."),
        ("generator", "raised GeneratorExit at FILE:17."),
        ("liar", "raised OSError: no class at FILE:21."),
        ("Later", "raised NotImplementedError: later at FILE:25."),
        ("by_torch", "at FILE:28."),
    ],
)
def test_faults_of_scripts(tmp_path, name, message):
    """They are named as the script's, with its line, whatever it raises and wherever."""
    file = written(tmp_path, "faults.py", FAULTS)
    code, told = failed("explain", f"{file}:{name}")
    assert code == 2 and told.startswith(f"{file}:{name} ")
    assert message.replace("FILE", str(file)) in told


BAD_CLASS = """\
from meshfuse import FusionDefinition
class Block(FusionDefinition):
    def definition(self):
        raise ValueError("no weights")
block = Block()
"""


@pytest.mark.parametrize("wanted", ["Block", "block"])
def test_class_whose_definition_raises(tmp_path, wanted):
    file = written(tmp_path, "bad.py", BAD_CLASS)
    assert failed("explain", f"{file}:{wanted}") == (
        2,
        f"{file}:{wanted} raised ValueError: no weights at {file}:4.",
    )


def test_uneven_is_for_texts(tmp_path):
    code, told = failed("check", "model.py:fd", "--uneven")
    assert code == 2 and told.startswith(
        "--uneven is for programs in text form, but model.py:fd is"
    )


def test_explain_with_sizes(tmp_path):
    file = written(tmp_path, "open.mf", ROW_PARALLEL.replace("i0{4}", "i0{T0.0}"))
    assert ok_json("explain", file, "--size", "T0.0=8")["bytes"] == 256
    assert ok_json("explain", file, "--size", "T0=8x16")["bytes"] == 256


def test_explain_of_open_sizes(tmp_path):
    """All but the bytes that depend on them."""
    file = written(tmp_path, "open.mf", OPEN_SIZES)
    head, first, second, tensors = ok("explain", file).split("\n\n")
    assert head == (
        "2 communications; the bytes depend on sizes that the program leaves open: give "
        "--size T0.0=4 --size T0.1=4 --size T1.0=4"
    )
    assert first.startswith("1. all-gather over mesh_x for T5 = set(...): 32 bytes per device")
    assert second.startswith("2. all-reduce over mesh_x for T2 = matmul(...): unknown bytes per d")
    assert tensors.startswith("tensors:\n  T0: axis 1 split over mesh_x")
    found = ok_json("explain", file)
    assert [c["bytes"] for c in found["communications"]] == [32, None]
    assert found["bytes"] is None and found["cost"] is None
    assert ok_json("explain", file, "--size", "T0.0=4")["bytes"] == 2 * 128 + 32
    assert "unknown" in ok("explain", file, "--size", "T0.1=6")
    code, told = failed("explain", file, "--size", "T0.1=7")
    assert code == 1 and "of size 7 is not divisible by 3 (DeviceMesh{0 1 2} has 3" in told
    code, told = failed("explain", file, "--suggest")
    assert code == 1 and told.endswith("Give each, as in --size T0.0=4 --size T1.1=4.")


OPEN_SIZES = """\
T0: f32[i0{T0.0}, i1{T0.1}] { i2{3}@x, i3{(ceilDiv(T0.1, 3))} = split i1 outer 3 } mesh(x=3)
T1: f32[i0{T1.0}, i1{T1.1}] { i2{3}@x, i3{(ceilDiv(T1.0, 3))} = split i0 outer 3 } mesh(x=3)
T2 = matmul(T0, T1): f32[i0{T0.0}, i1{T1.1}, r2{T0.1}]
T3: f32[i0{12}] { i1{3}@x, i2{4} = split i0 outer 3 } mesh(x=3)
T4 = neg(T3): f32[i0{12}] { i1{3}@x, i2{4} = split i0 outer 3 } mesh(x=3)
T5 = set(T4): f32[i0{12}] mesh(x=3)
T6 = add(T2, T5): f32[i0{T0.0}, i1{12}] mesh(x=3)
return T6
"""


def test_explain_in_strict_mode(text, monkeypatch):
    """It says that the program is refused, and why, and still what is communicated."""
    monkeypatch.setenv("MESHFUSE_STRICT", "1")
    result = run("explain", text)
    assert result.exit_code == 1
    assert result.stdout.startswith(
        "refused in strict mode: matmul: T2 needs an implicit all-reduce over mesh_x"
    )
    assert "\n1. all-reduce over mesh_x" in result.stdout
    result = run("explain", text, "--json", "--size", "T0=4x16")
    found = json.loads(result.stdout)
    assert found["refused"].startswith("strict mode: ") and found["bytes"] == 128


def test_explain_of_a_program_that_strict_mode_takes(tmp_path, monkeypatch):
    monkeypatch.setenv("MESHFUSE_STRICT", "1")
    assert ok("explain", written(tmp_path, "local.mf", LOCAL)).startswith("no communications")


@pytest.mark.parametrize("digits", ["99999999999999999999", "9" * 5000], ids=len)
def test_sizes_that_are_too_large(text, digits):
    code, told = failed("explain", text, "--size", f"T0.0={digits}")
    assert code == 2
    assert "a size is at most 9223372036854775807." in " ".join(told.split())


def test_sizes_that_are_none(text):
    code, told = failed("explain", text, "--size", "T0=a")
    assert code == 2
    assert "'T0=a' is not NAME=SIZE. Write T0.1=64 for a size that is open" in told


LOCAL = """\
T0: f32[i0{T0.0}, i1{T0.1}] { i2{2}@x, i3{(ceilDiv(T0.0, 2))} = split i0 outer 2 } mesh(x=2)
T1 = neg(T0): f32[i0{T0.0}, i1{T0.1}]
return T1
"""


@pytest.mark.parametrize("command", ["explain", "plan", "visualize"])
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            "T0=7x4",
            "axis 0 of T0 of size 7 is not divisible by 2 (DeviceMesh{0 1} has 2 devices). Choose "
            "a size that 2 divides, or pad the tensor first.",
        ),
        (
            "T0=4611686018427387904x4",
            "T0 of sizes [4611686018427387904, 4] has more elements than a tensor can, "
            "9223372036854775807. Give smaller sizes.",
        ),
    ],
    ids=["uneven", "huge"],
)
def test_sizes_that_cannot_run(tmp_path, command, sizes, message):
    """No communication needs them, and still nothing is costed or drawn that no rank can do."""
    file = written(tmp_path, "local.mf", LOCAL)
    assert failed(command, file, "--size", sizes) == (1, f"{command}: {message}")
    assert run(command, file, "--size", "T0=6x4").exit_code == 0


@pytest.mark.parametrize("command", ["explain", "plan", "visualize"])
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        (
            ["T0.0=6x7"],
            "'T0.0=6x7' gives 2 sizes for T0.0, which is one. Write T0.0=6, or T0=6x7 for all "
            "sizes of an input.",
        ),
        (
            ["T0=6x4", "T0=6x4"],
            "T0 is given twice, as 'T0=6x4' and 'T0=6x4'. Give each input or open size once.",
        ),
        (["T0.0=6", "T0.0 = 8"], "T0.0 is given twice, as 'T0.0=6' and 'T0.0=8'."),
    ],
)
def test_sizes_that_are_malformed(tmp_path, command, sizes, message):
    file = written(tmp_path, "local.mf", LOCAL)
    code, told = failed(command, file, *(word for size in sizes for word in ("--size", size)))
    assert code == 2 and message in " ".join(told.split())


# ---- check


def test_check(text):
    assert ok("check", text, "--examples", "2").startswith(
        "check: 2 examples on mesh(x=2) equal the program alone\n"
    )
    meshes = ["4", "2x2", "dp=2,tp=1"]  # as plan and convert write them, too
    options = [word for mesh in meshes for word in ("--mesh", mesh)]
    found = ok_json("check", text, *options, "--examples", "1")
    assert found["holds"] and found["failure"] is None
    assert [r["mesh"] for r in found["reports"]] == meshes


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("mesh(x=2)", "2"),
        ('mesh(y=2 "a) b; c", x=4 "tp": 0 1 2 3 4 5 6 7)', "a) b; c=2,tp=4"),
        ("mesh(y=2, x=4); mesh(x=2: 2 3)", "2x4; 2"),
        ("", "none"),
    ],
)
def test_names_of_meshes(text, name):
    assert names_of_text(text) == name


def test_check_of_a_mesh_that_does_not_fit(text):
    code, told = failed("check", text, "--mesh", "3")
    assert code == 1 and "cannot be divided by 3" in told


def test_check_that_fails(text, monkeypatch):
    """The message has the smallest program; JSON has its parts."""
    from meshfuse import check_run

    right = check_run.run_on_mesh
    monkeypatch.setattr(
        check_run, "run_on_mesh", lambda *a: [[r + 1 for r in row] for row in right(*a)]
    )
    code, told = failed("check", text, "--examples", "1")
    assert code == 1 and "The smallest program found" in told
    result = run("check", text, "--examples", "1", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert not found["holds"] and "import meshfuse" in found["failure"]["script"]


@pytest.mark.parametrize(
    "call", [["check", "FILE", "--rtol"], ["doctor", "--quick", "--timeout"]], ids=lambda c: c[0]
)
@pytest.mark.parametrize(
    ("number", "message"),
    [
        ("nan", "nan is not a finite number."),
        ("-1", "-1.0 is not in the range"),
        ("inf", "inf is not "),
    ],
)
def test_numbers_that_are_none(text, call, number, message):
    code, told = failed(*(text if word == "FILE" else word for word in call), number)
    assert code == 2 and message in " ".join(told.split())


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("two", "'two' is not a mesh. Write 8, 2x4 (the last one is x), or dp=2,tp=4"),
        ("2x2x2x2", "a mesh has 1 to 3 axes of at least 1 device"),
        ("0", "a mesh has 1 to 3 axes of at least 1 device"),
        ("a=2,a=2", "names"),
    ],
)
def test_wrong_meshes(text, mesh, message):
    code, told = failed("check", text, "--mesh", mesh)
    assert code == 2 and message in re.sub(r"\s+", " ", told)


def test_unexpected_errors_are_one_message(text, monkeypatch):
    def broken(*arguments, **options):
        raise KeyError("k")

    monkeypatch.setattr(FusionDefinition, "explain", broken)
    code, told = failed("explain", text)
    assert (code, told) == (
        1,
        "explain: unexpected KeyError: 'k'. Run it again with --traceback to see where, and report "
        "it with the program.",
    )


def test_interrupt(text, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(FusionDefinition, "explain", interrupted)
    assert failed("explain", text) == (130, "interrupted")


@pytest.mark.parametrize("arguments", [["doctor", "--json"], ["explain", "x", "--json"], []])
def test_package_that_cannot_be_imported(tmp_path, arguments):
    """The command is outside the package: one message, which JSON has, too."""
    (tmp_path / "meshfuse").mkdir()
    message = "meshfuse was built against torch 2.11, but torch 9 is installed. Rebuild it: pip"
    written(tmp_path / "meshfuse", "__init__.py", f"raise ImportError({message!r})")
    (tmp_path / "meshfuse_command").symlink_to(
        Path(__file__).resolve().parents[2] / "python" / "meshfuse_command"
    )
    code = "import sys, meshfuse_command; sys.exit(meshfuse_command.main())"
    result = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (1, f"meshfuse: {message}\n")
    if "doctor" in arguments:
        (check,) = json.loads(result.stdout)["checks"]
        assert (check["status"], check["cure"]) == ("failed", "Rebuild it: pip")
    elif arguments:
        assert json.loads(result.stdout) == {"error": message}

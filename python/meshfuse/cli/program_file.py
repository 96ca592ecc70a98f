# SPDX-License-Identifier: BSD-3-Clause
"""The argument FILE: a program in text form, or ``script.py:object``."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import inspect
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from importlib.abc import Loader
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import click

from ..definition import FusionDefinition, parse_ir
from ..exceptions import Error, UnsupportedError
from .command import WrongInput, output_to_stderr
from .output import give_back, keep_from_scripts

_OWN = str(Path(__file__).resolve().parents[1])
_MAX_BYTES = 64 << 20  # of a text; a program of 10,000 operations has about 2 MB
_STDIN = "-"
_MODULE = "__meshfuse_script__"  # not "__main__": what stands behind that test does not run


FILE = click.argument("file", metavar="FILE")
UNEVEN = click.option(
    "--uneven", is_flag=True, help="FILE is the text of a program with uneven=True."
)


def load(name: str, uneven: bool = False) -> FusionDefinition:
    """Return the definition that ``name`` describes; a text is of one that is ``uneven``, or not.

    Raises:
        WrongInput: there is none.
    """
    path, colon, wanted = name.rpartition(":")
    file = Path(name)
    is_script = file.suffix == ".py" or (colon and path.endswith(".py"))
    if is_script and uneven:
        raise WrongInput(
            f"--uneven is for programs in text form, but {name} is of a script. Say it there: "
            "FusionDefinition(uneven=True)."
        )
    if is_script:
        return _from_script(file, "") if file.suffix == ".py" else _from_script(Path(path), wanted)
    return _from_text(file, uneven)


def _from_text(file: Path, uneven: bool) -> FusionDefinition:
    name = "standard input" if str(file) == _STDIN else str(file)
    text = _read(file, name)
    try:
        return parse_ir(text, uneven=uneven)
    except Error as error:
        raise WrongInput(
            f"{name} is not a program in text form, as fd.ir() prints it: {error}"
            + ("" if uneven else _uneven_advice(text))
        ) from error


def _read(file: Path, name: str) -> str:
    if str(file) != _STDIN and not file.exists():
        raise WrongInput(
            f"there is no file {file}. Give a program in text form, or SCRIPT.py:OBJECT."
        )
    try:
        with _standard_input() if str(file) == _STDIN else file.open("rb") as opened:
            read = opened.read(_MAX_BYTES + 1)
        if len(read) > _MAX_BYTES:
            raise WrongInput(
                f"{name} has more than {_MAX_BYTES} bytes, too many for a program in text form."
            )
        text = read.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongInput(f"{name} cannot be read as text: {error}.") from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise WrongInput(f"{name} is not text: line {line} has a zero byte.")
    return text


def _standard_input() -> contextlib.AbstractContextManager[IO[bytes]]:
    if sys.stdin is None:
        raise OSError(errno.EBADF, "it is closed")
    return contextlib.nullcontext(sys.stdin.buffer)


def _uneven_advice(text: str) -> str:
    try:
        parse_ir(text, uneven=True)
    except Error:
        return ""
    return " A program with uneven=True is read by --uneven, and this one can be."


def _from_script(file: Path, wanted: str) -> FusionDefinition:
    if not file.is_file():
        raise WrongInput(f"there is no script {file}.")
    module = _run(file)
    if not wanted:
        raise WrongInput(
            f"{file} is a script: say which of its objects, as in {file}:NAME. {_offered(module)}"
        )
    name = f"{file}:{wanted}"
    found: Any = module
    with _users_code(name):
        for part in wanted.split("."):
            if not hasattr(found, part):
                raise WrongInput(f"{file} has no {wanted}. {_offered(module)}")
            found = getattr(found, part)
        return _definition(found, name, module)


def _definition(found: Any, name: str, module: ModuleType) -> FusionDefinition:
    """Make a definition of an object of a script."""
    if isinstance(found, FusionDefinition):
        _define(found, name)
        return found
    if not callable(found) or (inspect.isclass(found) and not issubclass(found, FusionDefinition)):
        raise WrongInput(
            f"{name} is {_described(found)}, not a FusionDefinition, a class of definitions or a "
            f"function that returns one. {_offered(module)}"
        )
    kind = "class" if inspect.isclass(found) else "function"
    missing = _required(found)
    if missing:
        raise WrongInput(
            f"{name} is a {kind} that needs arguments ({', '.join(missing)}), but it is called "
            "without any. Give them defaults, or add to the script a function without parameters "
            "that calls it."
        )
    made = found()
    if not isinstance(made, FusionDefinition):
        raise WrongInput(
            f"{name} returned {_described(made)}, not a FusionDefinition. Return the definition."
        )
    _define(made, name)
    return made


def _define(fd: FusionDefinition, name: str) -> None:
    """Run definition() and multidevice_schedule() of a class; a definition must be finished."""
    if getattr(fd, "definition", None) is not None:
        fd._executor()
        return
    try:
        fd._executor().fusion().ir()
    except RuntimeError as error:  # an Error is one
        text = str(error).removeprefix("execute: ").rstrip(".")
        raise WrongInput(f"{name} is not a finished definition: {text}.") from error


@contextlib.contextmanager
def _users_code(name: str) -> Iterator[None]:
    """Name what code of a script raises as the script's, whatever it is."""
    try:
        with output_to_stderr():
            yield
    except (click.ClickException, KeyboardInterrupt, UnsupportedError):  # what meshfuse lacks
        raise
    except BaseException as error:
        raise WrongInput(f"{name} raised {_raised(error)}.") from error


def _run(file: Path) -> ModuleType:
    """Import a script by its path; its folder is searched for modules as if it had been started."""
    _keep_output()
    spec = importlib.util.spec_from_file_location(_MODULE, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module  # dataclasses and pickle look a class's module up
    sys.path.insert(0, str(file.resolve().parent))
    try:
        with _users_code(str(file)):
            _execute(spec.loader, module, file)
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module


def _execute(loader: Loader, module: ModuleType, file: Path) -> None:
    try:
        loader.exec_module(module)
    except SyntaxError as error:
        line = f", in line {error.lineno}" if error.lineno else ""
        raise WrongInput(f"{error.filename or file} is not Python: {error.msg}{line}.") from error


def _keep_output() -> None:
    context = click.get_current_context(silent=True)
    keep_from_scripts()
    if context is not None and not context.obj:  # called by a program that goes on
        context.call_on_close(give_back)


def _offered(module: ModuleType) -> str:
    """Say which objects of a script may be named."""
    kinds = []
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        if isinstance(value, FusionDefinition):
            kinds.append(f"{name} (definition)")
        elif inspect.isclass(value):
            if issubclass(value, FusionDefinition) and value is not FusionDefinition:
                kinds.append(f"{name} (class{_needs(value)})")
        elif inspect.isfunction(value) and value.__module__ == _MODULE:
            kinds.append(f"{name} (function{_needs(value)})")
    return f"It has {', '.join(kinds)}." if kinds else "It has no definitions and no functions."


def _needs(call: Any) -> str:
    missing = _required(call)
    return f" of {', '.join(missing)}" if missing else ""


def _required(call: Any) -> list[str]:
    """Return the parameters without a default."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _described(value: Any) -> str:
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if inspect.ismodule(value):
        return f"the module {value.__name__}"
    return "None" if value is None else f"of type {type(value).__name__}"


def _raised(error: BaseException) -> str:
    """Return an exception with the last line of the user's code that it went through."""
    installed = (_OWN, "<frozen", *(sysconfig.get_path(p) for p in ("stdlib", "purelib")))
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(installed)]
    where = f" at {theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""
    try:
        text = str(error).rstrip(".")
    except BaseException as second:
        return f"{type(error).__name__} (its __str__ raises {type(second).__name__}){where}"
    return f"{type(error).__name__}{f': {text}' if text else ''}{where}"

# SPDX-License-Identifier: BSD-3-Clause
"""The argument FILE: a program in text form, or ``script.py:object``."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import click

from ..definition import FusionDefinition, parse_ir
from ..exceptions import Error
from .command import WrongInput, output_to_stderr
from .output import give_back, keep_from_scripts

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
    if not file.exists():
        raise WrongInput(
            f"there is no file {file}. Give a program in text form, or SCRIPT.py:OBJECT."
        )
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise WrongInput(f"{file} cannot be read as text: {error}.") from error
    try:
        return parse_ir(text, uneven=uneven)
    except Error as error:
        raise WrongInput(
            f"{file} is not a program in text form, as fd.ir() prints it: {error}"
            + ("" if uneven else _uneven_advice(text))
        ) from error


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
    found: Any = module
    for part in wanted.split("."):
        if not hasattr(found, part):
            raise WrongInput(f"{file} has no {wanted}. {_offered(module)}")
        found = getattr(found, part)
    return _definition(found, f"{file}:{wanted}", module)


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
    try:
        with output_to_stderr():
            made = found()
    except (Exception, SystemExit) as error:
        raise WrongInput(f"{name} raised {_raised(error)}.") from error
    if not isinstance(made, FusionDefinition):
        raise WrongInput(
            f"{name} returned {_described(made)}, not a FusionDefinition. Return the definition."
        )
    _define(made, name)
    return made


def _define(fd: FusionDefinition, name: str) -> None:
    """Run definition() and multidevice_schedule() of a class, which are the user's code."""
    if getattr(fd, "definition", None) is None:
        return
    try:
        with output_to_stderr():
            fd._executor()
    except NotImplementedError:  # what meshfuse does not have
        raise
    except (Exception, SystemExit) as error:
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
        with output_to_stderr():
            spec.loader.exec_module(module)
    except SyntaxError as error:
        raise WrongInput(f"{file} is not Python: {error.msg}, in line {error.lineno}.") from error
    except (Exception, SystemExit) as error:
        raise WrongInput(f"{file} raised {_raised(error)}.") from error
    finally:
        sys.path.remove(str(file.resolve().parent))
    return module


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
    own = str(Path(__file__).resolve().parent.parent)
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((own, "<frozen"))
    ]
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    text = str(error).rstrip(".")
    return f"{type(error).__name__}{f': {text}' if text else ''}{where}"

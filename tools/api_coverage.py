# SPDX-License-Identifier: BSD-3-Clause
"""Count how many of the public names in ``api_names.txt`` the package has, by tier.

Usage: ``python tools/api_coverage.py [--tier N]``. Prints present / total of every tier, the names
that are missing, and functions whose parameters have other names. With ``--tier`` the exit status
is 1 when a name up to that tier is missing or differs.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_LIST = Path(__file__).with_name("api_names.txt")
_LINE = re.compile(r"(?P<tier>\d) (?P<name>[\w.]+)(?P<params>\(.*\))?")


@dataclass(frozen=True)
class PublicName:
    """A name that the package should have; parameters are None where they are free."""

    tier: int
    name: str
    parameters: tuple[str, ...] | None


@dataclass(frozen=True)
class Coverage:
    """What was found of a list of names."""

    present: list[PublicName]
    missing: list[PublicName]
    differing: list[tuple[PublicName, tuple[str, ...]]]  #: with the parameters that were found


def read_names(path: Path = _LIST) -> list[PublicName]:
    """Return the names of the list."""
    names = []
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{path.name}: cannot read the line '{line}'")
        params = match["params"]
        listed = None if params is None else tuple(re.findall(r"\w+", params))
        names.append(PublicName(int(match["tier"]), match["name"], listed))
    return names


def compare(names: Sequence[PublicName]) -> Coverage:
    """Look every name up in the package."""
    coverage = Coverage([], [], [])
    for name in names:
        try:
            found = _look_up(name.name)
        except (AttributeError, ImportError):
            coverage.missing.append(name)
            continue
        coverage.present.append(name)
        actual = _parameters(found)
        if name.parameters is not None and actual is not None and actual != name.parameters:
            coverage.differing.append((name, actual))
    return coverage


def table(names: Sequence[PublicName], coverage: Coverage) -> str:
    """Return one line per tier: present / total."""
    lines = []
    for tier in sorted({name.tier for name in names}):
        present = sum(name.tier == tier for name in coverage.present)
        lines.append(f"tier {tier}: {present:3} / {sum(name.tier == tier for name in names)}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--tier", type=int, default=0, help="fail where this tier is not complete")
    tier = parser.parse_args(arguments).tier
    names = read_names()
    coverage = compare(names)
    print(table(names, coverage))
    for name in coverage.missing:
        print(f"missing, tier {name.tier}: {name.name}")
    for name, actual in coverage.differing:
        print(
            f"differs, tier {name.tier}: {name.name}{_listed(name.parameters)} is {_listed(actual)}"
        )
    wrong = [*coverage.missing, *(name for name, _ in coverage.differing)]
    return int(any(name.tier <= tier for name in wrong))


def _look_up(name: str) -> Any:
    found: Any = importlib.import_module("meshfuse")
    path = "meshfuse"
    for part in name.split("."):
        path = f"{path}.{part}"
        if inspect.ismodule(found) and not hasattr(found, part):
            found = importlib.import_module(path)
        elif _is_field(found, part):
            found = None
        else:
            found = getattr(found, part)
    return found


def _is_field(found: Any, name: str) -> bool:
    """Whether a class declares an attribute of its instances without a default."""
    return inspect.isclass(found) and name in inspect.get_annotations(found)


def _parameters(found: Any) -> tuple[str, ...] | None:
    """Names of the parameters of a function written in Python; None for others."""
    if not callable(found):
        return None
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return None
    names = tuple(p.name for p in parameters)
    free = [p for p in parameters if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return None if len(free) == len(names) else names


def _listed(names: Sequence[str] | None) -> str:
    return f"({', '.join(names or ())})"


if __name__ == "__main__":
    sys.exit(main())

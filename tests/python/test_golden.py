# SPDX-License-Identifier: BSD-3-Clause
"""Passes on programs in text form: tests/golden/*.mf.

A file begins with ``// pass: NAME`` and has cases. A case begins with ``// case: NAME -- what it
shows``; its program ends at a line ``// ---- expect: changed lines only`` or
``// ---- expect: error``. Behind it stand the lines of the result that the program does not have
(and ``// gone: NAME`` for a definition that the result does not have), or the message, each line
behind ``//``. ``pytest --update-golden`` writes what stands behind.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

import meshfuse

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
CHANGED = "// ---- expect: changed lines only"
ERROR = "// ---- expect: error"
CASE = re.compile(r"// case: (\w+) -- \S.*")


@dataclass(frozen=True)
class Case:
    """One program, the pass to run, and what must come out."""

    file: Path
    pass_name: str
    name: str
    program: str
    expects_error: bool
    expected: str


def split_cases(text: str) -> list[str]:
    """Return the text before the first case, and one text per case."""
    return re.split(r"^(?=// case: )", text, flags=re.MULTILINE)


def read_case(file: Path, pass_name: str, text: str) -> Case:
    """Read one case; a fault in its form is an error at collection."""
    head, *lines = text.strip().splitlines()
    match = CASE.fullmatch(head)
    marks = [i for i, line in enumerate(lines) if line in (CHANGED, ERROR)]
    if match is None or len(marks) != 1:
        raise ValueError(f"{file.name}: not a case of the form that test_golden.py tells: {head}")
    program = "\n".join(lines[: marks[0]]) + "\n"
    expected = "\n".join(lines[marks[0] + 1 :])
    return Case(file, pass_name, match[1], program, lines[marks[0]] == ERROR, expected)


def read_cases() -> list[Case]:
    """Read all cases of all files."""
    cases = []
    for file in sorted(GOLDEN.glob("*.mf")):
        first, *texts = split_cases(file.read_text(encoding="utf-8"))
        match = re.match(r"// pass: (\S+)\n", first)
        if match is None:
            raise ValueError(f"{file.name}: the first line must be // pass: NAME")
        cases += [read_case(file, match[1], text) for text in texts]
    return cases


def defined_names(line: str) -> str:
    """Return what a line of a program defines; lines of result and program are paired by it."""
    return re.split(r"[:=]", line, maxsplit=1)[0].strip()


def changes(before: str, after: str) -> str:
    """Return the lines of ``after`` that ``before`` lacks, and the definitions that are gone."""
    old, new = before.splitlines(), after.splitlines()
    kept = {defined_names(line) for line in new if not line.startswith("return")}
    lines = [line for line in new if line not in old]
    for line in old:
        if not line.startswith("return") and defined_names(line) not in kept:
            lines.append(f"// gone: {defined_names(line)}")
    return "\n".join(lines)


def update(case: Case, outcome: str) -> None:
    """Write ``outcome`` behind the expectation's mark."""
    parts = split_cases(case.file.read_text(encoding="utf-8"))
    for i, part in enumerate(parts):
        if part.startswith(f"// case: {case.name} -- "):
            mark = ERROR if case.expects_error else CHANGED
            program = part[: part.index(mark)]
            blank = "\n" if i + 1 < len(parts) else ""
            parts[i] = program + mark + "\n" + (outcome + "\n" if outcome else "") + blank
    case.file.write_text("".join(parts), encoding="utf-8")


def outcome_of(case: Case) -> str:
    """Run the pass and return what stands behind the expectation's mark."""
    if case.expects_error:
        with pytest.raises(meshfuse.Error) as error:
            meshfuse._C.run_pass(case.program, case.pass_name)
        return "\n".join(f"// {line}" for line in str(error.value).splitlines())
    result = meshfuse._C.run_pass(case.program, case.pass_name)
    again = meshfuse._C.run_pass(result, case.pass_name)
    assert again == result, "the pass changes its own result"
    return changes(case.program, result)


CASES = read_cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.pass_name}-{case.name}")
def test_pass(case: Case, request: pytest.FixtureRequest) -> None:
    """The pass makes of the program what the file says."""
    outcome = outcome_of(case)
    if request.config.getoption("--update-golden"):
        update(case, outcome)
    else:
        assert outcome == case.expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.pass_name}-{case.name}")
def test_program_is_canonical(case: Case) -> None:
    """Programs are written as the printer writes them, so that changed lines mean a change."""
    assert meshfuse.parse_ir(case.program).ir() == case.program


def test_names_of_cases_are_used_once() -> None:
    """A name says which case failed, and which one to update."""
    names = [(case.pass_name, case.name) for case in CASES]
    assert len(set(names)) == len(names)


def test_examples_of_the_docs() -> None:
    """The programs in docs/ir.md are read, and printed as they stand there."""
    docs = GOLDEN.parent.parent / "docs" / "ir.md"
    blocks = re.findall(r"^```\n(.*?)^```$", docs.read_text(encoding="utf-8"), re.M | re.S)
    programs = [block for block in blocks if re.search(r"^return", block, re.M)]
    assert len(programs) == 2
    for program in programs:
        assert meshfuse.parse_ir(program).ir() == program

#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Lists the messages of exceptions that no test quotes; exits with 1 when there are any.

Usage: python tools/check_messages.py [--all]

A message is the text of MESHFUSE_CHECK, fail and throw in csrc and python/bind, and of raise in
python/meshfuse. It counts as quoted when some string of a test (tests/, code in docs/) could be a
piece of it: values between the fixed texts match anything, and a quote has to cover 16 characters
of the fixed text, or three quarters of it. Messages with next to no fixed text, such as one that is
passed on, are left out, and so are MESHFUSE_ASSERTs: only a fault of the library reaches those.
EXEMPT are messages that no test can provoke; one there that is quoted, or is no message, counts as
missing, too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ANY = "\0"  # stands for a value in a message, for .* in a pattern
LEAST = 16  # fixed characters that a quote covers
NGRAM = 8
# Files, pieces of messages in them, and why no test provokes these.
EXEMPT = (
    ("comm/mpi_mailbox.cpp", "MPI reports", "MPI is broken; by default it ends the job itself"),
    ("comm/c10d_collectives.cpp", "gave up a message", "gloo raises; backends of others may not"),
    ("comm/collectives.cpp", "for one rank and on", "needs a GPU, and ranks in one process"),
    ("comm/socket_mesh.cpp", "epoll_ctl: ", "the kernel is out of memory or watches"),
    ("comm/socket_mesh_joining.cpp", "no random numbers", "the kernel forbids getrandom"),
)
# Of these calls with a message, the text starts after so many arguments.
CPP_CALLS = {"MESHFUSE_CHECK": 1, "fail": 0, "fault": 1, "expected": 0}
CPP_THROW = re.compile(r"\bthrow\s+(?:py::)?(\w*[Ee]rror)\(")
WRAPPERS = re.compile(r"(?:(?:::)?meshfuse::)?(?:concat|std::string)\((.*)\)$", re.DOTALL)
STRING = re.compile(r'R"\((?P<raw>.*?)\)"|"(?P<plain>(?:[^"\\\n]|\\.)*)"', re.DOTALL)
PYTHON_RAISES = {
    "Error", "UnsupportedError", "ValueError", "TypeError", "RuntimeError", "NotImplementedError",
    "AttributeError", "ImportError", "WrongInput", "Failure", "BadParameter", "UsageError",
    "_damaged", "unsupported", "PeerError", "TimeoutError",
}  # fmt: skip


@dataclass(frozen=True)
class Message:
    """The text of an exception, with ANY where a value is printed."""

    place: str
    text: str

    @property
    def fixed(self) -> int:
        """Number of letters and other characters that do not depend on values."""
        return len(self.text.replace(ANY, ""))


# --- C++ ------------------------------------------------------------------------------------------


def without_comments(source: str) -> str:
    """Return C++ text with comments blanked out, lines kept."""
    pattern = re.compile(r'R"\(.*?\)"|"(?:[^"\\\n]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
    return pattern.sub(
        lambda m: re.sub(r"[^\n]", " ", m[0]) if m[0].startswith("/") else m[0], source
    )


def split_arguments(source: str, start: int) -> list[str]:
    """Return the arguments of the call whose opening bracket is just before ``start``."""
    depth, begin, i, arguments = 0, start, start, []
    while i < len(source):
        literal = STRING.match(source, i)
        if literal:
            i = literal.end()
            continue
        if source[i] == "'" and (char := re.compile(r"'(?:[^'\\]|\\.)+'").match(source, i)):
            i = char.end()
            continue
        if source[i] in "([{":
            depth += 1
        elif source[i] in ")]}":
            if depth == 0:
                arguments.append(source[begin:i].strip())
                return arguments
            depth -= 1
        elif source[i] == "," and depth == 0:
            arguments.append(source[begin:i].strip())
            begin = i + 1
        i += 1
    return arguments


def unescape(text: str) -> str:
    """Return what a plain C++ string literal holds."""
    simple = {"n": "\n", "t": "\t", '"': '"', "\\": "\\", "'": "'", "0": "0"}
    return re.sub(r"\\(.)", lambda m: simple.get(m[1], m[1]), text)


def literal_text(match: re.Match[str]) -> str:
    """Return what the literal found by STRING holds."""
    return match["raw"] if match["raw"] is not None else unescape(match["plain"])


def cpp_text(argument: str) -> str:
    """Return the text an argument of a message prints, ANY for what is not known."""
    wrapped = WRAPPERS.match(argument)
    if wrapped:
        return "".join(map(cpp_text, split_arguments(argument + ")", wrapped.start(1))[:-1])) or (
            "".join(map(cpp_text, split_arguments(wrapped[1] + ")", 0)))
        )
    if not argument.startswith(('"', 'R"')):
        return ANY
    parts, end = [], 0
    for match in STRING.finditer(argument):
        if argument[end : match.start()].strip(" \n+"):
            parts.append(ANY)
        parts.append(literal_text(match))
        end = match.end()
    if argument[end:].strip():
        parts.append(ANY)
    return "".join(parts)


def cpp_messages(path: Path) -> Iterator[Message]:
    """Yield the messages of one C++ file."""
    source = without_comments(path.read_text())
    calls = [
        (m.start(), m.end(), CPP_CALLS[m[1]])
        for m in re.finditer(rf"\b({'|'.join(CPP_CALLS)})\(", source)
    ]
    calls += [(m.start(), m.end(), 0) for m in CPP_THROW.finditer(source)]
    for begin, after, skip in calls:
        line = source.count("\n", 0, begin) + 1
        text = "".join(map(cpp_text, split_arguments(source, after)[skip:]))
        yield Message(f"{path.relative_to(ROOT)}:{line}", re.sub(f"{ANY}+", ANY, text))


# --- Python ---------------------------------------------------------------------------------------


def python_text(node: ast.expr) -> str:
    """Return the text of a Python expression, ANY for what is not known."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(python_text, node.values))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return python_text(node.left) + python_text(node.right)
    return ANY


def python_messages(path: Path) -> Iterator[Message]:
    """Yield the messages of one Python file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
            continue
        call = node.exc
        name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func
        name = name.id if isinstance(name, ast.Name) else name
        if name not in PYTHON_RAISES:
            continue
        text = "".join(python_text(argument) + ANY for argument in call.args).removesuffix(ANY)
        yield Message(f"{path.relative_to(ROOT)}:{node.lineno}", re.sub(f"{ANY}+", ANY, text))


# --- What the tests quote -------------------------------------------------------------------------


def readings(text: str) -> Iterator[str]:
    """Yield a string of a test as plain text, and as the regular expression it may be."""
    for line in set(text.replace("\\n", "\n").split("\n")):
        yield line
        if re.search(r"\\|\.[*+]|\[", line):
            pattern = re.sub(r"\\[dws][+*]?|\.[*+]\??|\[[^\]]*\][+*]?", ANY, line)
            yield re.sub(r"\\(.)", r"\1", pattern).strip("^$")


def python_quotes(source: str) -> Iterator[str]:
    """Yield the strings of Python code."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a console session in a page
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp):
            text = python_text(node)
            if text != ANY:
                yield text


def cpp_quotes(source: str) -> Iterator[str]:
    """Yield the strings of C++ code, those beside one another joined."""
    joined, end = "", 0
    source = without_comments(source)
    for match in STRING.finditer(source):
        if source[end : match.start()].strip():
            yield joined
            joined = ""
        joined += literal_text(match)
        end = match.end()
    yield joined


def quotes() -> set[str]:
    """Return every string of the tests that is long enough to quote something."""
    found: list[str] = []
    for path in (ROOT / "tests").rglob("*"):
        if path.suffix == ".py":
            found += python_quotes(path.read_text())
        elif path.suffix in (".cpp", ".h"):
            found += cpp_quotes(path.read_text())
        elif path.suffix == ".mf":
            found += path.read_text().split("\n")
    for path in (ROOT / "docs").rglob("*.md"):
        for block in re.findall(r"```\w*\n(.*?)```", path.read_text(), re.DOTALL):
            found += python_quotes(block)
    for path in (ROOT / "python").rglob("*.py"):  # doctests
        found += re.findall(r"^\s*\S*Error: (.*)$", path.read_text(), re.MULTILINE)
    return {line for text in set(found) for line in readings(text) if len(line) >= NGRAM}


# --- Comparison -----------------------------------------------------------------------------------


def overlap(message: str, quote: str) -> int:
    """Return how many fixed characters the two share where one continues or holds the other."""
    # best[j]: characters shared by an alignment of message[:i] that ends at quote[:j].
    best: list[int | None] = [0] * (len(quote) + 1)
    most = 0
    for a in message:
        new: list[int | None] = [0, *[None] * len(quote)]
        for j, b in enumerate(quote):
            if a == ANY or b == ANY:
                options = [o for o in (best[j], best[j + 1], new[j]) if o is not None]
                new[j + 1] = max(options, default=None)
            elif a == b and (before := best[j]) is not None:
                new[j + 1] = before + 1
        best = new
        most = max(most, best[-1] or 0)
    return max(most, *(o for o in best if o is not None))


def grams(text: str) -> set[str]:
    """Return the pieces of NGRAM fixed characters of a text."""
    return {
        piece[i : i + NGRAM] for piece in text.split(ANY) for i in range(len(piece) - NGRAM + 1)
    }


def is_quoted(message: Message, index: dict[str, set[str]]) -> bool:
    """Say whether a string of the tests is a piece of the message."""
    needed = min(LEAST, message.fixed * 3 // 4)
    shared = Counter(quote for gram in grams(message.text) for quote in index.get(gram, ()))
    return any(overlap(message.text, quote) >= needed for quote, _ in shared.most_common())


def reason_of(message: Message) -> str | None:
    """Return why no test provokes the message; None for others."""
    for file, piece, reason in EXEMPT:
        if message.place.rpartition(":")[0].endswith(file) and piece in message.text:
            return reason
    return None


def messages() -> list[Message]:
    """Return all messages that have enough fixed text to be recognised."""
    found: list[Message] = []
    for folder in ("csrc/meshfuse", "python/bind"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".cpp", ".h") and path.name != "error.h":
                found += cpp_messages(path)
    for path in sorted((ROOT / "python").glob("meshfuse*/**/*.py")):
        found += python_messages(path)
    return [m for m in found if len(max(m.text.split(ANY), key=len)) >= NGRAM]


def main() -> int:
    """Print the messages without a test."""
    index: dict[str, set[str]] = {}
    for quote in quotes():
        for gram in grams(quote):
            index.setdefault(gram, set()).add(quote)
    found = messages()
    exempt = [m for m in found if reason_of(m) is not None]
    quoted = [m for m in found if is_quoted(m, index)]
    wrong = [m for m in found if (m in exempt) == (m in quoted)]
    for message in found if "--all" in sys.argv else wrong:
        note = " [quoted, but in EXEMPT]" if message in quoted and message in exempt else ""
        print(f"{message.place}: {message.text.replace(ANY, '{}')}{note}")
    for message in exempt:
        print(f"exempt: {message.place}: {reason_of(message)}")
    unused = len(EXEMPT) - len({reason_of(m) for m in exempt})
    if unused:
        print(f"{unused} of EXEMPT are no messages")
    print(f"{len(found)} messages, {len(quoted)} quoted, {len(exempt)} exempt")
    return bool(wrong or unused)


if __name__ == "__main__":
    sys.exit(main())

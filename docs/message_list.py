# SPDX-License-Identifier: BSD-3-Clause
"""Collects the messages of errors from the sources, for the page messages.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADINGS = {
    "csrc/meshfuse/ops": "Operations",
    "csrc/meshfuse/schedule": "Schedules",
    "csrc/meshfuse/ir": "Definitions, meshes and domains",
    "csrc/meshfuse/passes": "Compilation",
    "csrc/meshfuse/plan": "Compilation",
    "csrc/meshfuse/text": "Others",
    "csrc/meshfuse/eval": "Execution",
    "csrc/meshfuse/exec": "Execution",
    "csrc/meshfuse/comm": "Ranks",
    "csrc/meshfuse/base": "Others",
    "python/bind": "Others",
    "python/meshfuse": "Python",
}
LITERAL = r'"((?:[^"\\]|\\.)*)"'
TOKEN = re.compile(rf"{LITERAL}|'(?:[^'\\]|\\.)'|[(\[{{]|[)\]}}]|,|//[^\n]*", re.DOTALL)


def arguments(text: str, start: int) -> list[str]:
    """Return the arguments of the C++ call whose parenthesis is open at start."""
    found, depth, begin = [], 0, start
    for token in TOKEN.finditer(text, start):
        first = token[0][0]
        if depth == 0 and (token[0] == "," or first == ")"):
            found.append(text[begin : token.start()].strip())
            begin = token.end()
            if first == ")":
                break
        elif len(token[0]) == 1:
            depth += (first in "([{") - (first in ")]}")
    return found


def of_cpp(text: str) -> Iterator[str]:
    """Give the messages in a C++ source. The first argument of a check is its condition."""
    for call in re.finditer(r"\b(MESHFUSE_CHECK|fail|\w+Error\(\s*concat)\(", text):
        parts = []
        for part in arguments(text, call.end())[call[1] == "MESHFUSE_CHECK" :]:
            pieces = re.findall(LITERAL, part, re.DOTALL)
            rest = re.sub(LITERAL, "", part, flags=re.DOTALL)
            plain = "".join(pieces).replace('\\"', '"').replace("\\n", " ")
            parts.append(plain if pieces and not rest.strip() else "…")
        yield "".join(parts)


def of_python(text: str) -> Iterator[str]:
    """Give the messages of the exceptions that a Python source raises."""
    for node in ast.walk(ast.parse(text)):
        if not (isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args):
            continue
        message = node.exc.args[0]
        if isinstance(message, ast.Constant) and isinstance(message.value, str):
            yield message.value
        elif isinstance(message, ast.JoinedStr):
            values = (v.value if isinstance(v, ast.Constant) else "…" for v in message.values)
            yield "".join(map(str, values))


def messages() -> dict[str, list[str]]:
    """Return the messages under the headings of the page, in the order of the alphabet."""
    found: dict[str, set[str]] = {heading: set() for heading in HEADINGS.values()}
    for folder, heading in HEADINGS.items():
        for path in sorted((ROOT / folder).rglob("*")):
            read = {".cpp": of_cpp, ".h": of_cpp, ".py": of_python}.get(path.suffix)
            texts = read(path.read_text()) if read else ()
            found[heading] |= {" ".join(text.split()) for text in texts}
    # One that has hardly a word of its own cannot be looked up.
    return {
        heading: sorted((t for t in texts if len(re.findall(r"\w\w+", t)) > 3), key=sort_key)
        for heading, texts in found.items()
    }


def sort_key(text: str) -> str:
    """Return what a message is sorted by: what comes after names that vary, in small letters."""
    return text.lstrip("…: ").lower()


def page() -> str:
    """Return the lists, in Markdown."""
    text = ""
    for heading, texts in messages().items():
        escaped = (re.sub(r"([\\`*_{}<>#$|~\[\]])", r"\\\1", message) for message in texts)
        text += f"\n## {heading}\n\n" + "".join(f"- {message}\n" for message in escaped)
    return text

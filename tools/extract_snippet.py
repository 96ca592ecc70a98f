#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes a code block of a page into a file, so that the tests compile what the page shows.

Usage: tools/extract_snippet.py PAGE NAME OUTPUT

The block is the one that begins with a line of three backquotes, a language and NAME, as in
"```cpp csrc/meshfuse/ops/square_sum.cpp". Faults that the compiler finds point at the page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def snippet(page: Path, name: str) -> str:
    """Return a block of a page, with a #line directive in front."""
    text = page.read_text()
    pattern = rf"^```\w+ {re.escape(name)}\n(.*?)^```$"
    found = list(re.finditer(pattern, text, re.DOTALL | re.MULTILINE))
    if len(found) != 1:
        raise SystemExit(f"{page}: {len(found)} code blocks are named {name}. Name one block so.")
    line = text[: found[0].start(1)].count("\n") + 1
    return f'#line {line} "{page}"\n{found[0].group(1)}'


def main() -> None:
    """Write one snippet."""
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    page, name, output = sys.argv[1:]
    Path(output).write_text(snippet(Path(page), name))


if __name__ == "__main__":
    main()

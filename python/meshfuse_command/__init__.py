# SPDX-License-Identifier: BSD-3-Clause
"""Where the command ``meshfuse`` begins: outside the package, which may fail to be imported.

An extension that does not fit the torch that is installed is then one message with its cure, and
``meshfuse doctor --json`` reports it as it does other faults.
"""

from __future__ import annotations

import json
import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line; return its exit code."""
    try:
        from meshfuse.cli import main as command_line
    except ImportError as error:
        return _not_imported(str(error), sys.argv[1:])
    return command_line()


def _not_imported(reason: str, arguments: list[str]) -> int:
    fact, _, cure = reason.rpartition(". ")
    if arguments[:1] == ["doctor"] and "--json" in arguments:
        check = {"check": "torch", "status": "failed", "fact": fact or reason, "cure": cure}
        print(json.dumps({"healthy": False, "checks": [check]}, indent=2))
    elif "--json" in arguments:
        print(json.dumps({"error": reason}))
    print(f"meshfuse: {reason}", file=sys.stderr)
    return 1

# SPDX-License-Identifier: BSD-3-Clause
"""The command ``meshfuse``, also ``python -m meshfuse``; see docs/cli.md.

One module per command, imported when it is asked for. ``import meshfuse`` imports none of this.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: What stands behind the program's name; None for those of this process.

    Returns:
        0 where all is well, 1 where what was asked for does not hold, 2 for wrong usage.
    """
    try:
        from .app import run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("click", "rich"):
            raise
        print(
            f"meshfuse: the command line needs the Python package {error.name}. "
            "Install both: pip install click rich",
            file=sys.stderr,
        )
        return 2
    return run(arguments)

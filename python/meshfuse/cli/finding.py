# SPDX-License-Identifier: BSD-3-Clause
"""What ``meshfuse doctor`` finds."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: What was looked at.
        status: "ok", "warning", "failed" or "skipped".
        fact: What was found, with names and numbers.
        cure: What to do; empty where nothing need be done.
    """

    check: str
    status: str
    fact: str
    cure: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        return asdict(self)

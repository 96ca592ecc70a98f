# SPDX-License-Identifier: BSD-3-Clause
"""Options of the tests of this folder."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-golden``, which rewrites expectations instead of comparing with them."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the expectations in tests/golden; review the diff",
    )

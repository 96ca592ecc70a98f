# SPDX-License-Identifier: BSD-3-Clause
"""Options of the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--update-golden`` and ``--device``."""
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the expectations in tests/golden; review the diff",
    )
    parser.addoption(
        "--device",
        default="cpu",
        help="where tests make their tensors unless they say it: cpu (default) or cuda",
    )


@pytest.fixture(autouse=True)
def _tensors_on_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Make torch's factories use ``--device``; ``multidevice_test`` moves tensors itself."""
    device = request.config.getoption("--device")
    if device == "cpu" or "multidevice_test" in request.fixturenames:
        yield
        return
    with torch.device(device):
        yield

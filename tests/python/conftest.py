# SPDX-License-Identifier: BSD-3-Clause
"""Options of the tests of this folder."""

from __future__ import annotations

import re
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


def pytest_configure(config: pytest.Config) -> None:
    """Make torch's factories and generators use ``--device``, at import of test modules too."""
    config.addinivalue_line("markers", "cpu_only(reason): not run with another --device")
    device = config.getoption("--device")
    if device != "cpu":
        torch.set_default_device(device)

        class Generator(torch.Generator):
            def __new__(cls, where: str = device) -> Generator:
                return super().__new__(cls, where)

        torch.Generator = Generator  # type: ignore[misc]


@pytest.fixture(autouse=True)
def _shards_are_cut_on_the_cpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """``multidevice_test`` takes CPU tensors and moves the parts."""
    if request.config.getoption("--device") == "cpu" or (
        "multidevice_test" not in request.fixturenames
    ):
        yield
        return
    with torch.device("cpu"):
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests of what holds on CPUs alone."""
    if config.getoption("--device") == "cpu":
        return
    for item in items:
        for mark in item.iter_markers("cpu_only"):
            item.add_marker(pytest.mark.skip(reason=mark.args[0]))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Skip where torch lacks an operation for a type on the device, such as integer products."""
    outcome = yield
    report = outcome.get_result()
    if report.failed and item.config.getoption("--device") != "cpu":
        text = str(call.excinfo.value)
        if re.search(r"not implemented for '(Int|Long|Bool|Byte|Complex\w+)'", text):
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, f"Skipped: torch: {text.splitlines()[0]}")

# SPDX-License-Identifier: BSD-3-Clause
"""The C++ suite of collectives, and what else is about process groups, on real ranks."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

import meshfuse
from meshfuse import Communicator

pytestmark = pytest.mark.skipif(
    Communicator.instance().backend() != "c10d", reason="not over torch.distributed"
)


def find_module():
    """The module of the build that this package comes from, or None."""
    root = Path(meshfuse.__file__).resolve().parents[2]  # the tree, or a build folder of its own
    name = "tests/collectives_c10d_test.so"
    return next((path for path in (root / name, root / "build/dev" / name) if path.exists()), None)


def test_cpp_suite_of_collectives(multidevice_test, capfd):
    """Every type, kind and form, in the order of several teams."""
    module = find_module()
    if module is None:
        pytest.skip("the C++ tests are not built")
    tests = ctypes.c_int()
    failed = ctypes.CDLL(str(module)).meshfuseRunC10dTests(ctypes.byref(tests))
    assert failed == 0, capfd.readouterr().err
    assert tests.value > 50


def test_default_group(setup_default_process_group, multidevice_test):
    """The program's own collectives go on beside ours."""
    import torch.distributed as dist

    assert (dist.get_rank(), dist.get_world_size()) == (
        multidevice_test.rank,
        multidevice_test.size,
    )
    t = torch.tensor([float(dist.get_rank())])
    dist.all_reduce(t)
    assert t.item() == sum(range(multidevice_test.size))
    multidevice_test.communicator.barrier()

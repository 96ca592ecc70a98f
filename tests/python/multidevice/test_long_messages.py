# SPDX-License-Identifier: BSD-3-Clause
"""Messages of more than 2^31 - 1 bytes and elements, which one MPI message cannot carry.

They take some 7 GB of memory and are skipped unless asked for::

    MESHFUSE_TEST_LARGE=1 tools/mpirun -np 2 python -m pytest --mesh-backend=mpi \
        tests/python/multidevice/test_long_messages.py

The same code with short pieces: ``test_communicating_programs.py::test_messages_in_pieces``.
"""

from __future__ import annotations

import os

import pytest
import torch
from programs import X, communications, lay

from meshfuse import Communicator, DataType, DeviceMesh, FusionDefinition

RANKS = Communicator.instance().size()
pytestmark = [
    pytest.mark.skipif(os.environ.get("MESHFUSE_TEST_LARGE") != "1", reason="takes 7 GB"),
    pytest.mark.skipif(RANKS != 2, reason="needs two ranks"),
]

ROWS, COLUMNS = 700, 3 << 20  # of one byte each: more than 2^31, and no multiple of a piece
NUMBER = 16  # the first elements of a row are its number, in bits


def row(i):
    """Return row ``i``."""
    t = torch.arange(COLUMNS) % 3 == 0
    t[:NUMBER] = torch.tensor([bool(i >> bit & 1) for bit in range(NUMBER)])
    return t


def rows(first, last):
    t = row(0).repeat(last - first, 1)
    for i in range(first, last):
        t[i - first, :NUMBER] = row(i)[:NUMBER]
    return t


def assert_rows(t):
    """Compare all bytes, a row at a time: a second tensor would take as much memory again."""
    assert t.shape == (ROWS, COLUMNS)
    common = row(0)
    for i in range(ROWS):
        assert torch.equal(t[i, NUMBER:], common[NUMBER:])
        assert sum(int(b) << bit for bit, b in enumerate(t[i, :NUMBER])) == i


def test_tensor_sent_to_another_rank(multidevice_test):
    """One tensor of 2.2 GB from rank 0 to rank 1."""
    assert ROWS * COLUMNS > 2**31
    first, second = DeviceMesh([0]), DeviceMesh([1])
    with FusionDefinition() as fd:
        x = fd.define_tensor([ROWS, COLUMNS], dtype=DataType.Bool)
        y = fd.ops.set(x)
        fd.add_output(y)
        lay(x, first)
        lay(y, second)
    rank = multidevice_test.rank
    (out,) = fd.execute([rows(0, ROWS) if rank == 0 else torch.empty(0, COLUMNS)])
    if rank == 1:
        assert_rows(out)
    else:
        assert out.numel() == 0


def test_gathered_tensor(multidevice_test):
    """Two halves of 1.1 GB make a tensor of 2.2 GB on both ranks."""
    mesh = DeviceMesh([0, 1])
    with FusionDefinition() as fd:
        x = fd.define_tensor([ROWS, COLUMNS], dtype=DataType.Bool)
        y = fd.ops.set(x)
        fd.add_output(y)
        lay(x, mesh, [(0, X)])
        lay(y, mesh)
    rank, half = multidevice_test.rank, ROWS // 2
    (out,) = fd.execute([rows(rank * half, (rank + 1) * half)])
    assert_rows(out)
    assert communications(fd) == ["all-gather x"]

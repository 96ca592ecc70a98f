# SPDX-License-Identifier: BSD-3-Clause
"""A job of programs that communicate, one rank of which fails: see ``inject.py``.

Run by a launcher as ``victim.py KIND POINT RANK``. The rank at fault prints ``FAULT <time>`` first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time

import torch

from meshfuse import Communicator, DeviceMesh, FusionDefinition, ParallelType

KIND, POINT, RANK = sys.argv[1], sys.argv[2], int(sys.argv[3])
comm = Communicator.instance()
me, size = comm.rank(), comm.size()
mesh = DeviceMesh(range(size))
K = 4 * size


def cut(tv, axis):
    tv.outer_split(axis, size)
    tv.axis(axis).parallelize(ParallelType.mesh_x)


def row_parallel(n=3, extra=False):
    """Return x @ w with the inner axis divided: an all-reduce."""
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1]), fd.define_tensor([-1, n])
        y = fd.ops.matmul(x, w)
        fd.add_output(fd.ops.relu(y) if extra else y)
        for t, axis in ((x, 1), (w, 0)):
            t.set_device_mesh(mesh)
            cut(t, axis)
    return fd


def mlp():
    """A column-parallel layer and a row-parallel one."""
    with FusionDefinition() as fd:
        x, up, down = (fd.define_tensor(s) for s in ([-1, 8], [8, K], [K, 8]))
        fd.add_output(fd.ops.matmul(fd.ops.relu(fd.ops.matmul(x, up)), down))
        for t, axis in ((x, None), (up, 1), (down, 0)):
            t.set_device_mesh(mesh)
            if axis is not None:
                cut(t, axis)
    return fd


rows, layers, other = row_parallel(), mlp(), row_parallel(extra=True)


def run_rows(fd=rows, m=5, k=4, n=3):
    (y,) = fd.execute([torch.ones(m, k), torch.ones(k, n)])
    assert torch.equal(y, torch.full((m, n), 1.0 * k * size)), y


def run_layers(m=2):
    (y,) = layers.execute([torch.ones(m, 8), torch.ones(8, 4), torch.ones(4, 8)])
    assert torch.equal(y, torch.full((m, 8), 8.0 * K)), y


def run_long():
    """Some tenths of a second of work, half of it messages."""
    rows.execute([torch.ones(1500, 1500), torch.ones(1500, 3)])
    long.execute([torch.ones(1500, 1500), torch.ones(1500, 1500)])


long = row_parallel(n=1500)


def say_fault():
    print(f"FAULT {time.time()}", flush=True)


def fail_here():
    """Fail in the main thread."""
    say_fault()
    if KIND == "bad input":
        rows.execute([torch.ones(5, 4), torch.ones(7, 3)])
    elif KIND == "other size":
        run_rows(m=6)
    elif KIND == "other program":
        run_rows(fd=other)
    elif KIND == "exception":
        raise KeyError("nobody catches this")
    elif KIND == "sys.exit(0)":
        sys.exit(0)
    elif KIND == "sys.exit(3)":
        sys.exit(3)
    elif KIND == "never comes":
        time.sleep(600)
    else:
        fail_anywhere()
        time.sleep(600)  # until the signal comes
    raise AssertionError("the fault had no effect")


def fail_anywhere():
    """Fail from another thread."""
    if KIND == "os._exit(0)":
        os._exit(0)
    elif KIND == "os._exit(5)":
        os._exit(5)
    number = {"kill -9": signal.SIGKILL, "SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM}
    os.kill(os.getpid(), number.get(KIND, signal.SIGUSR1))


def fail_later(seconds):
    """Fail while the main thread is busy or waits."""

    def body():
        time.sleep(seconds)
        if KIND not in ("exception", "sys.exit(0)", "sys.exit(3)"):
            say_fault()
        with contextlib.suppress(BaseException):
            fail_anywhere()

    signal.signal(signal.SIGUSR1, lambda *_: fail_here())
    threading.Thread(target=body, daemon=True).start()


faulty = me == RANK
in_main_thread_only = KIND in ("bad input", "other size", "other program", "never comes")
if POINT == "before the first":
    if faulty:
        fail_here()
    run_rows()
run_rows()
run_layers()
run_rows(m=7)
if POINT == "between two":
    if faulty:
        fail_here()
    run_rows()
if POINT == "in a wait":
    if in_main_thread_only:  # the others wait
        if faulty:
            time.sleep(0.7)
            fail_here()
    elif faulty:
        fail_later(0.7)
    else:
        time.sleep(2)
    run_rows()
if POINT == "in a long one":
    if in_main_thread_only:
        if faulty:
            fail_here()
    elif faulty:
        fail_later(0.1 + 0.05 * (RANK + 1))
    for _ in range(100):
        run_long()
for _ in range(20):
    run_rows()
    run_layers()
if POINT == "at the end" and faulty:
    fail_here()

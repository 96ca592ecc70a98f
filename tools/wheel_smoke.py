# SPDX-License-Identifier: BSD-3-Clause
"""Tries an installed meshfuse out: `tools/check_wheel.sh` runs it outside of the checkout.

Usage: python wheel_smoke.py FOLDER        alone: FOLDER is where meshfuse must come from
       mpirun -np 2 python wheel_smoke.py FOLDER
"""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path

started = time.perf_counter()
import torch  # noqa: E402

had_torch = time.perf_counter()
import meshfuse  # noqa: E402

had_meshfuse = time.perf_counter()
from meshfuse import Communicator, DeviceMesh, FusionDefinition, ParallelType  # noqa: E402


def column_parallel(devices: int) -> tuple[FusionDefinition, meshfuse.TensorView]:
    """Return a product with the columns of its weight divided, and the weight."""
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, 8]), fd.define_tensor([8, 3 * devices])
        fd.add_output(fd.ops.matmul(x, w))
        for t in (x, w):
            t.set_device_mesh(DeviceMesh(range(devices)))
        w.outer_split(1, devices)
        w.axis(1).parallelize(ParallelType.mesh_x)
    return fd, w


def main() -> None:
    """Multiply on ranks, or on a simulated mesh and print what importing took."""
    folder = Path(sys.argv[1]).resolve()
    found = Path(meshfuse.__file__).resolve()
    if not found.is_relative_to(folder):
        raise SystemExit(f"meshfuse was imported from {found}, not from {folder}")
    if version("meshfuse") != meshfuse.__version__:
        raise SystemExit(f"version {version('meshfuse')} is {meshfuse.__version__} when imported")
    torch.manual_seed(0)
    devices = Communicator.instance().size()
    simulated = devices == 1
    fd, w = column_parallel(4 if simulated else devices)
    a, b = torch.randn(5, 8), torch.randn(8, 12 if simulated else 3 * devices)
    if simulated:
        with meshfuse.simulate(4) as sim:
            (y,) = sim.run(fd, [a, b])
        torch.testing.assert_close(y, a @ b)
        print(f"meshfuse {meshfuse.__version__}: a product on four simulated devices is right")
        print(
            f"import time: torch {had_torch - started:.2f} s, "
            f"meshfuse after it {had_meshfuse - had_torch:.2f} s"
        )
        return
    (y,) = fd.execute([a, meshfuse.multidevice.shard_tensor(b, w)])
    rank = Communicator.instance().rank()
    torch.testing.assert_close(y, (a @ b)[:, 3 * rank : 3 * rank + 3])
    print(f"rank {rank} of {devices}, over {Communicator.instance().backend()}: right", flush=True)


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: BSD-3-Clause
"""A direct-style script that hard-codes CUDA: tensors are scheduled where they are defined."""

import sys

import nvfuser_direct as nvfuser
import torch
from nvfuser_direct import DataType, FusionDefinition, LRUCache, ParallelType, PythonProfiler
from nvfuser_direct.pytorch_utils import torch_dtype_to_nvfuser_dtype

comm = nvfuser.multidevice.Communicator.instance()
mesh = nvfuser.multidevice.DeviceMesh(torch.arange(comm.size()))
d = mesh.size


def row_parallel(dtype):
    with FusionDefinition() as fd:
        x = fd.define_tensor([-1, 4 * d], contiguity=True, dtype=dtype)
        w = fd.define_tensor([6, 4 * d], contiguity=True, dtype=dtype)
        b = fd.define_tensor([6], contiguity=True, dtype=dtype)
        y = nvfuser.ops.linear(x, w, b)
        fd.add_output(y)
        b.set_device_mesh(mesh)
        for tv in (x, w):
            tv.set_device_mesh(mesh)
            tv.outer_split(-1, d)
            tv.axis(-2).parallelize(ParallelType.mesh_x)
    return fd, (x, w, b)


torch.manual_seed(5)
fd, tvs = row_parallel(torch_dtype_to_nvfuser_dtype(torch.float32))
xs, ws, bs = torch.randn(3, 4 * d), torch.randn(6, 4 * d), torch.randn(6)
parts = [
    nvfuser.multidevice.shard_tensor(t, tv).to("cuda")
    for t, tv in zip((xs, ws, bs), tvs, strict=True)
]
with PythonProfiler() as prof:
    (out,) = fd.execute(parts, device="cuda:0")
torch.testing.assert_close(out, torch.nn.functional.linear(xs, ws, bs))
assert prof.profile.segments > 0
assert repr(fd).startswith("def nvfuser_fusion(fd : FusionDefinition)")
names = {}
exec(fd.repro_script_for(parts), names)
assert names["fd"].fusion == fd.fusion

cache = LRUCache(max_fusions=4)
for _ in range(2):
    one, _ = row_parallel(DataType.Float)
    one.fec = cache.cache_compile(one.fusion)
    del one._fusion
    torch.testing.assert_close(one.execute(parts)[0], out)
assert "Hit Rate: 50%" in cache.stats()

empty = FusionDefinition()
try:
    empty.execute([])
except NotImplementedError as error:
    assert "Fusion does not exist! Use `with FusionDefinition() as fd: ...`" in str(error)
else:
    raise AssertionError("an empty definition was executed")
comm.barrier()
print("direct style: done", *sys.argv[1:])

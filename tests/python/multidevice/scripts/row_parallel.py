# mpirun -np 4 python row_parallel.py
import torch
import meshfuse as nvfuser
from meshfuse import FusionDefinition, ParallelType, PythonProfiler

comm = nvfuser.multidevice.Communicator.instance()
d = comm.size()
mesh = nvfuser.multidevice.DeviceMesh(torch.arange(d))
batch, seq, k, n = 2, 5, 4 * d, 7

with FusionDefinition() as fd:
    x = fd.define_tensor([-1, -1, k], contiguity=True)
    w = fd.define_tensor([n, k], contiguity=True)
    b = fd.define_tensor([n], contiguity=True)
    fd.add_output(fd.ops.linear(x, w, b))                 # output sharding is left to propagation
    b.set_device_mesh(mesh)                               # replicated
    for t in (x, w):
        t.set_device_mesh(mesh)
        t.outer_split(-1, d)                              # K -> d, K/d
        t.axis(-2).parallelize(ParallelType.mesh_x)

torch.manual_seed(11)
xs, ws, bs = torch.randn(batch, seq, k), torch.randn(n, k), torch.randn(n)
local = [nvfuser.multidevice.shard_tensor(g, tv) for g, tv in ((xs, x), (ws, w), (bs, b))]
with PythonProfiler() as prof:
    (out,) = fd.execute(local)                            # partial sums, one all-reduce, then + bias
torch.testing.assert_close(out, torch.nn.functional.linear(xs, ws, bs))
steps = [s.scheduler for s in prof.profile.kernel_profiles]
assert steps.count("communication") == (1 if d > 1 else 0)
comm.barrier()

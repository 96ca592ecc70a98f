# SPDX-License-Identifier: BSD-3-Clause
"""A class-style script that hard-codes CUDA: definitions as classes and as blocks."""

import nvfuser
import torch
from nvfuser import DataType, FusionCache, FusionDefinition, ParallelType, clone
from nvfuser.pytorch_utils import torch_dtype_to_nvfuser_dtype

world = nvfuser.Communicator.instance().size()
mesh = nvfuser.DeviceMesh(range(world))


class Gate(FusionDefinition):
    """relu(x @ w) * s, the columns of w over the mesh."""

    def __init__(self, rows, inner, columns):
        super().__init__()
        self.rows, self.inner, self.columns = rows, inner, columns

    def definition(self):
        self.x = self.define_tensor([self.rows, self.inner], contiguity=True)
        self.w = self.define_tensor([self.inner, self.columns], contiguity=True)
        self.s = self.define_scalar(DataType.Double)
        self.y = self.ops.matmul(self.x, self.w)
        self.out = self.ops.mul(self.ops.relu(self.y), self.s)
        self.add_output(self.out)

    def multidevice_schedule(self):
        for tensor in (self.x, self.w, self.y):
            self.sched._set_device_mesh(tensor, mesh)
        for tensor, axis in ((self.w, -1), (self.y, -2)):
            self.sched.split(tensor, axis, world, False)
            self.sched.parallelize(tensor, axis - 1, ParallelType.mesh_x)
            self.sched.set_allocation_as_loop(tensor)


torch.manual_seed(3)
torch.cuda.set_device(nvfuser.Communicator.instance().local_rank())
x = torch.randn(5, 8, device="cuda")
w = torch.randn(8, 6 * world).cuda()
gate = Gate(5, 8, 6 * world)
for scale in (2.0, -1.0):
    (out,) = gate.execute([x, mesh.shard_tensor(w, 1, 0), scale])
    torch.testing.assert_close(out, (x @ w).relu() * scale)
assert repr(gate).startswith("\ndef nvfuser_fusion_id")

before = FusionCache.get().num_fusions()
for _ in range(3):
    with FusionDefinition() as fd:
        a = fd.from_pytorch(torch.ones(2, 3, 4, device="cuda:0", dtype=torch.bfloat16))
        b = fd.ops.cast(fd.ops.sum(a, 1), torch_dtype_to_nvfuser_dtype(torch.bfloat16))
        fd.add_output(b, stride_order=[0, 1])
    (total,) = fd.execute([torch.ones(2, 3, 4, device="cuda:0", dtype=torch.bfloat16)])
    assert total.stride() == (1, 2) and total.tolist() == [[3.0] * 4] * 2
assert FusionCache.get().num_fusions() == before + 1

copy = FusionDefinition()
clone(fd, copy)
names = {}
exec("from nvfuser import FusionDefinition, DataType\n" + repr(fd), names)
with FusionDefinition() as again:
    names[f"nvfuser_fusion_id{fd.id()}"](again)
for other in (copy, again):
    (same,) = other.execute([torch.ones(2, 3, 4, device="cuda", dtype=torch.bfloat16)])
    assert same.stride() == total.stride() and torch.equal(same, total)
exec(fd.repro_script_for([torch.ones(2, 3, 4, device="cuda", dtype=torch.bfloat16)]), {})
torch.cuda.synchronize()
assert nvfuser.version() > "0.0.0"
print("class style: done")

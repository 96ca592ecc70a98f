# mpirun -np 4 python column_parallel.py     (also: python column_parallel.py)
import torch
import meshfuse as nvfuser
from meshfuse import DataType, FusionDefinition, ParallelType

world = nvfuser.Communicator.instance().size()
me = nvfuser.Communicator.instance().rank()
mesh = nvfuser.DeviceMesh(range(world))
ROWS, INNER, COLS = 6, 10, 3 * world


class ColumnParallel(FusionDefinition):
    def definition(self):
        self.x = self.define_tensor([-1, INNER])
        self.w = self.define_tensor([INNER, COLS], contiguity=True, dtype=DataType.Float)
        self.y = self.ops.matmul(self.x, self.w)          # loop domain: ROWS, COLS, r{INNER}
        self.add_output(self.y)

    def multidevice_schedule(self):
        for t in (self.x, self.w, self.y):
            self.sched._set_device_mesh(t, mesh)
        for t, cols_axis in ((self.w, -1), (self.y, -2)):
            self.sched.split(t, cols_axis, world, False)  # COLS -> world, COLS/world
            self.sched.parallelize(t, cols_axis - 1, ParallelType.mesh_x)
            self.sched.set_allocation_as_loop(t)


torch.manual_seed(11)
x, w = torch.randn(ROWS, INNER), torch.randn(INNER, COLS)
fd = ColumnParallel()
(y,) = fd.execute([x, mesh.shard_tensor(w, 1, me)])       # local weight: INNER x 3
assert y.shape == (ROWS, COLS // world)
torch.testing.assert_close(y, mesh.shard_tensor(x @ w, 1, me))
(y2,) = fd.execute([x[:4], mesh.shard_tensor(w, 1, me)])  # other row count, same definition
assert y2.shape == (4, COLS // world)

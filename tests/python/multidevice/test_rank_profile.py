# SPDX-License-Identifier: BSD-3-Clause
"""Each rank records its own steps."""

from __future__ import annotations

from programs import place, ramp, shard

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, PythonProfiler


def test_profile_of_this_rank(multidevice_test):
    d, rank = multidevice_test.size, multidevice_test.rank
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([3, 4 * d]), fd.define_tensor([5, 4 * d])
        fd.add_output(fd.ops.relu(fd.ops.linear(x, w)))
        place(DeviceMesh(range(d)), x, w)
        for tv in (x, w):
            shard(tv, 1, d)
    parts = [meshfuse.multidevice.shard_tensor(ramp(n, 4 * d), tv) for n, tv in ((3, x), (5, w))]
    with PythonProfiler() as prof:
        fd.execute(parts)
    steps = prof.profile.kernel_profiles
    assert {step.device for step in steps} == {rank}
    assert prof.profile.input_bytes == 4 * 4 * (3 + 5)
    sent = [step for step in steps if step.scheduler == "communication"]
    assert [(step.input_bytes, step.output_bytes) for step in sent] == [(60, 60)] * (d > 1)


def test_pictures_of_a_profile_have_the_global_sizes(multidevice_test):
    """Ranks get local tensors; axes that are divided are longer."""
    d = multidevice_test.size
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([-1, -1]), fd.define_tensor([5, -1])
        fd.add_output(fd.ops.linear(x, w))
        place(DeviceMesh(range(d)), x, w)
        for tv in (x, w):
            shard(tv, 1, d)
    inputs = [ramp(3, 4 * d), ramp(5, 4 * d)]
    parts = [meshfuse.multidevice.shard_tensor(t, tv) for t, tv in zip(inputs, (x, w), strict=True)]
    for _ in range(2):  # compiled, and run again
        with PythonProfiler() as prof:
            fd.execute(parts)
        page = fd.visualize(profile=prof.profile)
        assert f'"shape":[3,{4 * d}]' in page and '"assumed":{}' in page
        assert {step.devices for step in prof.profile.kernel_profiles} == {1}

# SPDX-License-Identifier: BSD-3-Clause
"""PythonProfiler: what it records of executions, and what it costs when it is off."""

from __future__ import annotations

import itertools
import json
import threading
import time

import pytest
import torch
from programs import X, place, ramp, shard

import meshfuse
from meshfuse import DeviceMesh, FusionDefinition, FusionProfile, KernelProfile, PythonProfiler


def relu_of_view(id=None):
    fd = FusionDefinition(id)
    with fd:
        fd.add_output(
            fd.ops.relu(fd.ops.broadcast(fd.define_tensor([-1, 3]), [False, True, False]))
        )
    return fd


def row_parallel(d, scattered=False):
    """A linear whose contracted axis is divided; its result is whole, or divided along its rows."""
    with FusionDefinition() as fd:
        x, w = fd.define_tensor([2 * d, 4 * d]), fd.define_tensor([6, 4 * d])
        y = fd.ops.linear(x, w)
        fd.add_output(y)
        place(DeviceMesh(range(d)), x, w, y)
        shard(x, 1, d)
        shard(w, 1, d)
        if scattered:
            shard(y, 0, d)
    return fd


def test_fields():
    fd, x = relu_of_view(id=7), ramp(5, 3)
    with PythonProfiler(auto_scheduled=False) as prof:
        (out,) = fd.execute([x])
    assert torch.equal(out, x.unsqueeze(1).relu())
    profile = prof.profile
    assert (profile.fusion_id, profile.segments, profile.verbose) == (7, 2, False)
    assert (profile.input_bytes, profile.output_bytes) == (60, 60)
    view, relu = profile.kernel_profiles
    assert [view.scheduler, relu.scheduler] == ["no_op", "expr_eval"]
    assert ["broadcast" in view.name, "relu" in relu.name] == [True, True]
    for i, step in enumerate(profile.kernel_profiles):
        assert (step.segment_id, step.device, step.stream, step.correlation_id) == (i, 0, 0, 0)
        assert (step.input_bytes, step.output_bytes) == (60, 60)
        assert 0 < step.time_ms < profile.host_time_ms
        assert step.effective_bandwidth_gbs == pytest.approx(120e-6 / step.time_ms)
        assert (step.compile_time_ms, step.percentage_peak_bandwidth, step.registers) == (0, 0, 0)
        launch = step.grid_str, step.block_str, step.cluster_str, step.shared_mem_str
        assert launch == ("", "", "", "")
    assert profile.kernel_time_ms == view.time_ms + relu.time_ms
    assert profile.kernel_time_ms <= profile.cuda_evt_time_ms <= profile.host_time_ms
    assert 0 < profile.compile_time_ms < profile.host_time_ms
    assert profile.effective_bandwidth_gbs == pytest.approx(120e-6 / profile.kernel_time_ms)
    assert profile.percentage_peak_bandwith == profile.percentage_peak_bandwidth == 0
    assert "expr_eval" in str(profile) and relu.name in str(profile)


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("d", [1, 2, 4])
def test_communication_of_a_row_parallel_linear(d, scattered):
    """One on more than one device, none on one; sizes are those of all devices."""
    fd, x, w = row_parallel(d, scattered), ramp(2 * d, 4 * d), ramp(6, 4 * d)
    with meshfuse.simulate(d) as sim, PythonProfiler() as prof:
        (out,) = sim.run(fd, [x, w])
    assert torch.equal(out, torch.nn.functional.linear(x, w))
    steps = [s for s in prof.profile.kernel_profiles if s.scheduler == "communication"]
    assert len(steps) == (1 if d > 1 else 0)
    partial = 4 * d * 2 * d * 6
    for step in steps:
        assert step.name.startswith("reduce-scatter" if scattered else "all-reduce")
        assert step.input_bytes == partial
        assert step.output_bytes == (partial // d if scattered else partial)
    assert prof.profile.input_bytes == x.nbytes + w.nbytes


@pytest.mark.parametrize("axis", [0, 1])
def test_slice_of_what_a_device_holds_is_no_communication(axis):
    """The compiler cuts a replicated tensor: a view of rows, a copy of columns."""
    d = 2
    with FusionDefinition() as fd:
        x = fd.define_tensor([4, 6])
        y = fd.ops.set(x)
        fd.add_output(y)
        place(DeviceMesh(range(d)), x, y)
        shard(y, axis, d)
    with meshfuse.simulate(d) as sim, PythonProfiler() as prof:
        (out,) = sim.run(fd, [ramp(4, 6)])
    assert torch.equal(out, ramp(4, 6))
    schedulers = {s.scheduler for s in prof.profile.kernel_profiles}
    assert "communication" not in schedulers
    assert ("no_op" if axis == 0 else "expr_eval") in schedulers


def test_devices_outside_the_mesh_have_no_step():
    """Sizes count the devices that take part."""
    with FusionDefinition() as fd:
        x = fd.define_tensor([4])
        fd.add_output(fd.ops.neg(x))
        x.set_device_mesh(DeviceMesh([1]))
        x.outer_split(0, 1)
        x.axis(0).parallelize(X)
    with meshfuse.simulate(3) as sim, PythonProfiler() as prof:
        sim.run(fd, [ramp(4)])
    (step,) = prof.profile.kernel_profiles
    assert (step.input_bytes, step.output_bytes) == (16, 16)


def test_several_executions_and_nested_blocks():
    fd = relu_of_view()
    with PythonProfiler() as outer:
        fd.execute([ramp(2, 3)])
        with PythonProfiler() as inner:
            fd.execute([ramp(2, 3)])
            fd.execute([ramp(4, 3)])
    assert (inner.profile.segments, outer.profile.segments) == (4, 6)
    sizes = [step.input_bytes for step in outer.profile.kernel_profiles]
    assert sizes == [24, 24, 24, 24, 48, 48]
    fd.execute([ramp(2, 3)])
    assert outer.profile.segments == 6


def test_execution_that_raises_is_left_out():
    fd = relu_of_view()
    with PythonProfiler() as prof:
        with pytest.raises(meshfuse.Error):
            fd.execute([ramp(2, 4)])
        fd.execute([ramp(2, 3)])
    assert prof.profile.segments == 2


def test_nothing_profiled():
    fd = relu_of_view()
    with PythonProfiler() as prof:
        with pytest.raises(RuntimeError, match="no kernel segments were profiled"):
            _ = prof.profile
    with pytest.raises(meshfuse.Error, match="no kernel segments were profiled"):
        _ = prof.profile
    with PythonProfiler() as prof:
        thread = threading.Thread(target=fd.execute, args=([ramp(2, 3)],))
        thread.start()
        thread.join()
    with pytest.raises(RuntimeError, match="no kernel segments were profiled"):
        _ = prof.profile


def test_wrong_nesting():
    first, second = PythonProfiler(), PythonProfiler()
    first.__enter__()
    with pytest.raises(meshfuse.Error, match="was started already"):
        first.__enter__()
    second.__enter__()
    with pytest.raises(meshfuse.Error, match="not the innermost one"):
        first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    first.__exit__(None, None, None)
    with pytest.raises(meshfuse.Error, match="not the innermost one"):
        first.__exit__(None, None, None)


def test_profile_of_execute():
    fd = relu_of_view()
    with pytest.raises(ValueError, match="was not previously called with profiling enabled!"):
        fd.profile()
    for rows in (2, 4):
        fd.execute([ramp(rows, 3)], profile=True)
        assert fd.profile().input_bytes == 12 * rows
    fd.execute([ramp(1, 3)])
    assert fd.profile().input_bytes == 48


def test_last_profile_of_the_thread():
    fd = relu_of_view()
    meshfuse.reset_profiler()
    with pytest.raises(RuntimeError, match="no kernel segments were profiled"):
        meshfuse.get_fusion_profile()
    with PythonProfiler():
        fd.execute([ramp(2, 3)])
    assert meshfuse.get_fusion_profile().segments == 2
    meshfuse.reset_profiler()
    with pytest.raises(RuntimeError, match="no kernel segments were profiled"):
        meshfuse.get_fusion_profile()


# ---- traces and torch's profiler


def test_steps_have_a_beginning_and_host_times():
    fd, x, w = row_parallel(2), ramp(4, 8), ramp(6, 8)
    before = time.time_ns()
    with meshfuse.simulate(2) as sim, PythonProfiler() as prof:
        sim.run(fd, [x, w])
        sim.run(fd, [x, w])
    steps = prof.profile.kernel_profiles
    for first, second in itertools.pairwise(steps):
        assert first.start_ns + first.time_ms * 1e6 <= second.start_ns + 1e4  # 10 us: rounding
    assert before <= steps[0].start_ns and steps[-1].start_ns <= time.time_ns()
    assert all(0 < step.host_time_ms <= step.time_ms for step in steps)
    assert (prof.profile.device_time_ms == 0) == x.is_cpu
    times = [s.time_ms for s in steps if s.scheduler == "communication"]
    assert len(times) == 2 and prof.profile.communication_time_ms == sum(times)


def profile_of(rank: int) -> FusionProfile:
    steps = [
        KernelProfile(
            f"step {i}",
            i,
            kind,
            0.5,
            8,
            16,
            rank,
            start_ns=1_000_000 * (i + rank),
            host_time_ms=0.25,
        )
        for i, kind in enumerate(["expr_eval", "communication"])
    ]
    return FusionProfile(0, steps, 1.0, 0.0, 1.0, 8, 16)


def test_trace_has_a_track_per_rank_and_steps_in_microseconds(tmp_path):
    for rank in (0, 1):
        profile_of(rank).save_trace(tmp_path / "trace-{rank}.json")
    merged = tmp_path / "merged.json"
    meshfuse.merge_traces(sorted(tmp_path.glob("trace-*.json")), merged)
    events = json.loads(merged.read_text())["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names == {0: "rank 0", 1: "rank 1"}
    spans = [(e["pid"], e["name"], e["cat"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert spans == [
        (0, "step 0", "expr_eval", 0.0, 500.0),
        (0, "step 1", "communication", 1000.0, 500.0),
        (1, "step 0", "expr_eval", 1000.0, 500.0),
        (1, "step 1", "communication", 2000.0, 500.0),
    ]


def test_trace_of_a_simulated_mesh_is_of_its_devices(tmp_path):
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.relu(fd.define_tensor([4])))
    with meshfuse.simulate(4) as sim, PythonProfiler() as prof:
        sim.run(fd, [torch.ones(4)])
    assert [step.devices for step in prof.profile.kernel_profiles] == [4]
    prof.profile.save_trace(tmp_path / "trace.json")
    (head, _) = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert head["args"] == {"name": "simulated devices 0 to 3"}


def test_traces_that_cannot_be_merged(tmp_path):
    one, two, text = (tmp_path / name for name in ("one.json", "two.json", "text.json"))
    profile_of(1).save_trace(one)
    profile_of(1).save_trace(two)
    text.write_text("[]")
    with pytest.raises(meshfuse.Error, match=r"two\.json and .*one\.json are both of rank 1"):
        meshfuse.merge_traces([one, two], tmp_path / "merged.json")
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 100000)
    with pytest.raises(meshfuse.Error, match=r"deep\.json is no trace"):
        meshfuse.merge_traces([deep], tmp_path / "merged.json")
    with pytest.raises(meshfuse.Error, match=r"text\.json is no trace"):
        meshfuse.merge_traces([text], tmp_path / "merged.json")
    assert not (tmp_path / "merged.json").exists()


def test_torchs_profiler_shows_the_steps():
    fd = relu_of_view()
    fd.execute([ramp(5, 3)])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        fd.execute([ramp(5, 3)])
    names = [event.name for event in prof.events()]
    (relu,) = [name for name in names if name.startswith("meshfuse: ") and "relu" in name]
    assert relu.endswith("relu(T1)") and "aten::relu" in names

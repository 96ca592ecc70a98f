# SPDX-License-Identifier: BSD-3-Clause
"""measure_links: the fit, and real ranks."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import subprocess
import sys

import pytest

import meshfuse
from meshfuse.planner import Links, Rate, measure
from meshfuse.planner.collectives import algorithms

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
POINTS = (256, 16384, 1 << 20, 1 << 24)


def times_of(rate, ranks=2):
    """What ranks would report if the model were exact."""
    return {
        "ranks": ranks,
        "backend": "mpi",
        "narrow": 8,
        "communications": {
            kind: [
                (n, min(rate.time_us(w.messages, w.volume) for w in algorithms(kind, ranks, n)))
                for n in POINTS
            ]
            for kind in KINDS
        },
        "operations": {
            "start": [(0, 4.0)],
            "traffic": [(98304, 4.0), (786432, 2 + 786.432 / 50), (1 << 26, 2 + 65000.0 / 10)],
            "function": [(65536, 2 + 65.536)],
            "narrow f32": [(4e6, 80.0)],
            "flops f32": [(2e8, 2 + 2e3)],
            "flops bf16": [(2e8, 2 + 1e3)],
        },
    }


def test_fit_finds_alpha_and_beta():
    links = measure._fitted(times_of(Rate(7.0, 3.0)))
    for kind in KINDS:
        assert links.inner.kinds[kind].alpha_us == pytest.approx(7.0, rel=0.01)
        assert links.inner.kinds[kind].gb_per_s == pytest.approx(3.0, rel=0.01)
    device = links.device
    assert (device.step_us, device.function_ns) == (2.0, pytest.approx(1.0))
    assert device.cache_gb_per_s == pytest.approx(50)
    assert device.memory_gb_per_s == pytest.approx(10, rel=0.05)
    assert device.gflops["f32"] == pytest.approx(100)
    assert device.half_size == pytest.approx(8)  # 40 us at full rate, and as much again
    assert device.gflops["bf16"] == pytest.approx(200)
    assert "measured with 2 ranks" in str(links)


def test_figures_of_a_busy_machine_are_doubted():
    assert measure._fitted(times_of(Rate(7.0, 3.0))).doubt() == ""
    doubt = measure._fitted(times_of(Rate(4520.0, 3.0))).doubt()
    assert re.fullmatch(
        r"to begin the message of mpi ranks takes 45\d\d us, more than 1000 us", doubt
    )


def test_figures_that_cannot_be_right_are_not_saved(tmp_path):
    """Those that were measured; what the user writes down is the user's."""
    path = tmp_path / "links.json"
    good = measure._fitted(times_of(Rate(7.0, 3.0)))
    assert Links.load(good.save(path)) == good and good.measured
    path.unlink()
    no_slope = measure._fitted(times_of(Rate(7.0, 1e9)))  # the fit ends at 1e6 GB/s
    instant = times_of(Rate(7.0, 3.0))
    instant["operations"] |= {"flops f32": [(2e8, 2.0)]}
    fast_cache = times_of(Rate(7.0, 3.0))
    fast_cache["operations"]["traffic"][1] = (786432, 2.0)
    for links, doubt in (
        (measure._fitted(times_of(Rate(4520.0, 3.0))), "to begin the message .* than 1000 us"),
        (no_slope, "the message of mpi ranks sends 1000000 GB/s, more than 100000"),
        (measure._fitted(instant), r"rank computes \d+ GFLOP/s of f32, more than 10000000"),
        (measure._fitted(fast_cache), r"cache_gb_per_s of rank is \d+, more than 100000"),
    ):
        with pytest.raises(meshfuse.Error, match=f"^Links: not saved, as {doubt}. Other programs"):
            links.save(path)
        assert not path.exists()
        assert dataclasses.replace(links, measured=False).save(path) == path
        path.unlink()


@pytest.mark.parametrize("ranks", [3, 8])
def test_fit_of_other_teams(ranks):
    """Predictions at the measured sizes are near, whichever algorithm is the quickest there."""
    times = times_of(Rate(7.0, 3.0), ranks)
    links = measure._fitted(times)
    for kind, points in times["communications"].items():
        for n, took in points:
            assert links.inner.time_us(kind, ranks, n) == pytest.approx(took, rel=0.6)


def test_one_rank_measures_nothing():
    with pytest.raises(meshfuse.Error, match=r"ranks is 1\. Two at least"):
        meshfuse.measure_links(ranks=1)


def test_real_ranks(tmp_path):
    """A process of its own starts them; the figures are numbers that the model can use."""
    path = tmp_path / "links.json"
    script = (  # not by save(): on a busy machine it refuses
        "import json, meshfuse, pathlib\n"
        f"text = json.dumps(meshfuse.measure_links().to_dict())\npathlib.Path({str(path)!r})"
        ".write_text(text)"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMIX_", "PMI_"))}
    subprocess.run([sys.executable, "-c", script], env=env, check=True, timeout=300)
    links = Links.load(path)
    for kind in KINDS:
        short, long = (links.inner.time_us(kind, 2, n) for n in (1e3, 1e8))
        assert 0 < short < long < math.inf
    assert links.device.gflops["f32"] > 0.1

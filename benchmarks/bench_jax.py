# SPDX-License-Identifier: BSD-3-Clause
"""What jax takes for rows 11 and 14, in a virtual environment of its own, which has no torch.

Usage: .venv-jax/bin/python benchmarks/bench_jax.py --out FILE [--smoke]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

DEVICES = 8


def medians(calls: dict[str, Callable[[], Any]], turns: int, repeat: int) -> dict[str, float]:
    """Return the median time of a call in microseconds, of calls that take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call().block_until_ready()
    for _ in range(turns):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            for _ in range(repeat):
                call().block_until_ready()
            times[name].append((time.perf_counter_ns() - start) / 1e3 / repeat)
    return {name: statistics.median(values) for name, values in times.items()}


def ready_to_run(jax: Any, ops: int, turns: int) -> float:
    """Return milliseconds per op of tracing and compiling the chain of row 11, sharded inputs."""
    jnp, sharding = jax.numpy, import_module("jax.sharding")
    mesh = sharding.Mesh(jax.devices()[:DEVICES], ("x",))
    shapes = [(4, 2 * DEVICES), (2 * DEVICES,), (2 * DEVICES, 4), (4,)]
    specs = [(None, "x"), ("x",), ("x", None), ()]
    weights = [
        jax.device_put(
            jnp.ones(shapes[i % 4]),
            sharding.NamedSharding(mesh, sharding.PartitionSpec(*specs[i % 4])),
        )
        for i in range(ops)
    ]
    x = jax.device_put(jnp.ones((2, 4)), sharding.NamedSharding(mesh, sharding.PartitionSpec()))

    def chain(x: Any, weights: list[Any]) -> Any:
        for i in range(0, ops, 2):
            x = x @ weights[i] + weights[i + 1]
        return x

    took = []
    for turn in range(turns):
        start = time.perf_counter()
        jax.jit(lambda x, w, turn=turn: chain(x, w) + turn).lower(x, weights).compile()
        took.append(time.perf_counter() - start)
    return 1e3 * statistics.median(took) / ops


def tiny_mesh(jax: Any, turns: int, repeat: int) -> float:
    """Return microseconds that a product on 4 devices takes above a loop of 4 products."""
    jnp, sharding = jax.numpy, import_module("jax.sharding")
    mesh = sharding.Mesh(jax.devices()[:4], ("x",))
    columns = sharding.NamedSharding(mesh, sharding.PartitionSpec(None, "x"))
    whole = sharding.NamedSharding(mesh, sharding.PartitionSpec())
    x, w = jax.device_put(jnp.ones((8, 8)), whole), jax.device_put(jnp.ones((8, 32)), columns)
    small = [jax.device_put(jnp.ones((8, 8)), jax.devices()[0]) for _ in range(4)]
    product = jax.jit(jnp.matmul)

    def plain() -> Any:
        return [product(small[0], w) for w in small][-1]

    found = medians({"loop": plain, "mesh": lambda: product(x, w)}, turns, repeat)
    return found["mesh"] - found["loop"]


def main() -> None:
    """Write the figures, in the units of the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--smoke", action="store_true", help="few turns of tiny sizes")
    parser.add_argument("--out", type=Path, required=True, help="write the figures to this file")
    options = parser.parse_args()
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    jax = import_module("jax")
    ops, turns = (8, 2) if options.smoke else (1000, 15)
    figures = {
        # One turn at full length takes about a second.
        "11": ready_to_run(jax, ops, turns=min(turns, 5)),
        "14 tiny": tiny_mesh(jax, turns, repeat=2 if options.smoke else 20),
    }
    options.out.write_text(json.dumps({"version": jax.__version__, "figures": figures}))


if __name__ == "__main__":
    main()

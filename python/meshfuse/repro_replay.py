# SPDX-License-Identifier: BSD-3-Clause
"""Runs a repro bundle on the simulated mesh: does the error come again, are results right?"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ._C import DataType, TensorView
from .axis_layout import axis_sizes, devices_of
from .check_inputs import DTYPES, check_memory, random_values
from .check_run import Outcome, Pair, Skip
from .definition import FusionDefinition, parse_ir
from .exceptions import Error
from .limits import MAX_SIZE
from .program_text import parse
from .repro_bundle import Bundle, ErrorRecord, Record, ScalarRecord, TensorRecord, dtype_of
from .repro_facts import SEEDS
from .simulation import simulate
from .tensor_sharding import constant, sharding_of, tensor_axes

MOST_DEVICES = 1 << 16  # of a replay, which takes each of them in turn
Layout = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # arguments of lay_out


@dataclass(frozen=True)
class Replay:
    """What came of a replay; ``str()`` is the report.

    Attributes:
        kind: "recurs", "other error", "differs", "equal", or "runs" where results were not
            compared.
        recorded: The error in the bundle.
        found: The error of the replay.
        detail: What differs, or why nothing was compared.
        devices: Number of simulated devices.
    """

    kind: str
    recorded: ErrorRecord | None
    found: ErrorRecord | None
    detail: str
    devices: int

    @property
    def fine(self) -> bool:
        """Whether the program ran, and nothing showed that it is wrong."""
        return self.kind in ("equal", "runs")

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        recorded, found = (e and {"type": e.type, "message": e.message} for e in self._errors())
        return {
            "kind": self.kind,
            "recurs": self.kind == "recurs",
            "recorded": recorded,
            "found": found,
            "detail": self.detail,
            "devices": self.devices,
        }

    def __str__(self) -> str:
        """Return the report."""
        on = f"on {self.devices} simulated device{'' if self.devices == 1 else 's'}"
        heads = {
            "recurs": f"the recorded error recurs {on}",
            "other error": f"it fails {on}, but not with the recorded error"
            if self.recorded
            else f"it fails {on}",
            "differs": f"results {on} differ from those of the program alone",
            "equal": f"it runs {on}, and results equal those of the program alone",
            "runs": f"it runs {on}; results were not compared",
        }
        lines = [f"replay: {heads[self.kind]}"]
        if self.fine and self.recorded is not None:
            lines[0] += "; the recorded error does not recur"
        for what, error in zip(("recorded", "found"), self._errors(), strict=True):
            if error is not None and not (what == "found" and self.kind == "recurs"):
                lines.append(f"  {what}: {error.type}: {error.message}")
        if self.detail:
            lines.append(f"  {self.detail}")
        return "\n".join(lines)

    def _errors(self) -> tuple[ErrorRecord | None, ErrorRecord | None]:
        return self.recorded, self.found


def replay(bundle: Bundle) -> Replay:
    """Run a bundle's program on the simulated mesh, and compare it with the program alone.

    Raises:
        meshfuse.Error: the bundle has no program or no inputs that can be made.
    """
    fd = definition_of(bundle)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(bundle.seeds.get("torch", 0))
        return _Replay(bundle, fd).run()


def definition_of(bundle: Bundle) -> FusionDefinition:
    """Return the bundle's program.

    Raises:
        meshfuse.Error: it has none, or it cannot be read.
    """
    if bundle.program is None:
        raise Error(
            "replay: the bundle has no program, since it could not be printed: "
            f"{bundle.program_error or 'no reason is given'}. Make it again where it was made."
        )
    try:
        fd = parse_ir(bundle.program, uneven=bool(bundle.options.get("uneven")))
    except Error as error:
        raise Error(f"replay: the bundle's program cannot be read: {error}") from error
    _set_options(fd, bundle)
    return fd


def _set_options(fd: FusionDefinition, bundle: Bundle) -> None:
    """Set what the text form leaves out."""
    fusion = fd._defined()
    fusion.strict = bool(bundle.options.get("strict"))
    reduce = bundle.options.get("reduce_dtype")
    if reduce is not None:
        dtype = DataType.__members__.get(str(reduce))
        if dtype is None:
            raise Error(f"replay: the bundle's reduce_dtype {reduce!r} is no type of meshfuse.")
        fusion.reduce_dtype = dtype


class _Replay:
    def __init__(self, bundle: Bundle, fd: FusionDefinition) -> None:
        self.bundle, self.fd = bundle, fd
        self.declared = fd._defined().inputs()
        self.devices = 1
        for tv in fd._defined().tensors():
            if tv.has_device_mesh():
                self.devices = max(self.devices, 1 + max(tv.get_device_mesh().devices))
        if self.devices > MOST_DEVICES:
            raise Error(
                f"replay: the program is on {self.devices} devices, and {MOST_DEVICES} are the "
                "most that a replay simulates. Save a bundle of the program on a smaller mesh."
            )

    def run(self) -> Replay:
        records = self.records()
        shapes = self.global_shapes(records)
        if shapes is None:  # whatever is wrong with the inputs shows without cutting them
            return self.as_given(records)
        self.check_memory(records, shapes)
        inputs = [
            _make(r, shape, self.bundle, k)
            for k, (r, shape) in enumerate(zip(records, shapes, strict=True))
        ]
        layouts: list[Layout | None] = [None] * len(inputs)
        if self.bundle.parts == "rank":
            layouts = [_layout(r) if isinstance(r, TensorRecord) else None for r in records]
        try:
            pair = Pair(parse(self.fd.ir()), uneven=self.fd._defined().uneven)
        except Error as reason:
            return self.alone_refuses(inputs, f"The program has no form without a mesh: {reason}")
        for fd in (pair.fd, pair.alone):
            _set_options(fd, self.bundle)
        sizes = _symbols(pair, shapes)
        try:
            outcome = pair.run_on(inputs, layouts, sizes)
        except Skip as reason:
            return self.alone_refuses(inputs, f"The program alone refuses the inputs: {reason}")
        return self.result(outcome)

    def records(self) -> list[Record]:
        """Return the recorded inputs, or some for a program of constant sizes."""
        if self.bundle.inputs is not None:
            for k, record in enumerate(self.bundle.inputs):
                if isinstance(record, ScalarRecord) and record.kind == "other":
                    raise Error(
                        f"replay: input {k} was of type {record.value}, of which a bundle keeps "
                        "nothing. Execute the program with tensors and numbers."
                    )
            return list(self.bundle.inputs)
        tensors = parse(self.fd.ir()).tensors()
        dtypes = {name: DTYPES[tensor.dtype] for name, tensor in tensors.items()}
        made: list[Record] = []
        for value in self.declared:
            if not isinstance(value, TensorView):
                raise Error(
                    f"replay: the bundle has no inputs, and input {value} is a number that the "
                    "program needs. Give save_repro(path, inputs) the inputs."
                )
            shape = [constant(value, k) for k in range(len(tensor_axes(value)))]
            if None in shape:
                raise Error(
                    f"replay: the bundle has no inputs, and the sizes of {value.name} are open. "
                    "Give save_repro(path, inputs) the inputs."
                )
            made.append(_row_major([n for n in shape if n is not None], dtypes[value.name]))
        return made

    def check_memory(self, records: Sequence[Record], shapes: Sequence[tuple[int, ...]]) -> None:
        """Refuse inputs of these shapes that are larger than this machine's memory."""
        total = sum(
            _elements(record, shape) * dtype_of(record).itemsize
            for record, shape in zip(records, shapes, strict=True)
            if isinstance(record, TensorRecord)
        )
        advice = "Replay on a larger machine, or save a bundle of the program with smaller sizes."
        check_memory("replay", total, self.devices, advice)

    def global_shapes(self, records: Sequence[Record]) -> list[tuple[int, ...]] | None:
        """Return the global shape of each input; None where the inputs do not fit the program."""
        if len(records) != len(self.declared):
            return None
        shapes: list[tuple[int, ...]] = []
        for record, declared in zip(records, self.declared, strict=True):
            is_tensor = isinstance(record, TensorRecord)
            if is_tensor != isinstance(declared, TensorView):
                return None
            if not isinstance(record, TensorRecord) or not isinstance(declared, TensorView):
                shapes.append(())
                continue
            if len(record.shape) != len(tensor_axes(declared)):
                return None
            whole = self.bundle.parts == "global" or self.bundle.inputs is None
            shape = record.shape if whole else self._joined(record, declared)
            if shape is None:
                return None
            shapes.append(shape)
        return shapes

    def _joined(self, record: TensorRecord, tv: TensorView) -> tuple[int, ...] | None:
        """Return the sizes of the tensor of which a rank holds this part."""
        sharding = sharding_of(tv)
        mesh = sharding.mesh
        shape = list(record.shape)
        if mesh is not None and self.bundle.rank not in mesh.devices:
            wanted = [constant(tv, k) for k in range(len(shape))]
            return tuple(n if want is None else want for n, want in zip(shape, wanted, strict=True))
        if mesh is None or sharding.obstacles:
            return None if sharding.obstacles else tuple(shape)
        counts = axis_sizes(mesh)
        for axis, layout in sharding.axes:
            declared = constant(tv, axis)
            parts = math.prod(counts[mesh_axis] for mesh_axis in devices_of(layout))
            if tv.fusion().uneven and declared is not None:
                shape[axis] = declared
                continue
            shape[axis] *= parts
            if declared not in (None, shape[axis]):
                return None
        return tuple(shape)

    def as_given(self, records: Sequence[Record]) -> Replay:
        """Give every device the recorded inputs, uncut."""
        self.check_memory(
            records, [r.shape if isinstance(r, TensorRecord) else () for r in records]
        )
        inputs = [
            _make(r, r.shape if isinstance(r, TensorRecord) else (), self.bundle, k)
            for k, r in enumerate(records)
        ]
        why = "The inputs do not fit the program, or are pieces of which no whole can be made."
        return self.on_mesh([inputs] * self.devices, why)

    def alone_refuses(self, inputs: list[Any], why: str) -> Replay:
        """Run on the mesh alone."""
        try:
            with simulate(self.devices) as sim:
                parts = sim.shard(self.fd, inputs)
        except Exception as error:
            return self.result(_outcome(error))
        return self.on_mesh(parts, why)

    def on_mesh(self, parts: list[list[Any]], why: str) -> Replay:
        try:
            with simulate(self.devices) as sim:
                self.fd._executor().run_all(parts, sim._communicator)
        except Exception as error:
            return self.result(_outcome(error))
        return self.result(Outcome("runs", why))

    def result(self, outcome: Outcome) -> Replay:
        """Compare an outcome with the recorded one."""
        recorded = self.bundle.error
        if outcome.error is None:
            detail = f"{outcome.text}." if outcome.kind == "differs" else outcome.text
            return Replay(outcome.kind, recorded, None, detail, self.devices)
        found = ErrorRecord(type(outcome.error).__name__, str(outcome.error))
        same = recorded is not None and _head(found) == _head(recorded)
        kind = "recurs" if same else "other error"
        return Replay(kind, recorded, found, "", self.devices)


def _outcome(error: Exception) -> Outcome:
    return Outcome("raised", str(error), error)


def _head(error: ErrorRecord) -> str:
    """Return the part of an error that is the same on every rank."""
    first = error.message.partition("\n")[0]
    return re.sub(r"\b(rank|device) \d+", r"\1 n", f"{error.type}: {first}")


def _symbols(pair: Pair, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
    """Return the numbers that symbolic sizes stand for."""
    found: dict[str, int] = {}
    for statement, shape in zip(pair.statements, shapes, strict=True):
        if statement.tensors:
            found.update(zip(statement.tensors[0].shape(), shape, strict=True))
    return found


# ---- inputs


def _row_major(shape: Sequence[int], dtype: torch.dtype) -> TensorRecord:
    strides, step = [0] * len(shape), 1
    for axis in reversed(range(len(shape))):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return TensorRecord(tuple(shape), tuple(strides), str(dtype).removeprefix("torch."))


def _elements(record: TensorRecord, shape: tuple[int, ...]) -> int:
    """Return how many elements an input has, those that its strides leave out included."""
    if shape != record.shape or 0 in shape:
        return math.prod(shape)
    last = sum((n - 1) * stride for n, stride in zip(shape, record.strides, strict=True))
    return max(math.prod(shape), last + 1)


def _make(record: Record, shape: tuple[int, ...], bundle: Bundle, number: int) -> Any:
    """Return an input of this shape, with the recorded elements if they were kept."""
    if isinstance(record, ScalarRecord):
        return record.number()
    try:
        return _tensor(record, shape, bundle, number)
    except (RuntimeError, NotImplementedError) as reason:  # quantized types and bits, say
        raise Error(
            f"replay: input {number}, of torch.{record.dtype}, cannot be made: "
            f"{str(reason).splitlines()[0]}. Save a bundle with an input of another type or size."
        ) from reason


def _tensor(
    record: TensorRecord, shape: tuple[int, ...], bundle: Bundle, number: int
) -> torch.Tensor:
    dtype = dtype_of(record)
    if record.values is not None and shape == record.shape:
        data = bytearray(bundle.blobs[record.values])
        flat = torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0).byte()
        values = flat.view(dtype).reshape(shape)
    else:
        values = _seeded(shape, dtype, bundle.seeds.get("inputs", 0), number, record)
    if shape != record.shape:  # the parts are laid out like the recorded one
        return values
    made = torch.empty_strided(shape, record.strides, dtype=dtype)
    source, target = values, made
    for axis, stride in enumerate(record.strides):
        if stride == 0 and shape[axis] > 1:
            source, target = source.narrow(axis, 0, 1), target.narrow(axis, 0, 1)
    target.copy_(source)
    return made


def _seeded(
    shape: tuple[int, ...], dtype: torch.dtype, first: int, number: int, record: TensorRecord
) -> torch.Tensor:
    """Return values of the seed of an input; integers are within those that were recorded."""
    seed = first + number
    if seed > SEEDS[1]:  # behind the greatest one comes 0
        seed -= SEEDS[1] + 1
    plain = dtype in (torch.bool, torch.uint64) or dtype.is_complex or dtype.is_floating_point
    if dtype.is_floating_point and dtype.itemsize == 1 and dtype not in _SMALL_FLOATS:
        generator = torch.Generator().manual_seed(seed)
        bits = torch.randint(0, 128, shape, generator=generator, dtype=torch.uint8)
        return bits.view(dtype)
    if plain:
        return random_values(list(shape), dtype, seed)
    low, high = record.span or (0, 1)
    most = MAX_SIZE - 1  # the end that is drawn up to has to fit, too
    return random_values(list(shape), dtype, seed, (min(low, most), min(high, most)))


_SMALL_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)


def _layout(record: TensorRecord) -> Layout:
    """Return order, gaps and expanded axes of the recorded strides, as ``lay_out`` takes them."""
    axes = range(len(record.shape))
    expanded = tuple(a for a in axes if record.strides[a] == 0 and record.shape[a] > 1)
    order = sorted(axes, key=lambda a: (-record.strides[a], a))
    gaps, dense = [1] * len(record.shape), 1
    for axis in reversed(order):
        if axis in expanded or record.shape[axis] <= 1:
            continue
        gaps[axis] = max(1, record.strides[axis] // dense)
        dense = dense * gaps[axis] * record.shape[axis]
    return tuple(order), tuple(gaps), expanded

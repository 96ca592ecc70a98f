# SPDX-License-Identifier: BSD-3-Clause
"""Repro bundles: one file with a program, what its inputs were like, and how it failed.

A bundle is a zip file. ``bundle.json`` describes it, ``program.mf`` is the program in text form,
``inputs/0.bin`` are the elements of input 0 where they were asked for. Nothing in it is code.
"""

from __future__ import annotations

import datetime
import io
import json
import math
import os
import platform
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ._C import DataType, Fusion
from .exceptions import Error, PeerError
from .limits import cut
from .package_version import version
from .program_text import parse
from .repro_facts import DTYPES, SCALARS, SEEDS, check_facts
from .simulation import flat_inputs

FORMAT, VERSION = "meshfuse-repro", 1
_PROGRAM, _FACTS = "program.mf", "bundle.json"
_LARGEST_TEXT = 256 << 20  # bytes; a damaged file must not fill the memory
_NO_ZIP = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeDecodeError)
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


@dataclass(frozen=True)
class TensorRecord:
    """An input tensor: what it was like, and its elements where they were kept."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    span: tuple[int, int] | None = None  #: least and greatest element, of integers
    values: str | None = None  #: member of the zip file, row-major

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class ScalarRecord:
    """An input number, as text that keeps every bit."""

    kind: str
    value: str

    def number(self) -> complex:
        """Return it."""
        if self.kind == "bool":
            return self.value == "True"
        number: complex = SCALARS[self.kind](self.value)
        return number


@dataclass(frozen=True)
class ErrorRecord:
    """The exception that was raised."""

    type: str
    message: str


Record = TensorRecord | ScalarRecord


@dataclass
class Bundle:
    """What a bundle holds.

    Attributes:
        program: Text form; None where it could not be printed.
        program_error: Why not.
        inputs: None where they were not given.
        parts: "global", or "rank" where the tensors are the parts that one rank holds.
        rank: The rank that wrote it.
        size: Number of ranks.
        backend: How they talk; None outside a job.
        options: ``strict``, ``uneven`` and ``reduce_dtype`` of the definition.
        seeds: ``torch`` of the process, ``inputs`` for values that were not kept.
        versions: Of meshfuse, torch, Python, and the platform.
        environment: Variables of meshfuse.
        error: What was raised, if anything.
        messages: By rank, what it raised, as far as it is known.
        created: Time, UTC.
        blobs: Elements by member of the zip file.
    """

    program: str | None
    program_error: str | None = None
    inputs: list[Record] | None = None
    parts: str = "global"
    rank: int = 0
    size: int = 1
    backend: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    seeds: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    error: ErrorRecord | None = None
    messages: dict[str, str] = field(default_factory=dict)
    created: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict, repr=False)

    @property
    def meshes(self) -> list[str]:
        """The program's meshes in text form; none where it cannot be read."""
        from .definition import parse_ir

        if not self.program:
            return []
        try:
            whole = parse_ir(self.program, uneven=bool(self.options.get("uneven")))
        except Error:
            return []
        return parse(whole.ir()).meshes()

    def facts(self) -> dict[str, Any]:
        """Return everything but program and elements, ready for JSON."""
        facts = asdict(self)
        for name in ("blobs", "program"):
            del facts[name]
        return {"format": FORMAT, "version": VERSION, "meshes": self.meshes} | facts

    def to_bytes(self) -> bytes:
        """Return the zip file."""
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(_FACTS, json.dumps(self.facts(), indent=1))
            if self.program is not None:
                archive.writestr(_PROGRAM, self.program)
            for name, data in self.blobs.items():
                archive.writestr(name, data)
        return file.getvalue()


def make_bundle(
    fusion: Fusion,
    inputs: Iterable[Any] | None = None,
    *,
    values: bool = False,
    parts: str = "global",
    seed: int = 0,
    error: BaseException | None = None,
    place: tuple[int, int, str | None] = (0, 1, None),
) -> Bundle:
    """Describe a program and its inputs.

    Args:
        fusion: The program.
        inputs: Tensors and numbers; lists inside are flattened.
        values: Keep the elements of tensors.
        parts: "global" or "rank".
        seed: For the values of a replay, where elements are not kept.
        error: What was raised.
        place: Rank, number of ranks and backend of this process.
    """
    low, high = SEEDS
    if not isinstance(seed, int) or isinstance(seed, bool) or not low <= seed <= high:
        raise Error(
            f"save_repro: seed is not a whole number from {low} to {high}, as torch.manual_seed "
            "takes them. Give one of these."
        )
    bundle = Bundle(None, parts=parts, rank=place[0], size=place[1], backend=place[2])
    try:
        bundle.program = fusion.ir()
    except Exception as reason:  # a program that cannot even be printed is worth a bundle, too
        bundle.program_error = f"{type(reason).__name__}: {reason}"
    reduce = fusion.reduce_dtype
    bundle.options = {
        "strict": fusion.strict,
        "uneven": fusion.uneven,
        "reduce_dtype": None if reduce == DataType.Null else reduce.name,
    }
    if inputs is not None:
        bundle.inputs = []
        for number, value in enumerate(flat_inputs(inputs)):
            bundle.inputs.append(_record(bundle, number, value, values))
    bundle.seeds = {"torch": torch.initial_seed(), "inputs": seed}
    bundle.versions = {
        "meshfuse": version(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    bundle.environment = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(("MESHFUSE_", "NVFUSER_"))
    }
    bundle.created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    if error is not None:
        bundle.error = ErrorRecord(type(error).__name__, str(error))
        bundle.messages[str(place[0])] = f"{type(error).__name__}: {error}"
        if isinstance(error, PeerError) and error.rank is not None:
            bundle.messages[str(error.rank)] = error.reason or "unknown"
    return bundle


def load_bundle(path: str | os.PathLike[str]) -> Bundle:
    """Read a bundle.

    Raises:
        meshfuse.Error: there is no such file, or it is no bundle, or damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _read(archive, path)
    except FileNotFoundError:
        raise Error(f"replay: there is no file {path}.") from None
    except _NO_ZIP as reason:
        raise _damaged(path, f"it is not a whole zip file: {reason}") from reason
    except OSError as reason:
        raise Error(f"replay: {path} cannot be read: {reason.strerror}.") from reason


def _damaged(path: Any, reason: str) -> Error:
    return Error(
        f"replay: {path} is not a repro bundle that can be read: {reason}. Give a file that "
        "fd.save_repro() or MESHFUSE_REPRO_DIR has written, unchanged."
    )


def _record(bundle: Bundle, number: int, value: Any, values: bool) -> Record:
    if not isinstance(value, torch.Tensor):
        for kind, python in SCALARS.items():
            if isinstance(value, python):
                return ScalarRecord(kind, repr(value))
        return ScalarRecord("other", type(value).__name__)
    dtype = str(value.dtype).removeprefix("torch.")
    member = f"inputs/{number}.bin" if values else None
    if value.layout is not torch.strided:
        raise Error(
            f"save_repro: input {number} is a {value.layout} tensor. Give tensors with strides."
        )
    if member is not None:
        dense = _dense(value, number)
        bundle.blobs[member] = dense.reshape(-1).view(torch.uint8).numpy().tobytes()
    return TensorRecord(
        tuple(value.shape), tuple(value.stride()), dtype, str(value.device), _span(value), member
    )


def _dense(value: torch.Tensor, number: int) -> torch.Tensor:
    """Return the elements row-major, in memory as they are: views may conjugate or negate it."""
    if value.is_quantized:
        raise Error(
            f"save_repro: input {number} is quantized ({value.dtype}), whose values are not kept. "
            "Give x.dequantize(), or leave values=True out."
        )
    return value.detach().cpu().contiguous().resolve_conj().resolve_neg()


def _span(value: torch.Tensor) -> tuple[int, int] | None:
    """Return the least and the greatest element of a tensor of integers."""
    kinds = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
    if value.dtype not in kinds or value.numel() == 0:
        return None
    return int(value.min()), int(value.max())


# ---- reading


def _read(archive: zipfile.ZipFile, path: Any) -> Bundle:
    names = archive.namelist()
    if _FACTS not in names:
        raise _damaged(path, f"it has no {_FACTS}")
    facts = _facts(archive, path)
    bundle = _from_facts(facts)
    if _PROGRAM in names:
        try:
            bundle.program = _member(archive, _PROGRAM, path).decode()
        except UnicodeDecodeError as reason:
            raise _damaged(path, f"{_PROGRAM} is not text: {reason}") from reason
    for record in bundle.inputs or ():
        if isinstance(record, TensorRecord) and record.values is not None:
            if record.values not in names:
                raise _damaged(path, f"it has no {record.values}")
            info = archive.getinfo(record.values)
            _check_member(info, path)
            found = info.file_size
            if found != record.nbytes:
                raise _damaged(
                    path,
                    f"{record.values} has {found} bytes, not {record.nbytes} as its shape says",
                )
            bundle.blobs[record.values] = archive.read(record.values)
    return bundle


def _facts(archive: zipfile.ZipFile, path: Any) -> dict[str, Any]:
    """Return what ``bundle.json`` says, once it was checked."""
    try:
        facts = json.loads(_member(archive, _FACTS, path))
    except (ValueError, RecursionError) as reason:
        raise _damaged(path, f"{_FACTS} is not JSON: {reason}") from reason
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        raise _damaged(path, f"{_FACTS} is not of the format {FORMAT}")
    if facts.get("version") != VERSION:
        versions = facts.get("versions")
        writer = versions.get("meshfuse") if isinstance(versions, dict) else None
        raise Error(
            f"replay: {path} has version {cut(repr(facts.get('version')))} of the format, but this "
            f"meshfuse reads version {VERSION}. Use the meshfuse that wrote it, "
            f"{cut(str(writer or 'a newer one'))}."
        )
    try:
        check_facts(facts)
    except ValueError as reason:
        raise _damaged(path, f"in {_FACTS}, {reason}") from reason
    return facts


def _check_member(info: zipfile.ZipInfo, path: Any) -> None:
    if info.flag_bits & 1:
        raise _damaged(path, f"{info.filename} is encrypted")
    if info.compress_type not in _METHODS:
        raise _damaged(path, f"{info.filename} is compressed by the method {info.compress_type}")


def _member(archive: zipfile.ZipFile, name: str, path: Any) -> bytes:
    info = archive.getinfo(name)
    _check_member(info, path)
    if info.file_size > _LARGEST_TEXT:
        raise _damaged(path, f"{name} is larger than {_LARGEST_TEXT >> 20} MiB")
    return archive.read(name)


def _from_facts(facts: Mapping[str, Any]) -> Bundle:
    names = ("program_error", "parts", "rank", "size", "backend", "options", "seeds", "versions")
    error, inputs = facts["error"], facts["inputs"]
    return Bundle(
        program=None,
        inputs=None if inputs is None else [_read_record(entry) for entry in inputs],
        error=None if error is None else ErrorRecord(error["type"], error["message"]),
        **{name: facts[name] for name in (*names, "environment", "messages", "created")},
    )


def _read_record(entry: Mapping[str, Any]) -> Record:
    if "kind" in entry:
        return ScalarRecord(entry["kind"], entry["value"])
    span = entry["span"]
    return TensorRecord(
        tuple(entry["shape"]),
        tuple(entry["strides"]),
        entry["dtype"],
        entry["device"],
        None if span is None else (span[0], span[1]),
        entry["values"],
    )


def save_bundle(bundle: Bundle, path: str | os.PathLike[str]) -> None:
    """Write a bundle.

    Raises:
        meshfuse.Error: the file cannot be written.
    """
    try:
        Path(path).write_bytes(bundle.to_bytes())
    except OSError as reason:
        raise Error(f"save_repro: {path} cannot be written: {reason.strerror}.") from reason


def dtype_of(record: TensorRecord) -> torch.dtype:
    """Return torch's type."""
    return DTYPES[record.dtype]

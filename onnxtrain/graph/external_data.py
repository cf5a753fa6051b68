"""Tensors that stand in files beside the model: found, checked and read without leaving the model's folder."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from io import BufferedReader, BufferedWriter
from pathlib import Path, PureWindowsPath

import onnx
from google.protobuf.message import DecodeError, Message

from onnxtrain.errors import ExternalDataError
from onnxtrain.graph import tensors

_LARGE = 1024  # bytes from which on a tensor moves out of a file that is too large
_ALIGNMENT = 4096  # what ONNX recommends, so that readers can map the file into memory

_KEYS = ("location", "offset", "length", "checksum")  # whatever else a file says is not looked at


class ExternalData:
    """Reads the external tensors of one model.

    Data is accepted in the folder of the model's path, and in the folder of the real file when that path is a
    link: caches keep both model and data as links into one folder of their own.
    """

    def __init__(self, model_path: Path | None):
        self._folder = None if model_path is None else model_path.parent
        self._allowed = () if model_path is None else (model_path.parent.resolve(), model_path.resolve().parent)
        self._checksums: dict[Path, str] = {}

    def read(self, tensor: onnx.TensorProto) -> bytes:
        """The bytes of an external tensor, as they would stand in `raw_data`.

        Raises:
          ExternalDataError: the location is outside the model's folder or no regular file, the range is outside
            the file or does not fit type and shape, or the checksum differs.
        """
        entries = _entries(tensor)
        if not tensors.element_type(tensor).bits:
            raise _error(tensor, "holds strings. ONNX keeps strings in string_data, inside the file.")
        folder, path = self._resolve(tensor, entries.get("location", ""))
        try:
            with _open_regular(folder, path) as file:
                self._check_sum(tensor, path, file, entries.get("checksum"))
                start, size = _extent(tensor, entries, os.fstat(file.fileno()).st_size)
                file.seek(start)
                return file.read(size)
        except OSError as error:
            raise _error(tensor, f"cannot be read from {str(path)!r}: {error.strerror}.") from error

    def _resolve(self, tensor: onnx.TensorProto, location: str) -> tuple[Path, Path]:
        """The accepted folder around a location, and the location's real path, links followed."""
        if self._folder is None:
            raise _error(
                tensor,
                f"stands in the file {location!r}, but the model was given in memory, so its folder is unknown. "
                "Give the path of the model file instead.",
            )
        windows = PureWindowsPath(location)
        if not location or "\0" in location or location.startswith("/") or windows.drive or windows.root:
            raise _error(tensor, f"has the location {location!r}. It must be a path relative to the model's folder.")
        real = (self._folder / location).resolve()
        for folder in self._allowed:
            if real.is_relative_to(folder):
                return folder, real
        raise _error(
            tensor,
            f"has the location {location!r}, which leads to {str(real)!r}, outside the model's folder "
            f"{str(self._folder)!r}. Put the data beside the model.",
        )

    def _check_sum(self, tensor: onnx.TensorProto, path: Path, file: BufferedReader, declared: str | None) -> None:
        """`checksum` is the SHA1 of the whole file, so each file is hashed once."""
        if declared is None:
            return
        if path not in self._checksums:
            self._checksums[path] = hashlib.file_digest(file, lambda: hashlib.sha1(usedforsecurity=False)).hexdigest()
        if self._checksums[path] != declared.lower():
            raise _error(tensor, f"declares the SHA1 {declared} for {str(path)!r}, which has {self._checksums[path]}.")


def _entries(tensor: onnx.TensorProto) -> dict[str, str]:
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in entries:
            raise _error(tensor, f"gives {entry.key!r} of its external data twice.")
        if entry.key in _KEYS:
            entries[entry.key] = entry.value
    return entries


def _open_regular(folder: Path, path: Path) -> BufferedReader:
    """Opens a file below a folder without waiting on a pipe, and checks what was opened, not what had the name.

    A hard link is refused: it is a second name of a file that may belong elsewhere, and no path tells where.
    """
    descriptor = _open_below(folder, path)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        kind = "a hard link; copy the file instead" if stat.S_ISREG(status.st_mode) else "not a regular file"
        raise OSError(None, f"it is {kind}")
    return os.fdopen(descriptor, "rb")


def _open_below(folder: Path, path: Path) -> int:
    """Goes down one name at a time where the system can, so that no link that appears meanwhile is followed."""
    no_link = getattr(os, "O_NOFOLLOW", 0)
    flags = os.O_RDONLY | no_link | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    if os.open not in os.supports_dir_fd or path == folder:
        return os.open(path, flags)
    *parents, name = path.relative_to(folder).parts
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for parent in parents:
            below = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | no_link, dir_fd=at)
            os.close(at)
            at = below
        return os.open(name, flags, dir_fd=at)
    finally:
        os.close(at)


def _extent(tensor: onnx.TensorProto, entries: dict[str, str], file_size: int) -> tuple[int, int]:
    """Start and length of the tensor in its file; checked against the file before anything is allocated."""
    needed = tensors.byte_count(tensor)
    start = _whole_number(tensor, "offset", entries.get("offset", "0"))
    length = _whole_number(tensor, "length", entries.get("length", str(needed)))
    if length != needed:
        kind = tensors.element_type(tensor).name
        raise _error(
            tensor, f"of shape {list(tensor.dims)} and type {kind} needs {needed} bytes, but its length is {length}."
        )
    if start + length > file_size:
        raise _error(tensor, f"covers the bytes {start} to {start + length} of a file that has {file_size}.")
    return start, length


def _whole_number(tensor: onnx.TensorProto, key: str, text: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise _error(tensor, f"has the {key} {text[:40]!r}. It must be a whole number of bytes, 0 or more.")
    return int(text)


def tensor_protos(message: Message) -> Iterator[onnx.TensorProto]:
    """Every tensor inside a message, wherever it stands: in any graph, attribute, function or sparse tensor."""
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for item in value if field.is_repeated else (value,):
            if isinstance(item, onnx.TensorProto):
                yield item
            else:
                yield from tensor_protos(item)


def refuse_unloaded(proto: onnx.ModelProto) -> None:
    """Locations are relative to the folder that a model came from, and mean nothing in the one it goes to."""
    for tensor in tensor_protos(proto):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise _error(tensor, "was not loaded, so the model cannot be written. Read the model from its path first.")


def move_out(proto: onnx.ModelProto, target: Path) -> tuple[onnx.ModelProto, Path]:
    """A copy of the model at `target` whose large tensors stand in a new file beside it, and the path of that file."""
    moved = onnx.ModelProto()
    moved.CopyFrom(proto)
    path = target.with_name(f"{target.name}.{secrets.token_hex(4)}.data")
    try:
        with path.open("xb") as file:
            for tensor in tensor_protos(moved):
                if tensors.byte_count(tensor) >= _LARGE:
                    _move(tensor, file, path.name)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(path.parent)  # before a model refers to the file
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return moved, path


def _move(tensor: onnx.TensorProto, file: BufferedWriter, location: str) -> None:
    content = tensors.raw_bytes(tensors.to_array(tensor))
    file.write(bytes(-file.tell() % _ALIGNMENT))
    extent = {"location": location, "offset": str(file.tell()), "length": str(len(content))}
    file.write(content)
    for field in tensors.DATA_FIELDS:
        tensor.ClearField(field)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in extent.items():
        tensor.external_data.add(key=key, value=value)


def owned_files(target: Path) -> tuple[Path, ...]:
    """The files that `move_out` wrote for the model that stands at `target`."""
    pattern = re.compile(re.escape(target.name) + r"\.[0-9a-f]{8}\.data")
    if not any(map(pattern.fullmatch, os.listdir(target.parent))):
        return ()  # so that the model need not be read
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(target.read_bytes())
    except (OSError, DecodeError):
        return ()
    entries = (entry for tensor in tensor_protos(proto) for entry in tensor.external_data)
    names = {entry.value for entry in entries if entry.key == "location" and pattern.fullmatch(entry.value)}
    return tuple(target.with_name(name) for name in sorted(names))


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder outlast a power failure, where the system can do that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _error(tensor: onnx.TensorProto, what: str) -> ExternalDataError:
    return ExternalDataError(f"External tensor {tensor.name!r} {what}")

"""Files that appear whole or not at all, and checkpoints in them that are checked before they are believed."""

from __future__ import annotations

import errno
import fcntl
import os
import pickle
import secrets
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import torch

from shoal.checkpoint.plain import to_plain
from shoal.errors import CheckpointError

__all__ = [
    "atomic_write_bytes",
    "atomic_write_text",
    "atomic_writer",
    "load",
    "remove_leftovers",
    "save",
    "save_in_place",
    "time_written",
    "verify",
]

TEMPORARY_SUFFIX = ".shoal-tmp"
_NAME_BYTES = 200  # of a temporary file's name; file systems take 255
_CHUNK_BYTES = 2**20
_IS_FOLDER = 0x10


@contextmanager
def atomic_writer(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file that becomes ``path`` when the block ends well; otherwise ``path`` stays what it was.

    Written beside ``path``, flushed to the disk, renamed over it, and the folder flushed too: after a crash at any
    moment ``path`` holds either the old bytes or the new ones. While it is written the temporary file is locked,
    so that :func:`remove_leftovers` can tell it from one whose writer was killed.

    Raises:
        OSError: the file could not be written; nothing of it is left.
    """
    target = Path(path)
    descriptor, temporary = _create_locked(target)
    lock = os.dup(descriptor)  # keeps the lock over the close, whose errors must surface before the rename
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
        _sync_folder(target.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(lock)


def atomic_write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Make ``content`` the whole of ``path``, or leave ``path`` as it was and raise OSError."""
    with atomic_writer(path) as file:
        file.write(content)


def atomic_write_text(path: str | os.PathLike[str], content: str) -> None:
    """Make ``content``, as UTF-8, the whole of ``path``, or leave ``path`` as it was and raise OSError."""
    atomic_write_bytes(path, content.encode())


def save(obj: Any, path: str | os.PathLike[str]) -> None:
    """Write ``obj`` to ``path`` in torch's file format, whole or not at all.

    Args:
        obj: tensors, primitives and containers of them; it will load with ``weights_only=True``.
        path: the file; its folder exists. A file that is there is replaced only once the new one is on the disk.

    Raises:
        CheckpointError: ``obj`` holds something else, or the file could not be written. What was at ``path`` before
            is still there.
    """
    plain = to_plain(obj, "the state")
    try:
        with atomic_writer(path) as file:
            torch.save(plain, file)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(_describe_write_error(error, path)) from error


def save_in_place(obj: Any, path: str | os.PathLike[str]) -> None:
    """Write ``obj`` straight to ``path``: for file systems that cannot rename. Use :func:`save` everywhere else.

    A process that is killed meanwhile leaves a broken file, and what was at ``path`` before is gone.

    Raises:
        CheckpointError: as :func:`save`, but nothing is at ``path`` then.
    """
    plain = to_plain(obj, "the state")
    target = Path(path)
    try:
        with target.open("wb") as file:
            try:
                torch.save(plain, file)
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                target.unlink(missing_ok=True)  # it is broken, and takes the space of the next
                raise
    except (OSError, RuntimeError) as error:
        raise CheckpointError(_describe_write_error(error, path)) from error


def load(path: str | os.PathLike[str], map_location: Any = "cpu", *, check: bool = True) -> Any:
    """Read what :func:`save`, or ``torch.save`` of plain state, has written; no code in the file is run.

    Args:
        path: the file.
        map_location: where tensors go, as in ``torch.load``.
        check: compare the file's checksums first (``torch.load`` alone takes altered bytes for weights).

    Raises:
        CheckpointError: the file is missing, cut, altered, of another format, or holds more than plain state.
    """
    if check:
        verify(path)
    try:
        return torch.load(path, map_location=map_location, weights_only=True)
    except pickle.UnpicklingError as error:
        first = str(error).strip().splitlines()[0]
        raise CheckpointError(
            f"asked to load '{path}', which holds more than tensors and primitives; loading that could run code of "
            f"whoever wrote it, so it is refused ({first}). If you trust its writer, read it with "
            "torch.load(..., weights_only=False) and save what you need of it again"
        ) from error
    except (OSError, RuntimeError, EOFError, KeyError, ValueError) as error:
        raise CheckpointError(f"asked to load '{path}', which cannot be read as a checkpoint: {error}") from error


def verify(path: str | os.PathLike[str]) -> None:
    """Check that ``path`` is a whole checkpoint: every record there, every checksum right.

    Raises:
        CheckpointError: it isn't; the text says what was found.
    """
    target = Path(path)
    start, size = b"", 0
    try:
        with target.open("rb") as file:
            start = file.read(4)
            size = os.fstat(file.fileno()).st_size
            damaged = _first_damaged(zipfile.ZipFile(file))
    except FileNotFoundError as error:
        raise CheckpointError(
            f"asked for the checkpoint '{target}', which does not exist; {_nearby(target)}"
        ) from error
    except IsADirectoryError as error:
        raise CheckpointError(
            f"asked for the checkpoint '{target}', which is a folder; name a file, {_nearby(target / '_')}"
        ) from error
    except OSError as error:
        raise CheckpointError(f"asked for the checkpoint '{target}', which cannot be read: {error}") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        found = "is cut off or altered" if start == b"PK\x03\x04" else "is not a checkpoint file"
        raise CheckpointError(
            f"asked for the checkpoint '{target}', which {found} ({size} bytes: {error}); use an older one"
        ) from error
    if damaged is not None:
        raise CheckpointError(
            f"asked for the checkpoint '{target}', whose record '{damaged}' does not have the checksum that was "
            "written with it: the file was altered or the disk fails; use an older one"
        )


def remove_leftovers(folder: str | os.PathLike[str]) -> list[Path]:
    """Delete the temporary files in ``folder`` whose writers were killed; those being written now are left alone.

    Returns:
        the files that were deleted.
    """
    removed = []
    for temporary in sorted(Path(folder).glob(f".*{TEMPORARY_SUFFIX}")):
        with suppress(FileNotFoundError, PermissionError):  # gone meanwhile, or another user's
            descriptor = os.open(temporary, os.O_RDWR | os.O_CLOEXEC)
            try:
                if _lock(descriptor):
                    temporary.unlink()
                    removed.append(temporary)
            except BlockingIOError:
                continue
            finally:
                os.close(descriptor)
    return removed


def _first_damaged(archive: zipfile.ZipFile) -> str | None:
    """The first record that does not have its checksum; by place, since ``testzip`` goes by names, which may be altered
    to be another's.
    """
    for record in archive.infolist():
        if record.external_attr & _IS_FOLDER:  # for which torch would read nothing, and take what its memory holds
            return record.filename
        try:
            with archive.open(record) as file:
                while file.read(_CHUNK_BYTES):
                    pass
        except zipfile.BadZipFile:
            return record.filename
    return None


def _create_locked(target: Path) -> tuple[int, Path]:
    """A new, locked file beside ``target``, with the permissions that an ordinary new file has."""
    name = target.name.encode()[:_NAME_BYTES].decode(errors="ignore")  # its own name may be as long as names may be
    while True:
        temporary = target.with_name(f".{name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        # Between its creation and its lock another process may have taken it for a leftover: then make another one.
        with suppress(BlockingIOError):
            _lock(descriptor)
            if os.fstat(descriptor).st_nlink > 0:
                return descriptor, temporary
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Whether the file is locked now; not where its file system has no locks. Raises BlockingIOError if another has."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL):
            raise
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power failure, where the file system knows how."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # no such notion on this file system
            raise
    finally:
        os.close(descriptor)


def _describe_write_error(error: Exception, path: str | os.PathLike[str]) -> str:
    """torch reports a full disk as a wrong position in the archive; the reason is the OSError behind it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    reason = f"{cause.strerror or cause}" if isinstance(cause, OSError) else str(error)
    advice = "free some space or save elsewhere" if _is_full(cause) else "check that the folder exists and is writable"
    return f"asked to save '{path}', found: {reason}; {advice}"


def _is_full(cause: BaseException | None) -> bool:
    return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def time_written(path: Path) -> int:
    """In nanoseconds; of a file that another process has deleted meanwhile 0."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _nearby(target: Path) -> str:
    """What there is instead, newest first."""
    if not target.parent.is_dir():
        return f"nor does its folder '{target.parent}'"
    files = sorted(target.parent.glob("*.pt"), key=time_written, reverse=True)
    names = ", ".join(file.name for file in files[:5])
    return f"in its folder: {names}{', …' if len(files) > 5 else ''}" if files else "its folder holds no checkpoint"

"""Committed directories: files, and a manifest written last that names each with its size and checksum.

What has no manifest does not exist. The manifest appears by one rename, after everything that it names is on the disk,
so a crash at any point leaves the directory either complete or without a manifest. Versions and checkpoints are written
in this way.

FORMAT.md gives the manifest byte by byte.
"""

import difflib
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rankhouse.embedding_cache.format.errors import ContentError, CorruptFileError, ManifestError, StorageError

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"

_OWN_KEYS = ("format", "format_version", "files")
_READ_BYTES = 1 << 20
_REPAIR = "restore the file from another copy or write it again"


@dataclass(frozen=True)
class FileRecord:
    """What a manifest remembers of a file.

    Attributes:
        bytes: The file's size.
        sha256: The SHA-256 of its content, 64 lower-case hexadecimal digits.
    """

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """A manifest as read.

    Attributes:
        document: What the writer said about the directory; the manifest without its own keys.
        files: The directory's files by name; names are relative paths with forward slashes.
        sha256: The SHA-256 of the manifest's own bytes.
    """

    document: Mapping[str, Any]
    files: Mapping[str, FileRecord]
    sha256: str


def file_record(path: Path | str, *, on_bytes: Callable[[int], None] | None = None) -> FileRecord:
    """Measures a file, reading it in constant memory.

    Args:
        path: The file.
        on_bytes: Called with the size of each part when it was read, for a progress bar.

    Raises:
        CorruptFileError: The file does not exist or cannot be read.
    """
    digest, size = hashlib.sha256(), 0
    for block in _blocks(path):
        digest.update(block)
        size += len(block)
        if on_bytes is not None:
            on_bytes(len(block))
    return FileRecord(bytes=size, sha256=digest.hexdigest())


def copy_file(source: Path | str, target: Path | str) -> FileRecord:
    """Copies a file and measures it on the way, in constant memory; it is not flushed to the disk.

    Raises:
        CorruptFileError: The source cannot be read.
        StorageError: The target cannot be written.
    """
    digest, size = hashlib.sha256(), 0
    try:
        with open(target, "wb") as writer:
            for block in _blocks(source):
                writer.write(block)
                digest.update(block)
                size += len(block)
    except OSError as exc:
        raise StorageError(
            f"{target}: cannot be written ({exc.strerror}); free space or correct the permissions, and try again"
        ) from exc
    return FileRecord(bytes=size, sha256=digest.hexdigest())


def _blocks(path: Path | str) -> Iterator[bytes]:
    try:
        with open(path, "rb") as file:
            while block := file.read(_READ_BYTES):
                yield block
    except OSError as exc:
        raise CorruptFileError(f"{path}: cannot be read ({exc.strerror})") from exc


def commit_manifest(
    directory: Path | str, *, kind: str, document: Mapping[str, Any], files: Mapping[str, FileRecord]
) -> Manifest:
    """Makes a directory of files exist, all at once: its manifest is written last and appears by rename.

    Every file named is flushed to the disk before. Called by one process, when all writers of `files` have finished.

    Args:
        directory: The folder that holds the files.
        kind: What the directory is, for example "version"; reading it back as another kind is refused.
        document: The rest of the manifest: JSON values, without the keys `format`, `format_version` and `files`.
        files: What the directory holds, by relative path, as `file_record` measured it.

    Returns:
        The manifest as `read_manifest` would give it.

    Raises:
        ContentError: A file's name leaves the directory, or the document has a reserved key or something not JSON.
        CorruptFileError: A file named does not exist or has another size.
    """
    directory = Path(directory)
    if reserved := [key for key in _OWN_KEYS if key in document]:
        raise ContentError(f"{directory}: the document has the reserved key {reserved[0]!r}; use another name for it")
    for name, record in files.items():
        if reason := _name_fault(name):
            raise ContentError(f"{directory}: cannot hold a file named {name!r}: {reason}")
        check_content(directory / name, record, verify=False)
        flush(directory / name)
    for folder in sorted({(directory / name).parent for name in files}):
        flush(folder)
    records = {name: asdict(files[name]) for name in sorted(files)}
    whole = {"format": f"rankhouse.{kind}", "format_version": FORMAT_VERSION, **document, "files": records}
    try:
        content = json.dumps(whole, indent=1, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as exc:
        raise ContentError(f"{directory}: the document of its manifest is not plain JSON: {exc}") from exc
    write_durably(directory / MANIFEST_NAME, content)
    return _parse(directory / MANIFEST_NAME, content, kind)


def load_manifest(directory: Path | str, *, kind: str) -> Manifest:
    """Reads a committed directory's manifest alone; the files that it names are not looked at.

    Args:
        directory: The folder that `commit_manifest` completed.
        kind: What it must be, for example "version".

    Raises:
        ManifestError: There is no manifest, or it is unreadable, of another kind, or made by a newer release.
    """
    directory = Path(directory)
    path = directory / MANIFEST_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError as exc:
        there = "it was never completed" if directory.is_dir() else "there is no such folder"
        raise ManifestError(f"{path}: not found: {there}; write the {kind} again or give another folder") from exc
    except OSError as exc:
        raise ManifestError(f"{path}: cannot be read ({exc.strerror})") from exc
    return _parse(path, content, kind)


def read_manifest(directory: Path | str, *, kind: str, verify: bool = True) -> Manifest:
    """Reads a committed directory's manifest and checks the files that it names.

    Args:
        directory: The folder that `commit_manifest` completed.
        kind: What it must be, for example "version".
        verify: Whether to read every file and compare its checksum. Presence and size are compared in any case.

    Raises:
        ManifestError: There is no manifest, or it is unreadable, of another kind, or made by a newer release.
        CorruptFileError: A file is missing, truncated or altered.
    """
    manifest = load_manifest(directory, kind=kind)
    check_files(directory, manifest, verify=verify)
    return manifest


def check_files(directory: Path | str, manifest: Manifest, *, verify: bool = True) -> None:
    """Checks the files that a manifest names.

    Args:
        directory: The manifest's folder.
        manifest: The manifest.
        verify: Whether to read every file and compare its checksum. Presence and size are compared in any case.

    Raises:
        CorruptFileError: A file is missing, truncated or altered.
    """
    for name, record in manifest.files.items():
        check_content(Path(directory) / name, record, verify=verify)


def check_content(
    path: Path, record: FileRecord, *, verify: bool = True, on_bytes: Callable[[int], None] | None = None
) -> None:
    """Compares a file with its record.

    Args:
        path: The file.
        record: What it must be.
        verify: Whether to read it and compare its checksum. Presence and size are compared in any case.
        on_bytes: Called with the size of each part when it was read, for a progress bar.

    Raises:
        CorruptFileError: It is missing, truncated or altered.
    """
    if not path.is_file():
        raise CorruptFileError(f"{path}: is missing; {_REPAIR}")
    size = path.stat().st_size
    if size != record.bytes:
        state = "truncated" if size < record.bytes else "altered"
        raise CorruptFileError(f"{path}: was {state}: expected {record.bytes} bytes, found {size}; {_REPAIR}")
    if verify:
        found = file_record(path, on_bytes=on_bytes)
        if found != record:
            raise CorruptFileError(
                f"{path}: its content was altered: expected {record.bytes} bytes of SHA-256 {record.sha256}, "
                f"found {found.bytes} bytes of {found.sha256}; {_REPAIR}"
            )


def write_durably(path: Path, content: bytes) -> None:
    """Writes a small file so that it appears complete or not at all, even when the machine stops in between."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    flush(path.parent)


def flush(path: Path) -> None:
    """Flushes a file's bytes, or a folder's names, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(path: Path, content: bytes) -> dict[str, Any]:
    """Parses a JSON object strictly: no NaN, no key twice.

    Args:
        path: Where the content came from, for the message.
        content: The file's bytes.

    Raises:
        ManifestError: It is not UTF-8, not JSON or not an object.
    """
    try:
        value = json.loads(content, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as exc:
        raise ManifestError(f"{path}: is not valid JSON ({exc}); restore it from another copy") from exc
    if not isinstance(value, dict):
        raise ManifestError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def check_format(path: Path, document: Mapping[str, Any], kind: str) -> None:
    """Checks the two keys with which each of our JSON files begins.

    Raises:
        ManifestError: It is of another kind, or of a format version that this release does not know.
    """
    if document.get("format") != f"rankhouse.{kind}":
        found = document.get("format")
        raise ManifestError(f"{path}: expected the format 'rankhouse.{kind}', found {found!r}; is it the right folder?")
    version = document.get("format_version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ManifestError(f"{path}: expected a format_version of 1 or more, found {version!r}")
    if version > FORMAT_VERSION:
        raise ManifestError(
            f"{path}: has format_version {version}, this release reads up to {FORMAT_VERSION}; use a newer Rankhouse"
        )


def check_keys(path: Path, document: Mapping[str, Any], known: Collection[str]) -> None:
    """Checks that a JSON object has no key but those known: what is not understood may change the rest's meaning.

    Raises:
        ManifestError: It has; the message names the nearest known key.
    """
    for key in document:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"
            raise ManifestError(f"{path}: has the unknown key {key!r}; {hint}")


def _parse(path: Path, content: bytes, kind: str) -> Manifest:
    document = read_json(path, content)
    check_format(path, document, kind)
    files = document.get("files")
    if not isinstance(files, dict):
        raise ManifestError(f"{path}: expected an object under 'files', found {type(files).__name__}")
    records = {name: _parse_record(path, name, value) for name, value in files.items()}
    rest = {key: value for key, value in document.items() if key not in _OWN_KEYS}
    return Manifest(document=rest, files=records, sha256=hashlib.sha256(content).hexdigest())


def _parse_record(path: Path, name: str, value: Any) -> FileRecord:
    if reason := _name_fault(name):
        raise ManifestError(f"{path}: names the file {name!r}, which is refused: {reason}")
    try:
        record = FileRecord(**value)
    except TypeError as exc:
        raise ManifestError(f"{path}: expected {{'bytes', 'sha256'}} for the file {name!r}, found {value!r}") from exc
    if type(record.bytes) is not int or record.bytes < 0 or not is_sha256(record.sha256):
        raise ManifestError(f"{path}: the file {name!r} has an impossible size or SHA-256: {value!r}")
    return record


def is_sha256(value: Any) -> bool:
    """Says whether a value is 64 lower-case hexadecimal digits."""
    return isinstance(value, str) and len(value) == 64 and set(value) <= set("0123456789abcdef")


def _name_fault(name: str) -> str:
    """Says why a name may not stand in a manifest; empty if it may. A manifest must never reach outside its folder."""
    parts = PurePosixPath(name).parts
    if name.startswith("/") or ".." in parts:
        return "it must lie inside the folder"
    if not parts or name != "/".join(parts) or "\\" in name or not name.isprintable():
        return "it must be a plain relative path with forward slashes"
    return "the manifest does not list itself" if name == MANIFEST_NAME else ""


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} stands twice")
    return document


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")

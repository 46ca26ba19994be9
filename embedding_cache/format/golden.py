"""Golden requests: raw requests with the trainer's scores, so that the serving side can prove that it scores alike.

FORMAT.md gives the file byte by byte.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rankhouse.embedding_cache.format.errors import ContentError, ManifestError
from rankhouse.embedding_cache.format.files import FORMAT_VERSION, check_format, check_keys, read_json, write_durably

GOLDEN_FILE = "golden.json"


@dataclass(frozen=True)
class GoldenRequest:
    """A request as the gateway takes it, and what it must answer.

    Attributes:
        request: The body: `{"context": {feature: value}, "candidates": [{feature: value}, ...]}`, of raw values.
        scores: The trainer's probability for each candidate.
    """

    request: Mapping[str, Any]
    scores: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.scores) != len(self.request["candidates"]):
            raise ContentError(
                f"a golden request has {len(self.request['candidates'])} candidates and {len(self.scores)} scores"
            )

    def rows(self) -> list[dict[str, Any]]:
        """The raw row of each candidate: the context's values and its own."""
        return [{**self.request["context"], **candidate} for candidate in self.request["candidates"]]


def write_golden(directory: Path, requests: Sequence[GoldenRequest]) -> None:
    """Writes golden requests into a folder.

    Raises:
        ContentError: A request is not plain JSON.
    """
    document = {
        "format": "rankhouse.golden",
        "format_version": FORMAT_VERSION,
        "requests": [asdict(request) for request in requests],
    }
    try:
        content = json.dumps(document, indent=1, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as exc:
        raise ContentError(f"golden requests are not plain JSON: {exc}") from exc
    write_durably(directory / GOLDEN_FILE, content)


def read_golden(directory: Path) -> tuple[GoldenRequest, ...]:
    """Reads the golden requests of a folder.

    Raises:
        ManifestError: The file is missing, malformed or of another format.
    """
    path = directory / GOLDEN_FILE
    try:
        document = read_json(path, path.read_bytes())
    except OSError as exc:
        raise ManifestError(f"{path}: cannot be read ({exc.strerror}); export the version again") from exc
    check_format(path, document, "golden")
    check_keys(path, document, ("format", "format_version", "requests"))
    try:
        return tuple(GoldenRequest(**{**entry, "scores": tuple(entry["scores"])}) for entry in document["requests"])
    except (ContentError, KeyError, TypeError) as exc:
        raise ManifestError(f"{path}: has a malformed request: {exc}; export the version again") from exc

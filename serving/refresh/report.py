"""What a refresh agent says of itself, to the other replicas and to the program that started it."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rankhouse.serving.golden import GoldenReport


@dataclass(frozen=True)
class AgentReport:
    """What is going on in a replica.

    Attributes:
        is_ready: Requests can be answered.
        is_triton_answering: Triton answers.
        served: The stable version, if it is loaded.
        golden: What the replay of its golden requests found.
        loaded: The versions that requests may be answered by.
        preparing: Versions on their way, and how far they are, or what they wait for.
        failed: Versions that could not be loaded, and why; they are tried again.
        attempts: How often these were tried.
        quarantined: Versions that are not tried again, and why.
        store_problem: Why the version store cannot be looked at; empty if it can.
        alone_bytes: For each loaded version, what would be free without it.
    """

    is_ready: bool = False
    is_triton_answering: bool = False
    served: str | None = None
    golden: GoldenReport | None = None
    loaded: tuple[str, ...] = ()
    preparing: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    attempts: Mapping[str, int] = field(default_factory=dict)
    quarantined: Mapping[str, str] = field(default_factory=dict)
    store_problem: str = ""
    alone_bytes: Mapping[str, int] = field(default_factory=dict)


def write_report(path: Path, report: AgentReport) -> None:
    """Writes a report so that readers see it whole."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(asdict(report), indent=1) + "\n")
    os.replace(temporary, path)


def read_report(path: Path) -> AgentReport | None:
    """Reads a report; None if there is none yet.

    Raises:
        ValueError: The file is something else.
    """
    try:
        document: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    golden = document.pop("golden")
    loaded = tuple(document.pop("loaded"))
    return AgentReport(**document, golden=None if golden is None else GoldenReport(**golden), loaded=loaded)

"""What travelled between the ranks of a run, for its log and its report. Needs no TensorFlow."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class ExchangeTraffic:
    """One exchange, which all ranks make once in a step or less often.

    Attributes:
        name: Its name.
        bytes_sent: Per step, by rank, to other ranks.
        bytes_received: Per step, by rank, from other ranks.
        format: How its rows travel and why, where they were asked to be narrower than float32; else empty.
        max_error: The largest absolute error by rounding, of the steps that were measured; 0 without rounding.
        max_relative_error: The largest error of an element relative to the largest element of its row.
        num_saturated: Elements that were beyond float16's range, of all ranks and steps.
    """

    name: str
    bytes_sent: tuple[float, ...]
    bytes_received: tuple[float, ...]
    format: str = ""
    max_error: float = 0.0
    max_relative_error: float = 0.0
    num_saturated: int = 0


@dataclass(frozen=True)
class RunTraffic:
    """All exchanges of the training steps of a run; evaluations and checkpoints are left out.

    Attributes:
        num_steps: Steps that were counted: those since the ranks were last started.
        exchanges: By falling bytes.
    """

    num_steps: int
    exchanges: tuple[ExchangeTraffic, ...]

    @classmethod
    def of_ranks(cls, documents: Sequence[dict[str, Any]], *, num_steps: int) -> "RunTraffic":
        """Puts together what each rank's `Traffic.document()` says, in the order of the ranks."""
        steps = max(1, num_steps)
        names = dict.fromkeys(name for document in documents for name in document["bytes"])
        exchanges = []
        for name in names:
            counts = [document["bytes"].get(name, (0, 0)) for document in documents]
            roundings = [document["roundings"][name] for document in documents if name in document["roundings"]]
            exchanges.append(
                ExchangeTraffic(
                    name=name,
                    bytes_sent=tuple(sent / steps for sent, _ in counts),
                    bytes_received=tuple(received / steps for _, received in counts),
                    format=documents[0]["choices"].get(name, ""),
                    max_error=max((rounding["max_error"] for rounding in roundings), default=0.0),
                    max_relative_error=max((rounding["max_relative_error"] for rounding in roundings), default=0.0),
                    num_saturated=sum(rounding["num_saturated"] for rounding in roundings),
                )
            )
        return cls(num_steps, tuple(sorted(exchanges, key=lambda each: (-sum(each.bytes_sent), each.name))))

    @classmethod
    def parse(cls, text: str) -> "RunTraffic":
        """Reads what `to_json` wrote."""
        document = json.loads(text)
        sides = ("bytes_sent", "bytes_received")
        exchanges = (
            ExchangeTraffic(**{**each, **{side: tuple(each[side]) for side in sides}}) for each in document["exchanges"]
        )
        return cls(document["num_steps"], tuple(exchanges))

    def to_json(self) -> str:
        """Returns it as a JSON text."""
        return json.dumps(asdict(self), indent=1, allow_nan=False) + "\n"

    @property
    def bytes_sent(self) -> list[float]:
        """Bytes that each rank sends in a step."""
        return [sum(counts) for counts in zip(*(each.bytes_sent for each in self.exchanges), strict=True)]

    def explain(self) -> str:
        """Returns as a line what a rank sends in a step; empty where nothing travels, as on one rank."""
        sent = self.bytes_sent
        if not sent:
            return ""
        mean = sum(sent) / len(sent)
        parts = ", ".join(f"{each.name} {_size(sum(each.bytes_sent) / len(sent))}" for each in self.exchanges)
        return (
            f"a rank sends {_size(mean)} per step, at most {_size(max(sent))} (rank {sent.index(max(sent))}): {parts}"
        )


def _size(num_bytes: float) -> str:
    return f"{num_bytes / 2**10:,.1f} KiB"

"""Where the engine found rows of embeddings, as its counters in Triton's metrics say; part of a replica's report."""

import asyncio
import logging
import re
from collections.abc import Mapping

import httpx

_SECONDS = 5.0
_TIMEOUT_SECONDS = 5.0
_COUNTER = re.compile(r"rankhouse_embedding_(hits|degraded|without_row)_total\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_TIERS = {"degraded": "degraded", "without_row": "unknown"}
_log = logging.getLogger(__name__)

Tiers = dict[str, dict[str, int]]


class CacheTiers:
    """Reads Triton's metrics every few seconds. For the event loop's thread.

    Args:
        url: Of the metrics.
        model: Whose versions are read.

    Attributes:
        counts: Ids looked up by version and by where their rows were: a tier's name, `degraded`, or `unknown`, which
            are those that no row stands in for. Empty while Triton does not answer.
    """

    def __init__(self, url: str, model: str) -> None:
        self.counts: Tiers = {}
        self._url = url
        self._model = model

    async def run(self) -> None:
        """Keeps the counts up to date until it is cancelled."""
        trouble = ""
        async with httpx.AsyncClient(trust_env=False, timeout=_TIMEOUT_SECONDS) as client:
            while True:
                try:
                    answer = (await client.get(self._url)).raise_for_status()
                    # Hundreds of tables are thousands of lines, for which no request should wait.
                    self.counts, found = await asyncio.to_thread(parse, answer.text, self._model), ""
                except (httpx.HTTPError, httpx.InvalidURL, ValueError) as exc:
                    self.counts, found = {}, f"{type(exc).__name__} {exc}"
                if found and found != trouble:
                    _log.warning("the metrics of Triton at %s cannot be read: %s", self._url, found)
                trouble = found
                await asyncio.sleep(_SECONDS)


def parse(text: str, model: str) -> Tiers:
    """Sums the counters of a model's versions over their tables.

    Args:
        text: Metrics as Prometheus reads them.
        model: The model.

    Raises:
        ValueError: A counter is no number.
    """
    tiers: Tiers = {}
    for line in text.splitlines():
        if (found := _COUNTER.fullmatch(line)) is None:
            continue
        kind, labels, value = found[1], dict(_LABEL.findall(found[2])), float(found[3])
        if labels.get("model") == model and "version" in labels:
            _add(tiers.setdefault(labels["version"], {}), kind, labels, int(value))
    return tiers


def _add(counts: dict[str, int], kind: str, labels: Mapping[str, str], number: int) -> None:
    tier = labels.get("tier", "") if kind == "hits" else _TIERS[kind]
    counts[tier] = counts.get(tier, 0) + number

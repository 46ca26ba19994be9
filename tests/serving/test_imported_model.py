"""A model of HPS, imported and served."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.hps.importing import ImportOptions, import_hps
from rankhouse.embedding_cache.hps.ps_json import read_ps_json
from rankhouse.serving.golden import GoldenReport, replay_golden
from rankhouse.serving.model_repository import write_models
from rankhouse.serving.triton_client import TritonClient
from rankhouse.serving.triton_models.dense import DensePart
from rankhouse.serving.triton_server import TritonServer
from tests.embedding_cache.hps.hps_folder import ITEMS, USERS, small_ps_json
from tests.serving.small_version import write_dense_part

pytestmark = pytest.mark.triton

UNKNOWN = 12345
ITEM_DEFAULT, USER_DEFAULT = [0.125] * 3, [0.25] * 2


@pytest.mark.parametrize(
    ("combiner", "num_dense", "row", "embeddings"),
    [
        ("sum", 1, {"item": [7, UNKNOWN], "user": [9]}, [*np.add(ITEMS[7], ITEM_DEFAULT), *USERS[9]]),
        (
            "concat",
            0,
            {"item_0": -3, "item_1": UNKNOWN, "user_0": 5},
            [*ITEMS[-3], *ITEM_DEFAULT, *USERS[5], *USER_DEFAULT],
        ),
    ],
)
def test_it_proves_itself_and_scores_as_its_files_say(
    triton: TritonServer, tmp_path: Path, combiner: str, num_dense: int, row: dict[str, object], embeddings: list[float]
) -> None:
    weights = np.linspace(-0.1, 0.1, len(embeddings), dtype=np.float32)[:, None]
    write_dense_part(tmp_path / "dense.onnx", np.ones((num_dense, 1), np.float32), weights)
    options = ImportOptions(combiner=combiner, dense=DensePart(tmp_path / "dense.onnx"))
    (version,) = import_hps(read_ps_json(small_ps_json(tmp_path)), store=tmp_path / "store", options=options)
    raw = RawBatch.from_rows(version.transform().features, [{**row, **dict.fromkeys(["dense_0"][:num_dense], 0.5)}])

    async def serve() -> tuple[GoldenReport, np.ndarray]:
        async with TritonClient(triton.grpc_url) as client:
            name = write_models(version, repository=triton.repository)
            await client.load(name)
            try:
                result = await client.score(name, raw, timeout_seconds=60.0)
                return await replay_golden(client, name, version), result.scores
            finally:
                await client.unload(name)

    report, scores = asyncio.run(serve())
    assert report.num_scores == 64
    logit = 0.5 * num_dense + float(np.array(embeddings) @ weights[:, 0])
    np.testing.assert_allclose(scores, [1 / (1 + np.exp(-logit))], rtol=0, atol=1e-6)

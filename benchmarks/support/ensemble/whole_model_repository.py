"""The whole model as one model of Triton's Python backend, which gets batches of single rows."""

from pathlib import Path

from benchmarks.support.python_ensemble.repository import importing
from rankhouse.embedding_cache.format.version import Version


def write_whole_model(version: Version, saved_model: Path, *, most_rows: int, repository: Path) -> str:
    """Writes the model; loads nothing.

    Args:
        version: What the SavedModel was made of.
        saved_model: What `WholeModel.save` wrote.
        most_rows: Of a batch.
        repository: The folder that Triton was started with.

    Returns:
        Its name.
    """
    name = "tensorflow"
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    folder.with_name("config.pbtxt").write_text(f"""\
name: "{name}"
backend: "python"
max_batch_size: {most_rows}
dynamic_batching {{ }}
input {{ name: "float_values" data_type: TYPE_FP64 dims: [{version.num_dense}] }}
input {{ name: "texts" data_type: TYPE_STRING dims: [{len(version.features)}] }}
output {{ name: "scores" data_type: TYPE_FP32 dims: [1] }}
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
parameters {{ key: "saved_model" value: {{ string_value: "{saved_model.resolve()}" }} }}
""")
    code = "from benchmarks.support.ensemble.whole_model_step import TritonPythonModel\n"
    (folder / "model.py").write_text(importing(code))
    return name

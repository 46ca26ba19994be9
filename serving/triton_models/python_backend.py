"""A step as a model of Triton's Python backend. Importable only inside Triton's Python processes."""

import json
import traceback
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.serving.errors import InvalidTensorsError
from rankhouse.serving.triton_models.step import Step


def triton_model(step_type: type[Step]) -> type:
    """Returns the class `TritonPythonModel` that serves a step over the version that the model's parameters name."""

    class TritonPythonModel:
        def initialize(self, args: dict[str, str]) -> None:
            parameters = json.loads(args["model_config"])["parameters"]
            store, version = (parameters[name]["string_value"] for name in ("store", "version"))
            # Whoever wrote this model has verified the checksums; here they would be computed once per step again.
            self.step = step_type(VersionStore(store).open(version, verify=False))

        def execute(self, requests: list[Any]) -> list[Any]:
            return [_answer(self.step, request) for request in requests]

    return TritonPythonModel


def _answer(step: Step, request: Any) -> Any:
    """Answers one request; whatever is wrong with it stays its own error."""
    try:
        inputs = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in step.inputs}
        outputs = step(**inputs)
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor(name, np.ascontiguousarray(array)) for name, array in outputs.items()]
        )
    except InvalidTensorsError as exc:
        return _refusal(str(exc), pb_utils.TritonError.INVALID_ARG)
    except Exception as exc:
        pb_utils.Logger.log_error(traceback.format_exc())
        return _refusal(f"{type(exc).__name__}: {exc}", pb_utils.TritonError.INTERNAL)


def _refusal(message: str, code: Any) -> Any:
    return pb_utils.InferenceResponse([], pb_utils.TritonError(message, code))

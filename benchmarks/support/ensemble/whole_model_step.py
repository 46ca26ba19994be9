"""The whole model's SavedModel in Triton's Python backend. Importable only inside Triton's Python processes.

A dynamic batch is joined to one call of TensorFlow.
"""

import json
from typing import Any

import numpy as np
import tensorflow as tf
import triton_python_backend_utils as pb_utils

INPUTS = ("float_values", "texts")


class TritonPythonModel:
    """What Triton calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the SavedModel that the model's parameters name."""
        parameters = json.loads(args["model_config"])["parameters"]
        self._model = tf.saved_model.load(parameters["saved_model"]["string_value"])
        self._score = self._model.signatures["serving_default"]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Scores the requests' rows, one after the other."""
        inputs = [
            [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in INPUTS] for request in requests
        ]
        joined = {
            name: tf.constant(np.concatenate([arrays[column] for arrays in inputs]))
            for column, name in enumerate(INPUTS)
        }
        scores = self._score(**joined)["scores"].numpy()
        ends = np.cumsum([len(floats) for floats, _ in inputs])
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("scores", part[:, None])])
            for part in np.split(scores, ends[:-1])
        ]

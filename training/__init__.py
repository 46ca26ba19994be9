"""From raw logs to a servable version: data, hybrid-parallel training, export."""

import os

# TensorFlow reads these when it is imported, so they are set before any module here does that. Horovod breaks on
# Keras 3; and below fatal errors, TensorFlow greets with drivers that it did not find, which is no news on a CPU.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

"""From raw logs to a servable version: data, hybrid-parallel training, export."""

import os

# Horovod breaks on Keras 3. TensorFlow reads this when it is imported, so it is said before any module here does that.
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")

"""The served version of serving's tests, for commands that call a gateway."""

from tests.serving.conftest import triton
from tests.serving.gateway.conftest import gateway, loaded_triton, served_store, served_version, weights

__all__ = ["gateway", "loaded_triton", "served_store", "served_version", "triton", "weights"]

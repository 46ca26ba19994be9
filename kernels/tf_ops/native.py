"""The compiled TensorFlow ops, and the checks that all views of them share."""

from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext

from rankhouse.kernels import library
from rankhouse.kernels.errors import ArgumentError, LibraryError, UnsupportedError


@cache
def ops() -> Any:
    """Loads the ops on the first call, and returns their module; one that it lacks is a LibraryError too.

    Raises:
        LibraryError: They are missing, or were built for another TensorFlow.
    """
    path = library.find("librankhouse_tf_ops.so")
    library.load()  # checks the version of what the ops stand on
    try:
        loaded = tf.load_op_library(str(path))
    except tf.errors.NotFoundError as exc:
        raise LibraryError(
            f"{path} cannot be loaded by TensorFlow {tf.__version__}; it was built for another: build it again with "
            f"`make setup` or `pip install .` ({exc})"
        ) from exc
    refuse_missing_ops(loaded, path)
    return loaded


def refuse_missing_ops(loaded: Any, path: Path) -> None:
    """Has a module of ops raise LibraryError for one that it lacks; those that it has cost nothing more."""

    def missing(name: str) -> NoReturn:
        # What Python itself looks for in any module (`__path__`, `__wrapped__`) has to be an AttributeError.
        error: type[Exception] = LibraryError if name.startswith("rankhouse_") else AttributeError
        raise error(
            f"{path} has no op {name}: it was built from other sources than this code; build it again with "
            "`make setup` or `pip install .`"
        )

    loaded.__getattr__ = missing


# What tables that are trained hold their rows in.
TRAINED_TYPES = (tf.float32, tf.float16, tf.bfloat16)


def check_variable(variable: tf.Variable, name: str) -> None:
    """Raises ArgumentError for a variable that the ops cannot train."""
    if variable.dtype not in TRAINED_TYPES or variable.shape.rank != 2 or not variable.shape.is_fully_defined():
        raise ArgumentError(
            f"{name} ({variable.name}) is {variable.dtype.name} of shape {variable.shape}: "
            "expected float32, float16 or bfloat16 [rows, width], which are what is trained"
        )
    check_placement(variable, name)


def check_placement(variable: tf.Variable, name: str) -> None:
    """Raises ArgumentError for a variable that does not lie in the main memory."""
    if "GPU" in (variable.device or ""):
        raise ArgumentError(
            f"{name} ({variable.name}) lies on {variable.device}, and these ops run on the CPU: "
            "create it under `with tf.device('CPU:0')`"
        )


def check_not_compiled(what: str) -> None:
    """Raises UnsupportedError where XLA would compile the op that is about to be made, which it cannot."""
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        raise UnsupportedError(
            f"{what} has no XLA version, so it cannot run inside tf.function(jit_compile=True) or a model compiled "
            "with jit_compile=True: leave jit_compile off there, and set it on a function of the dense layers alone"
        )


def advise_huge_pages(variable: tf.Variable) -> None:
    """Puts a table's memory on huge pages where the system grants them; random rows are then read up to twice as fast.

    Takes a second or so for each GB. Assigning all rows at once (`load_weights`) gives the variable other memory.

    Args:
        variable: Of any shape, in float32, float16, bfloat16 or uint8, in the main memory.

    Raises:
        ArgumentError: The variable lies on a GPU.
        tf.errors.InvalidArgumentError: It has another dtype.
    """
    check_placement(variable, "variable")
    ops().rankhouse_advise_huge_pages(variable=variable.handle)

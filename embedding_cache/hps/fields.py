"""The fields of HPS's `ps.json`: what each does there, and what takes its place here.

Names and defaults are those of HPS's own parser, up to its last release (HugeCTR 25.03). It looks past a field that it
does not know; the import refuses one, since a misspelt field means that a default applied without a word.
"""

from dataclasses import dataclass
from typing import Any

_MAPPED = "no meaning: rows lie in files that are mapped into memory, with the system's page cache as the tier in RAM"
_NO_DATABASE = "no meaning: there is no database to reach; a version is files in a store"
_NO_OVERFLOW = "no meaning: nothing is evicted; the page cache lets go of what was not used for longest"
_NO_CACHE = "no meaning: rows are read in place, there is no device cache to fill, refresh or run out of buffers"
_NO_STREAM = "no meaning: rows change by a new version, never one by one; so dense part and rows always fit each other"
_OTHER_DENSE = "no meaning: it is a file of HugeCTR's own; give the dense part as ONNX with --dense"

KINDS = {
    "flag": "true or false, without quotes",
    "count": "a whole number of 0 or more, without quotes",
    "number": "a number, without quotes",
    "text": "a text",
    "texts": "a list of texts",
    "counts": "a list of whole numbers of 1 or more, without quotes",
    "numbers": "a list of numbers, without quotes",
    "whole numbers": "a list of whole numbers, without quotes",
    "object": "an object",
    "objects": "a list of one object or more",
}


@dataclass(frozen=True)
class Field:
    """A field of `ps.json`.

    Attributes:
        kind: What its value must be, one of KINDS.
        there: What it does in HPS.
        here: What the import made of it, or why it has no meaning here and what takes its place.
    """

    kind: str
    there: str
    here: str


# Each part of the file by the name under which it stands; "" is the file itself.
PARTS: dict[str, dict[str, Field]] = {
    "": {
        "supportlonglong": Field(
            "flag",
            "keys of all models have 64 bits; if false, the upper 32 are cut off without a word",
            "taken over: keys are found by all their 64 bits; if false, a key that 32 bits do not hold is refused",
        ),
        "fuse_embedding_table": Field(
            "flag",
            "joins tables of one width; their keys must not overlap (default false)",
            "no meaning: tables stay apart, and one call looks all of them up",
        ),
        "volatile_db": Field("object", "the tier in RAM or Redis", "see its fields"),
        "persistent_db": Field("object", "the tier on the disk", "see its fields"),
        "update_source": Field("object", "the stream of changed rows", "see its fields"),
        "models": Field("objects", "the models", "each becomes a version"),
    },
    "volatile_db": {
        "type": Field("text", "hash map, shared memory, Redis Cluster or none (default)", _MAPPED),
        "algorithm": Field("text", "the kind of hash map, in older releases", _MAPPED),
        "address": Field("text", "Redis; only the first address is asked at start", _NO_DATABASE),
        "user_name": Field("text", "the user of Redis", _NO_DATABASE),
        "password": Field("text", "the password of Redis", _NO_DATABASE),
        "num_node_connections": Field("count", "Redis: connections for each node", _NO_DATABASE),
        "enable_tls": Field("flag", "TLS to Redis", _NO_DATABASE),
        "tls_ca_certificate": Field("text", "TLS to Redis", _NO_DATABASE),
        "tls_client_certificate": Field("text", "TLS to Redis", _NO_DATABASE),
        "tls_client_key": Field("text", "TLS to Redis", _NO_DATABASE),
        "tls_server_name_identification": Field("text", "TLS to Redis", _NO_DATABASE),
        "num_partitions": Field(
            "count", "parts of a table; at most the host's cores, so hosts can differ in what they find", _MAPPED
        ),
        "allocation_rate": Field("count", "bytes that a hash map grows by", _MAPPED),
        "shared_memory_size": Field(
            "count", "bytes shared by processes", "no meaning: all processes share the page cache"
        ),
        "shared_memory_name": Field(
            "text", "memory shared by processes", "no meaning: all processes share the page cache"
        ),
        "shared_memory_auto_remove": Field(
            "flag", "memory shared by processes", "no meaning: all processes share the page cache"
        ),
        "max_batch_size": Field("count", "keys in one call of the database", _NO_DATABASE),
        "max_get_batch_size": Field("count", "the same of reading, in older releases", _NO_DATABASE),
        "max_set_batch_size": Field("count", "the same of writing, in older releases", _NO_DATABASE),
        "overflow_margin": Field("count", "rows of a partition (not of a table) from which on it evicts", _NO_OVERFLOW),
        "overflow_policy": Field("text", "which rows are evicted", _NO_OVERFLOW),
        "overflow_resolution_target": Field("number", "how far it evicts", _NO_OVERFLOW),
        "initial_cache_rate": Field(
            "number",
            "logged only: every key is inserted, whatever it says (default 1.0)",
            "no meaning: rows come into memory when they are first read",
        ),
        "initialize_after_startup": Field(
            "flag", "not read from the file", "no meaning: opening a version loads no rows"
        ),
        "refresh_time_after_fetch": Field("flag", "when a row counts as used, in older releases", _NO_OVERFLOW),
        "cache_missed_embeddings": Field(
            "flag",
            "stores the default as the row of an unknown key, which hides a real row that comes later",
            "no meaning: an unknown key is the unknown value, id 2, in this version; a later one may know it",
        ),
        "update_filters": Field("texts", "which Kafka topics it takes", _NO_STREAM),
    },
    "persistent_db": {
        "type": Field("text", "RocksDB or none", _MAPPED),
        "path": Field("text", "the folder of RocksDB", "no meaning: rows lie in the version store, --store"),
        "num_threads": Field("count", "threads of RocksDB", _NO_DATABASE),
        "read_only": Field("flag", "opens RocksDB for reading only", "no meaning: versions are never written again"),
        "max_batch_size": Field("count", "keys in one call of the database", _NO_DATABASE),
        "max_get_batch_size": Field("count", "the same of reading, in older releases", _NO_DATABASE),
        "max_set_batch_size": Field("count", "the same of writing, in older releases", _NO_DATABASE),
        "initialize_after_startup": Field(
            "flag", "not read from the file", "no meaning: opening a version loads no rows"
        ),
        "update_filters": Field("texts", "which Kafka topics it takes", _NO_STREAM),
    },
    "update_source": {
        "type": Field("text", "Kafka; changed rows reach RAM and RocksDB, not the device cache", _NO_STREAM),
        "brokers": Field("text", "the addresses of Kafka", _NO_STREAM),
        "metadata_refresh_interval_ms": Field("count", "Kafka", _NO_STREAM),
        "receive_buffer_size": Field("count", "Kafka", _NO_STREAM),
        "max_receive_buffer_size": Field("count", "the same in older releases", _NO_STREAM),
        "poll_timeout_ms": Field("count", "Kafka", _NO_STREAM),
        "max_batch_size": Field("count", "messages taken at once", _NO_STREAM),
        "failure_backoff_ms": Field("count", "Kafka: wait after a failure", _NO_STREAM),
        "max_commit_interval": Field("count", "messages after which the place in the stream is kept", _NO_STREAM),
    },
    "models": {
        "model": Field("text", "the model's name", "taken over"),
        "sparse_files": Field(
            "texts", "each table's folder", "taken over: the files key and emb_vector; slot_id and meta are not needed"
        ),
        "embedding_table_names": Field(
            "texts",
            "the tables' names (default sparse_embedding0, 1, ...)",
            "taken over: tables and features have them",
        ),
        "embedding_vecsize_per_table": Field("counts", "the tables' widths", "taken over"),
        "default_value_for_each_table": Field(
            "numbers",
            "what all columns are for an unknown key; 0.0 without a word where the list is short",
            "taken over: rows 1 (missing) and 2 (unknown) of the table",
        ),
        "maxnum_catfeature_query_per_table_per_sample": Field(
            "counts",
            "most keys of a sample, for the sizes of buffers",
            "with --combiner concat: the number of features; otherwise no meaning, lists are of any length",
        ),
        "i64_input_key": Field("flag", "keys have 64 bits, in older releases", "must be supportlonglong's value"),
        "dense_file": Field("text", "the dense part's weights", _OTHER_DENSE),
        "network_file": Field("text", "the dense part's layers", _OTHER_DENSE),
        "maxnum_des_feature_per_sample": Field(
            "count", "continuous features of a sample", "no meaning: the dense part says how many it takes"
        ),
        "slot_num": Field("count", "categorical features of a sample", "no meaning: see the features of the version"),
        "label_dim": Field("count", "scores of a sample", "no meaning: the dense part gives one"),
        "max_batch_size": Field(
            "count",
            "most samples in a request (default 64)",
            "no meaning: the gateway limits the candidates of a request",
        ),
        "hit_rate_threshold": Field(
            "number",
            "from this hit rate on, missing keys get the default in the answer and their rows later (default 0.9)",
            "no meaning: lookups are exact, the same request gives the same scores",
        ),
        "gpucache": Field("flag", "whether there is a device cache (default true)", _NO_CACHE),
        "gpucacheper": Field("number", "the device cache's part of each table (default 0.2)", _NO_CACHE),
        "embedding_cache_type": Field("text", "dynamic (default), static, uvm or stochastic device cache", _NO_CACHE),
        "use_static_table": Field("flag", "a device cache of whole tables, in older releases", _NO_CACHE),
        "use_hctr_cache_implementation": Field("flag", "which device cache", _NO_CACHE),
        "init_ec": Field("flag", "fills the device cache at start", _NO_CACHE),
        "enable_pagelock": Field("flag", "pins host memory for copies to the device", _NO_CACHE),
        "fp8_quant": Field(
            "flag",
            "8-bit rows in a static device cache",
            "no meaning: choose the row type with --row-type, such as int8",
        ),
        "cache_refresh_percentage_per_iteration": Field(
            "number", "part of the device cache refreshed at once; 0 (default) never refreshes it", _NO_CACHE
        ),
        "refresh_delay": Field("number", "seconds until the device cache's first refresh", _NO_CACHE),
        "refresh_interval": Field(
            "number", "seconds between refreshes, read as an int: 0.5 is 0, which is never", _NO_CACHE
        ),
        "num_of_worker_buffer_in_pool": Field(
            "count", "lookups at the same time; one more waits in a busy loop without a limit (default 1)", _NO_CACHE
        ),
        "num_of_refresher_buffer_in_pool": Field("count", "buffers of refreshes (default 1)", _NO_CACHE),
        "thread_pool_size": Field("count", "threads of lookups", "no meaning: a lookup takes the cores that there are"),
        "use_context_stream": Field("flag", "on which CUDA stream it works", "no meaning: lookups run on the CPU"),
        "deployed_device_list": Field("whole numbers", "the GPUs", "no meaning: lookups run on the CPU"),
        "device_id": Field("count", "the GPU", "no meaning: lookups run on the CPU"),
    },
}


def is_of_kind(value: Any, kind: str) -> bool:
    """Says whether a value is what a field of this kind takes."""
    if kind == "objects" and not value:
        return False
    if kind in _ELEMENTS:
        return isinstance(value, list) and all(is_of_kind(element, _ELEMENTS[kind]) for element in value)
    if kind == "positive count":
        return type(value) is int and value >= 1
    if kind == "count":
        return type(value) is int and value >= 0
    return type(value) in _TYPES[kind]


_TYPES: dict[str, tuple[type, ...]] = {
    "flag": (bool,),
    "whole number": (int,),
    "number": (int, float),
    "text": (str,),
    "object": (dict,),
}
_ELEMENTS = {
    "texts": "text",
    "counts": "positive count",
    "numbers": "number",
    "whole numbers": "whole number",
    "objects": "object",
}

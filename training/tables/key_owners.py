"""Which part of a table that is cut by rows a key belongs to."""

import tensorflow as tf


def owners(keys: tf.Tensor, num_owners: int) -> tf.Tensor:
    """Returns the number of each key's part, int32 [n]; any keys spread evenly.

    The remainder of a hash, SplitMix64's finalizer with the constants of its variant 13 (Stafford, "Better Bit
    Mixing", 2011), of which the vocabularies' own hash table knows nothing.
    """
    word = tf.bitcast(keys, tf.uint64)
    for shift, factor in ((31, 0x7FB5D329728EA185), (27, 0x81DADEF4BC2DD44D), (33, None)):
        word = tf.bitwise.bitwise_xor(word, tf.bitwise.right_shift(word, tf.constant(shift, tf.uint64)))
        if factor is not None:
            word *= tf.constant(factor, tf.uint64)
    # Without the lowest bit it is no less even, and a number that every operation takes.
    upper = tf.bitcast(tf.bitwise.right_shift(word, tf.constant(1, tf.uint64)), tf.int64)
    return tf.cast(tf.math.floormod(upper, num_owners), tf.int32)

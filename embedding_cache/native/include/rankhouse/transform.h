// The compiled transform: raw values to the model's input, as a fitted preprocessing workflow would give it, to the
// bit. Opened from a version's transform.json and the tensor files of its vocabularies' layers
// (embedding_cache/FORMAT.md). The conventions of rankhouse/kernels.h hold, and rh_last_error() gives its messages too.
//
// Letters in shapes: B rows in all, F categorical features, N ids in all.
#ifndef RANKHOUSE_TRANSFORM_H_
#define RANKHOUSE_TRANSFORM_H_

#include "rankhouse/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

// Immutable: any number of threads may use one at once.
typedef struct rh_transform rh_transform;

// Opens a compiled transform. Tensor files are mapped into memory, not copied, and must stay as they are while it is
// open; what several open transforms share of them is kept once.
//
// folder: the folder of transform.json.
// layers: [num_layers] the tensor files of the vocabularies' layers, the oldest first; num_layers is 0: those that lie
// in
//   the folder, as transform.json says.
//
// RH_CORRUPT: a file is missing or malformed, is of another kind or newer than this release, or they contradict each
// other. Whatever the files hold, nothing outside of them is ever read.
RH_API int rh_transform_open(const char* folder, const char* const* layers, int64_t num_layers,
                             rh_transform** transform);
RH_API void rh_transform_close(rh_transform* transform);  // NULL is allowed

// How many features of each kind there are. A batch has a column for each, in the order of the feature spec.
typedef struct rh_transform_shape {
  int64_t num_floats;    // continuous features: columns of float_values and of dense
  int64_t num_ints;      // categorical int64 features: columns of int_lengths
  int64_t num_texts;     // categorical text features: columns of text_lengths
  int64_t num_features;  // categorical features, F: num_ints + num_texts
} rh_transform_shape;
RH_API int rh_transform_get_shape(const rh_transform* transform, rh_transform_shape* shape);

// Raw rows: ARCHITECTURE.md, "The Triton ensemble". The values of categorical features stand row by row, and in a row
// feature by feature. A feature without a value is a missing one; one that is no list has at most one.
typedef struct rh_raw_batch {
  const double* float_values;   // [num_rows, num_float_columns]; NaN is missing
  const int64_t* int_values;    // [num_ints]
  const int32_t* int_lengths;   // [num_rows, num_int_columns], how many values each has
  const uint8_t* text_bytes;    // [num_text_bytes], the texts one after the other, UTF-8
  const int32_t* text_sizes;    // [num_texts], the bytes of each, 1 or more
  const int32_t* text_lengths;  // [num_rows, num_text_columns]
  int64_t num_rows;
  int64_t num_float_columns, num_int_columns, num_text_columns;
  int64_t num_ints, num_texts, num_text_bytes;
} rh_raw_batch;

// What the model takes. The caller owns the arrays.
typedef struct rh_model_input {
  float* dense;          // [B, num_floats]
  int64_t* ids;          // [N] feature-major. B * F + (num_ints + num_texts of all batches) are always enough.
  int64_t ids_capacity;  // how many ids there is room for
  int64_t* offsets;      // [F * B + 1], where each bag of ids begins; NULL: not wanted
  int32_t* lengths;      // [F, B], the ids of each bag; NULL: not wanted
  int64_t* num_unknown;  // [num_batches], how many values of each stand in no vocabulary; NULL: not wanted
  int64_t num_ids;       // set by the call: N
} rh_model_input;

// Refuses a batch that rh_transform_apply would refuse, by the same message: RH_INVALID_ARGUMENT where it has another
// number of columns, an infinite value, lengths or sizes that are negative or do not add up, an empty text, or several
// values for a feature that is no list.
RH_API int rh_transform_check(const rh_transform* transform, const rh_raw_batch* batch);

// Transforms the rows of batches, as if they stood in one: B is the sum of their num_rows. If one of them is bad, or
// there is not enough room for the ids, the call fails, and what it wrote is unspecified. num_ids is also set where
// room for the ids is all that lacks.
RH_API int rh_transform_apply(const rh_transform* transform, const rh_raw_batch* batches, int64_t num_batches,
                              rh_model_input* input, const rh_executor* executor);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RANKHOUSE_TRANSFORM_H_

/* rankhouse/transform.h from C: the version of tests/embedding_cache/format/golden by hand, and what is refused. */
#include "rankhouse/transform.h"

#include <math.h>

#include "tests/kernels/expect.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

/* The features: age (log, mean 3, std 0.5) and price; city, home and tags (a list), texts; item and clicked (a list).
 */
static const double kFloats[] = {NAN, 2.5, 0, NAN};
static const int64_t kInts[] = {7, -3, 5, INT64_C(1099511627776)};
static const int32_t kIntLengths[] = {1, 2, 0, 1};
static const char kBytes[] = "osloromeabbccccparis";
static const int32_t kSizes[] = {4, 4, 1, 2, 4, 5};
static const int32_t kTextLengths[] = {1, 1, 2, 0, 1, 1};

static rh_raw_batch raw_batch(void) {
  return (rh_raw_batch){
      .float_values = kFloats,
      .int_values = kInts,
      .int_lengths = kIntLengths,
      .text_bytes = (const uint8_t*)kBytes,
      .text_sizes = kSizes,
      .text_lengths = kTextLengths,
      .num_rows = 2,
      .num_float_columns = 2,
      .num_int_columns = 2,
      .num_text_columns = 3,
      .num_ints = COUNT(kInts),
      .num_texts = COUNT(kSizes),
      .num_text_bytes = COUNT(kBytes) - 1,
  };
}

/* Row 0 has oslo, rome, [a, bb], 7, [-3, 5]; row 1 has no city, cccc, [paris], no item, [2^40]. */
static const int64_t kIds[] = {4, 1, 3, 2, 3, 4, 2, 3, 1, 4, 2, 5};

static int check_shape(const rh_transform* transform) {
  rh_transform_shape shape;
  EXPECT(rh_transform_get_shape(transform, &shape) == RH_OK);
  EXPECT(shape.num_floats == 2 && shape.num_ints == 2 && shape.num_texts == 3 && shape.num_features == 5);
  EXPECT_INVALID(rh_transform_get_shape(NULL, &shape), "transform or shape is NULL");
  EXPECT_INVALID(rh_transform_get_shape(transform, NULL), "transform or shape is NULL");
  return 0;
}

static int check_answer(const rh_transform* transform) {
  const rh_raw_batch batch = raw_batch();
  float dense[4];
  int64_t ids[12], offsets[11], num_unknown = -1;
  int32_t lengths[10];
  rh_model_input input = {dense, ids, 12, offsets, lengths, &num_unknown, 0};
  EXPECT(rh_transform_check(transform, &batch) == RH_OK);
  EXPECT(rh_transform_apply(transform, &batch, 1, &input, NULL) == RH_OK);
  EXPECT(input.num_ids == 12 && memcmp(ids, kIds, sizeof(ids)) == 0);
  EXPECT(num_unknown == 3);
  EXPECT_ELEMENTS(int64_t, offsets, 0, 1, 2, 3, 4, 6, 7, 8, 9, 11, 12);
  EXPECT_ELEMENTS(int32_t, lengths, 1, 1, 1, 1, 2, 1, 1, 1, 2, 1);
  EXPECT(fabsf(dense[0] - (logf(31) - 3) / 0.5f) < 1e-6f && dense[1] == 2.5f && dense[2] == -6 && dense[3] == 0);
  return 0;
}

/* Twice the same batch: each feature's ids of the one, then those of the other. */
static int check_two_batches(const rh_transform* transform) {
  const rh_raw_batch batches[] = {raw_batch(), raw_batch()};
  float dense[8];
  int64_t ids[24], num_unknown[] = {-1, -1};
  rh_model_input input = {.dense = dense, .ids = ids, .ids_capacity = 24, .num_unknown = num_unknown};
  EXPECT(rh_transform_apply(transform, batches, 2, &input, NULL) == RH_OK && input.num_ids == 24);
  EXPECT(memcmp(dense, dense + 4, 4 * sizeof(float)) == 0);
  EXPECT_ELEMENTS(int64_t, ids, 4, 1, 4, 1, 3, 2, 3, 2, 3, 4, 2, 3, 4, 2, 3, 1, 3, 1, 4, 2, 5, 4, 2, 5);
  EXPECT_ELEMENTS(int64_t, num_unknown, 3, 3);

  input.ids_capacity = 23;
  EXPECT_INVALID(rh_transform_apply(transform, batches, 2, &input, NULL),
                 "ids has room for 23 ids: expected room for 24");
  EXPECT(input.num_ids == 24);
  input = (rh_model_input){.dense = dense, .ids_capacity = 24};
  EXPECT_INVALID(rh_transform_apply(transform, batches, 2, &input, NULL), "ids has room for 0 ids");
  input = (rh_model_input){.ids = ids, .ids_capacity = 24};
  EXPECT_INVALID(rh_transform_apply(transform, batches, 2, &input, NULL), "dense is NULL");
  EXPECT(rh_transform_apply(transform, NULL, 0, &input, NULL) == RH_OK && input.num_ids == 0);
  return 0;
}

#define EXPECT_REFUSED(change, text)                               \
  do {                                                             \
    rh_raw_batch batch = raw_batch();                              \
    change;                                                        \
    EXPECT_INVALID(rh_transform_check(transform, &batch), (text)); \
  } while (0)

static int check_refusals(const rh_transform* transform) {
  EXPECT_REFUSED(batch.num_float_columns = 1, "float_values has 1 columns; this model has 2 such features");
  EXPECT_REFUSED(batch.num_int_columns = 3, "int_lengths has 3 columns; this model has 2 such features");
  EXPECT_REFUSED(batch.num_text_columns = 0, "text_lengths has 0 columns; this model has 3 such features");
  EXPECT_REFUSED(batch.num_rows = -1, "num_rows is -1");
  EXPECT_REFUSED(batch.num_ints = -1, "none of them to be negative");
  EXPECT_REFUSED(batch.float_values = NULL, "float_values is NULL: expected 4 elements");
  EXPECT_REFUSED(batch.text_sizes = NULL, "text_sizes is NULL: expected 6 elements");
  EXPECT_REFUSED(batch.float_values = ((const double[]){0, 1, 2, -INFINITY}), "float_values[1, 1] is -inf; expected a");
  EXPECT_REFUSED(batch.text_sizes = ((const int32_t[]){4, 4, 0, 3, 4, 5}), "text_bytes has 20 bytes; expected as many");
  EXPECT_REFUSED(batch.num_text_bytes = 19, "text_sizes add up to, 20, each of them at least 1");
  EXPECT_REFUSED(batch.num_ints = 5, "int_values has shape (5,); expected one dimension and as many values as");
  EXPECT_REFUSED(batch.int_lengths = ((const int32_t[]){1, 4, 0, -1}), "int_lengths add up to, 4, none of them neg");
  EXPECT_REFUSED(batch.text_lengths = ((const int32_t[]){1, 1, 2, 0, 1, 2}), "text_lengths add up to, 7");
  EXPECT_REFUSED(batch.text_lengths = ((const int32_t[]){1, 3, 0, 0, 1, 1}),
                 "feature 'home' has 3 values in a row; it");
  EXPECT_REFUSED(batch.int_lengths = ((const int32_t[]){2, 1, 0, 1}), "feature 'item' has 2 values in a row; it takes");
  return 0;
}

static int check_arguments(const char* folder, const rh_transform* transform) {
  const rh_raw_batch batch = raw_batch();
  rh_model_input input = {0};
  rh_transform* other = NULL;
  EXPECT_INVALID(rh_transform_check(NULL, &batch), "transform or batch is NULL");
  EXPECT_INVALID(rh_transform_check(transform, NULL), "transform or batch is NULL");
  EXPECT_INVALID(rh_transform_apply(NULL, &batch, 1, &input, NULL), "transform or input is NULL");
  EXPECT_INVALID(rh_transform_apply(transform, &batch, 1, NULL, NULL), "transform or input is NULL");
  EXPECT_INVALID(rh_transform_apply(transform, NULL, 1, &input, NULL), "num_batches is 1");
  EXPECT_INVALID(rh_transform_open(folder, NULL, 0, NULL), "transform is NULL");
  EXPECT_INVALID(rh_transform_open(NULL, NULL, 0, &other), "folder is NULL");
  EXPECT_INVALID(rh_transform_open(folder, NULL, 1, &other), "num_layers is 1");
  EXPECT_INVALID(rh_transform_open(folder, (const char*[]){NULL}, 1, &other), "layers[0] is NULL");
  EXPECT_FAILS(rh_transform_open("/nowhere", NULL, 0, &other), RH_CORRUPT, "/nowhere/transform.json: is missing");
  EXPECT_FAILS(rh_transform_open(folder, (const char*[]){"/no.safetensors"}, 1, &other), RH_CORRUPT, "/no.safetensors");
  EXPECT(other == NULL);
  rh_transform_close(NULL);
  return 0;
}

int main(int argc, char** argv) {
  rh_transform* transform = NULL;
  EXPECT(argc == 2);
  EXPECT(rh_transform_open(argv[1], NULL, 0, &transform) == RH_OK);
  const int failed = check_shape(transform) || check_answer(transform) || check_two_batches(transform) ||
                     check_refusals(transform) || check_arguments(argv[1], transform);
  rh_transform_close(transform);
  return failed;
}

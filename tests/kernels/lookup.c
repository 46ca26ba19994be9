/* rankhouse/lookup.h from C: bags worked out by hand, each policy for ids out of range, and what is refused. */
#include "expect.h"

static const float kNarrow[] = {1, 2, 4}; /* [3, 1] */

static int test_combiners_and_weights(void) {
  const rh_table table = {.rows = kNarrow, .num_rows = 3, .dim = 1};
  rh_lookup lookup = {.tables = &table,
                      .feature_tables = (int32_t[]){0, 0, 0, 0},
                      .combiners = (int32_t[]){RH_SUM, RH_MEAN, RH_SQRTN, RH_NONE},
                      .ids = (int64_t[]){0, 2, 0, 2, 1, 0, 2, 1},
                      .weights = (float[]){2, 3, 1, 3, 3, 4, 9, 9},
                      .hotness = (int32_t[]){2, 2, 2, 2},
                      .num_ids = 8,
                      .batch_size = 1,
                      .num_tables = 1,
                      .num_features = 4};
  float out[5];
  const rh_feature_rows rows[] = {{out, 1}, {out + 1, 1}, {out + 2, 1}, {out + 3, 2}};
  EXPECT(rh_pooled_lookup(&lookup, rows, NULL, NULL) == RH_OK);
  EXPECT_ELEMENTS(float, out, 2 * 1 + 3 * 4, (1 * 1 + 3 * 4) / 4.0f, (3 * 2 + 4 * 1) / 5, 4, 2);
  lookup.weighting = RH_WEIGHTING_FBGEMM;
  EXPECT(rh_pooled_lookup(&lookup, rows, NULL, NULL) == RH_OK);
  EXPECT(out[0] == 14 && out[1] == (1 * 1 + 3 * 4) / 2.0f);
  lookup.weights = NULL;
  EXPECT(rh_pooled_lookup(&lookup, rows, NULL, NULL) == RH_OK);
  EXPECT(out[0] == 5 && out[1] == 2.5f && out[4] == 2);

  /* Weights that add up to 0 give zeros. */
  lookup.weighting = RH_WEIGHTING_TENSORFLOW;
  lookup.weights = (float[]){1, 1, 2, -2, 0, 0, 0, 0};
  EXPECT(rh_pooled_lookup(&lookup, rows, NULL, NULL) == RH_OK);
  EXPECT(out[1] == 0 && out[2] == 0);
  return 0;
}

static int test_width_5_int32_ids_and_empty_bags(void) {
  const float values[] = {1, 2, 3, 4, 5, 10, 20, 30, 40, 50};
  const rh_table table = {.rows = values, .num_rows = 2, .dim = 5};
  const rh_lookup lookup = {.tables = &table,
                            .feature_tables = (int32_t[]){0, 0},
                            .combiners = (int32_t[]){RH_MEAN, RH_NONE},
                            .ids = (int32_t[]){0, 1, 1, 0},
                            .offsets = (int64_t[]){0, 0, 2, 2, 3, 3, 4},
                            .num_ids = 4,
                            .batch_size = 3,
                            .num_tables = 1,
                            .num_features = 2,
                            .id_type = RH_INT32};
  float pooled[15], separate[10];
  rh_bad_ids bad = {.count = 7};
  EXPECT(rh_pooled_lookup(&lookup, (rh_feature_rows[]){{pooled, 5}, {separate, 5}}, &bad, NULL) == RH_OK);
  EXPECT_ELEMENTS(float, pooled, 0, 0, 0, 0, 0, 5.5f, 11, 16.5f, 22, 27.5f, 0, 0, 0, 0, 0);
  EXPECT_ELEMENTS(float, separate, 10, 20, 30, 40, 50, 1, 2, 3, 4, 5);
  EXPECT(bad.count == 0);

  const float grad[15] = {9, 9, 9, 9, 9, 2, 4, 6, 8, 10, 9, 9, 9, 9, 9};
  const float grad_separate[10] = {1, 1, 1, 1, 1, 3, 3, 3, 3, 3};
  int64_t capacity = 0, ids[2];
  float sums[10];
  EXPECT(rh_gradient_capacity(&lookup, &capacity) == RH_OK && capacity == 2);
  rh_sparse_gradient gradient = {ids, sums, capacity, 0};
  const rh_feature_rows grads[] = {{(float*)grad, 5}, {(float*)grad_separate, 5}};
  EXPECT(rh_pooled_lookup_gradient(&lookup, grads, &gradient, NULL) == RH_OK);
  EXPECT(gradient.num_rows == 2);
  EXPECT_ELEMENTS(int64_t, ids, 0, 1);
  EXPECT_ELEMENTS(float, sums, 4, 5, 6, 7, 8, 2, 3, 4, 5, 6);
  return 0;
}

static int test_policies_for_ids_out_of_range(void) {
  rh_table tables[4];
  const int32_t policies[] = {RH_ZERO, RH_CLIP, RH_OOV_ROW, RH_ERROR};
  for (int t = 0; t < 4; ++t) {
    tables[t] =
        (rh_table){.rows = kNarrow, .num_rows = 3, .dim = 1, .oov_row = t == 2 ? 1 : 0, .out_of_range = policies[t]};
  }
  int64_t ids[] = {0, -1, 3, 2, 0, INT64_MIN, INT64_MAX, 2, 0, 2, 3, -1, 0, 1, 1, 2};
  const rh_lookup lookup = {.tables = tables,
                            .feature_tables = (int32_t[]){0, 1, 2, 3},
                            .combiners = (int32_t[]){RH_MEAN, RH_SUM, RH_SUM, RH_SUM},
                            .ids = ids,
                            .hotness = (int32_t[]){2, 2, 2, 2},
                            .num_ids = 16,
                            .batch_size = 2,
                            .num_tables = 4,
                            .num_features = 4};
  float out[8];
  const rh_feature_rows rows[] = {{out, 1}, {out + 2, 1}, {out + 4, 1}, {out + 6, 1}};
  rh_bad_ids bad[4];
  EXPECT(rh_pooled_lookup(&lookup, rows, bad, NULL) == RH_OK);
  EXPECT_ELEMENTS(float, out, 0.5f, 2, 1 + 1, 4 + 4, 1 + 4, 2 + 2, 1 + 2, 2 + 4);
  EXPECT(bad[0].count == 2 && bad[0].feature == 0 && bad[0].sample == 0 && bad[0].position == 1 && bad[0].id == -1);
  EXPECT(bad[1].count == 2 && bad[1].feature == 1 && bad[1].sample == 0 && bad[1].position == 1);
  EXPECT(bad[1].id == INT64_MIN);
  EXPECT(bad[2].count == 2 && bad[2].feature == 2 && bad[2].sample == 1 && bad[2].position == 0 && bad[2].id == 3);
  EXPECT(bad[3].count == 0);

  /* The same rows have the gradient: none for zeros. Each contribution is 1, or 1 / 2 in the mean. */
  int64_t capacity[4], gradient_ids[4][3];
  float sums[4][3], ones[] = {1, 1};
  EXPECT(rh_gradient_capacity(&lookup, capacity) == RH_OK);
  EXPECT_ELEMENTS(int64_t, capacity, 3, 3, 3, 3);
  rh_sparse_gradient gradients[4];
  for (int t = 0; t < 4; ++t) gradients[t] = (rh_sparse_gradient){gradient_ids[t], sums[t], 3, 0};
  const rh_feature_rows grads[] = {{ones, 1}, {ones, 1}, {ones, 1}, {ones, 1}};
  EXPECT(rh_pooled_lookup_gradient(&lookup, grads, gradients, NULL) == RH_OK);
  EXPECT(gradients[0].num_rows == 2 && gradient_ids[0][0] == 0 && gradient_ids[0][1] == 2);
  EXPECT(sums[0][0] == 0.5f && sums[0][1] == 0.5f);
  EXPECT(gradients[1].num_rows == 2 && gradient_ids[1][0] == 0 && gradient_ids[1][1] == 2);
  EXPECT(sums[1][0] == 2 && sums[1][1] == 2);
  EXPECT(gradients[2].num_rows == 3);
  EXPECT_ELEMENTS(float, sums[2], 1, 2, 1);

  ids[15] = INT64_MAX;
  const char* message =
      "id 9223372036854775807 of feature 3 (sample 1, position 1 in its bag) is out of range: table 3";
  EXPECT_FAILS(rh_pooled_lookup(&lookup, rows, bad, NULL), RH_OUT_OF_RANGE, message);
  EXPECT_FAILS(rh_pooled_lookup_gradient(&lookup, grads, gradients, NULL), RH_OUT_OF_RANGE, message);
  tables[1].num_rows = 0; /* without a row to clip to it is an error; ids of features before come first */
  EXPECT_FAILS(rh_pooled_lookup(&lookup, rows, bad, NULL), RH_OUT_OF_RANGE,
               "id 0 of feature 1 (sample 0, position 0 in its bag) is out of range: table 1 has 0 rows");
  return 0;
}

static int test_weight_gradient(void) {
  rh_table table = {.rows = kNarrow, .num_rows = 3, .dim = 1};
  rh_lookup lookup = {.tables = &table,
                      .feature_tables = (int32_t[]){0, 0},
                      .combiners = (int32_t[]){RH_SUM, RH_MEAN},
                      .ids = (int64_t[]){1, 2, 0, 2},
                      .weights = (float[]){7, 7, 1, 3},
                      .offsets = (int64_t[]){0, 2, 4},
                      .num_ids = 4,
                      .batch_size = 1,
                      .num_tables = 1,
                      .num_features = 2};
  const float grad[] = {10, 8};
  const rh_feature_rows grads[] = {{(float*)grad, 1}, {(float*)grad + 1, 1}};
  float out[4];
  EXPECT(rh_pooled_lookup_weight_gradient(&lookup, grads, out, NULL) == RH_OK);
  /* The mean is 13 / 4. */
  EXPECT_ELEMENTS(float, out, 20, 40, (8 - 26) / 4.0f, (32 - 26) / 4.0f);
  EXPECT_INVALID(rh_pooled_lookup_weight_gradient(&lookup, grads, NULL, NULL), "weights or weight_grad is NULL");
  EXPECT_INVALID(rh_pooled_lookup_weight_gradient(&lookup, NULL, out, NULL), "grad is NULL");
  table.type = RH_INT8_ROWWISE;
  EXPECT_INVALID(rh_pooled_lookup_weight_gradient(&lookup, grads, out, NULL),
                 "takes float32, float16 or bfloat16 rows");
  lookup.weights = NULL;
  EXPECT_INVALID(rh_pooled_lookup_weight_gradient(&lookup, grads, out, NULL), "weights or weight_grad is NULL");
  return 0;
}

static int test_offsets_from_samples(void) {
  int64_t offsets[5];
  EXPECT(rh_offsets_from_samples((int64_t[]){0, 0, 2}, 1, 3, 4, offsets) == RH_OK);
  EXPECT_ELEMENTS(int64_t, offsets, 0, 2, 2, 3, 3);
  EXPECT(rh_offsets_from_samples((int64_t[]){1, -9, 3, -9}, 2, 2, 4, offsets) == RH_OK);
  EXPECT_ELEMENTS(int64_t, offsets, 0, 0, 1, 1, 2);
  EXPECT(rh_offsets_from_samples(NULL, 0, 0, 4, offsets) == RH_OK);
  EXPECT_ELEMENTS(int64_t, offsets, 0, 0, 0, 0, 0);
  offsets[1] = 7;
  EXPECT(rh_offsets_from_samples(NULL, 0, 0, 0, offsets) == RH_OK && offsets[0] == 0 && offsets[1] == 7);

  EXPECT_INVALID(rh_offsets_from_samples((int64_t[]){2, 1}, 1, 2, 4, offsets), "the sample of id 1 is 1: expected 2");
  EXPECT_INVALID(rh_offsets_from_samples((int64_t[]){4}, 1, 1, 4, offsets), "the sample of id 0 is 4: expected 0");
  EXPECT_INVALID(rh_offsets_from_samples((int64_t[]){INT64_MIN}, 1, 1, 4, offsets), "the sample of id 0 is -922337203");
  EXPECT_INVALID(rh_offsets_from_samples((int64_t[]){0}, 0, 1, 4, offsets), "stride is 0");
  EXPECT_INVALID(rh_offsets_from_samples(NULL, 1, 1, 4, offsets), "samples is NULL");
  EXPECT_INVALID(rh_offsets_from_samples(NULL, 1, 0, 4, NULL), "offsets is NULL");
  EXPECT_INVALID(rh_offsets_from_samples(NULL, 1, 0, -1, offsets), "batch_size -1");
  EXPECT_INVALID(rh_offsets_from_samples(NULL, 1, -1, 1, offsets), "num_ids -1");
  return 0;
}

static int test_empty_batches(void) {
  const rh_table table = {.rows = kNarrow, .num_rows = 3, .dim = 1};
  rh_lookup lookup = {.tables = &table,
                      .feature_tables = (int32_t[]){0},
                      .combiners = (int32_t[]){RH_SUM},
                      .offsets = (int64_t[]){0, 0, 0},
                      .num_tables = 1,
                      .num_features = 1};
  rh_feature_rows rows = {NULL, 0};
  rh_bad_ids bad = {.count = 7};
  rh_sparse_gradient gradient = {NULL, NULL, 0, 7};
  EXPECT(rh_pooled_lookup(&lookup, &rows, &bad, NULL) == RH_OK && bad.count == 0);
  EXPECT(rh_pooled_lookup_gradient(&lookup, &rows, &gradient, NULL) == RH_OK && gradient.num_rows == 0);
  EXPECT(rh_pooled_lookup_weight_gradient(&lookup, &rows, NULL, NULL) == RH_OK);

  lookup.batch_size = 2; /* of empty bags */
  float out[] = {7, 7};
  rows = (rh_feature_rows){out, 1};
  EXPECT(rh_pooled_lookup(&lookup, &rows, NULL, NULL) == RH_OK && out[0] == 0 && out[1] == 0);
  EXPECT(rh_pooled_lookup_gradient(&lookup, &rows, &gradient, NULL) == RH_OK && gradient.num_rows == 0);

  lookup = (rh_lookup){.batch_size = 3}; /* of no features */
  EXPECT(rh_pooled_lookup(&lookup, NULL, NULL, NULL) == RH_OK);
  lookup.ids = (int64_t[]){1}, lookup.num_ids = 1;
  EXPECT_INVALID(rh_pooled_lookup(&lookup, NULL, NULL, NULL), "there are 1 ids, but no bags");
  return 0;
}

/* What a change makes of a batch that is good without it. */
#define EXPECT_REFUSED(change, text)                                    \
  do {                                                                  \
    rh_lookup lookup = good;                                            \
    rh_table table = narrow;                                            \
    rh_feature_rows rows = {out, 1};                                    \
    lookup.tables = &table;                                             \
    change;                                                             \
    EXPECT_INVALID(rh_pooled_lookup(&lookup, &rows, NULL, NULL), text); \
  } while (0)

static int test_errors(void) {
  float out[2];
  const rh_table narrow = {.rows = kNarrow, .num_rows = 3, .dim = 1};
  const rh_lookup good = {.feature_tables = (int32_t[]){0},
                          .combiners = (int32_t[]){RH_SUM},
                          .ids = (int64_t[]){0, 1},
                          .offsets = (int64_t[]){0, 1, 2},
                          .num_ids = 2,
                          .batch_size = 2,
                          .num_tables = 1,
                          .num_features = 1};
  EXPECT_REFUSED(lookup.tables = NULL, "tables is NULL");
  EXPECT_REFUSED(lookup.feature_tables = NULL, "feature_tables or combiners is NULL");
  EXPECT_REFUSED(lookup.combiners = NULL, "feature_tables or combiners is NULL");
  EXPECT_REFUSED(lookup.ids = NULL, "ids is NULL, but num_ids is 2");
  EXPECT_REFUSED(lookup.batch_size = INT64_MAX, "batch_size is 9223372036854775807: expected 0 to 2^31 - 1");
  EXPECT_REFUSED(lookup.num_ids = -1, "negative size: num_ids -1");
  EXPECT_REFUSED(lookup.num_tables = 0, "feature 0 names table 0, but there are 0 tables");
  EXPECT_REFUSED(lookup.id_type = 7, "id_type is 7");
  EXPECT_REFUSED(lookup.weighting = 2, "weighting is 2");
  EXPECT_REFUSED(lookup.combiners = (int32_t[]){9}, "feature 0 has combiner 9");
  EXPECT_REFUSED(lookup.feature_tables = (int32_t[]){-1}, "feature 0 names table -1");
  EXPECT_REFUSED(lookup.offsets = ((int64_t[]){0, 1, 3}), "offsets run from 0 to 3");
  EXPECT_REFUSED(lookup.offsets = ((int64_t[]){1, 1, 2}), "offsets run from 1 to 2");
  EXPECT_REFUSED(lookup.offsets = ((int64_t[]){0, INT64_MAX, 2}), "offsets of feature 0, sample 0 run from 0 to 9223");
  EXPECT_REFUSED((lookup.offsets = NULL, lookup.hotness = (int32_t[]){2}), "there are 2 ids");
  EXPECT_REFUSED((lookup.offsets = NULL, lookup.hotness = (int32_t[]){0}), "need 0");
  EXPECT_REFUSED((lookup.offsets = NULL, lookup.hotness = (int32_t[]){-1}), "feature 0 has hotness -1");
  EXPECT_REFUSED(table.rows = NULL, "table 0 has 3 rows, but its rows are NULL");
  EXPECT_REFUSED(table.num_rows = -1, "table 0 has shape [-1, 1]");
  EXPECT_REFUSED(table.dim = 0, "table 0 has shape [3, 0]");
  EXPECT_REFUSED(table.type = 4, "table 0 has row type 4");
  EXPECT_REFUSED(table.stride = 3, "table 0 has a stride of 3 bytes: expected 0 (packed) or at least the 4");
  EXPECT_REFUSED(table.out_of_range = 4, "table 0 has out_of_range 4");
  EXPECT_REFUSED((table.out_of_range = RH_OOV_ROW, table.oov_row = 3), "table 0 has oov_row 3");
  EXPECT_REFUSED(rows.data = NULL, "out of feature 0 is NULL");
  EXPECT_REFUSED(rows.stride = 0, "out of feature 0 has a stride of 0: expected at least its width, 1");

  rh_lookup lookup = good;
  lookup.tables = &narrow;
  rh_feature_rows rows = {out, 1};
  int64_t ids[2];
  EXPECT_INVALID(rh_pooled_lookup(&lookup, NULL, NULL, NULL), "out is NULL");
  EXPECT_INVALID(rh_gradient_capacity(&lookup, NULL), "capacity is NULL");
  EXPECT_INVALID(rh_gradient_capacity(NULL, ids), "lookup is NULL");
  EXPECT_INVALID(rh_pooled_lookup_gradient(NULL, &rows, NULL, NULL), "lookup is NULL");
  EXPECT_INVALID(rh_pooled_lookup_gradient(&lookup, &rows, NULL, NULL), "gradients is NULL");
  EXPECT_INVALID(rh_pooled_lookup_gradient(&lookup, NULL, &(rh_sparse_gradient){ids, out, 2, 0}, NULL), "grad is NULL");
  EXPECT_INVALID(rh_pooled_lookup_gradient(&lookup, &rows, &(rh_sparse_gradient){ids, NULL, 2, 0}, NULL),
                 "the gradient of table 0 has NULL ids or rows");
  EXPECT_INVALID(rh_pooled_lookup_weight_gradient(NULL, &rows, out, NULL), "lookup is NULL");
  return 0;
}

int main(void) {
  return test_combiners_and_weights() || test_width_5_int32_ids_and_empty_bags() ||
         test_policies_for_ids_out_of_range() || test_weight_gradient() || test_offsets_from_samples() ||
         test_empty_batches() || test_errors();
}

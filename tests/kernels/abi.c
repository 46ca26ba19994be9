/* The C interface as a C program sees it: compiles as C11, and keeps the conventions on top of kernels.h. */
#include <pthread.h>

#include "expect.h"

static int num_calls = 0;

/* Runs ranges of one unit each, last first: an order that no operation may depend on. */
static void backwards(void* context, int64_t total, int64_t cost, rh_range_body body, void* argument) {
  (void)cost;
  *(int*)context += 1;
  for (int64_t i = total; i-- > 0;) body(argument, i, i + 1);
}

static void* last_error_of_another_thread(void* result) {
  *(int*)result = strcmp(rh_last_error(), "") == 0;
  return NULL;
}

int main(void) {
  float rows[3][2] = {{1, 2}, {10, 20}, {100, 200}};
  rh_table table = {.rows = &rows[0][0], .num_rows = 3, .dim = 2};
  int32_t feature_tables[] = {0, 0};
  int32_t combiners[] = {RH_SUM, RH_MEAN};
  int64_t ids[] = {0, 2, 1, 1, 2};
  int64_t offsets[] = {0, 2, 2, 3, 5}; /* F = 2, B = 2; bag (0, 1) is empty */
  rh_lookup lookup = {.tables = &table,
                      .feature_tables = feature_tables,
                      .combiners = combiners,
                      .ids = ids,
                      .offsets = offsets,
                      .num_ids = 5,
                      .batch_size = 2,
                      .num_tables = 1,
                      .num_features = 2};
  rh_executor executor = {.parallel_for = backwards, .context = &num_calls};

  EXPECT(rh_abi_version() == RH_ABI_VERSION);
  EXPECT(rh_num_slots(RH_SGD) == 0 && rh_num_slots(RH_ADAM) == 2 && rh_num_slots(99) == -1);
  EXPECT(strcmp(rh_last_error(), "") == 0);

  float out[2][4];
  rh_feature_rows out_rows[2] = {{&out[0][0], 4}, {&out[0][2], 4}};
  const float expected[2][4] = {{101, 202, 10, 20}, {0, 0, 55, 110}};
  EXPECT(rh_pooled_lookup(&lookup, out_rows, NULL, &executor) == RH_OK);
  EXPECT(memcmp(out, expected, sizeof(out)) == 0);
  EXPECT(num_calls == 1);
  EXPECT(rh_pooled_lookup(&lookup, out_rows, NULL, NULL) == RH_OK);
  EXPECT(memcmp(out, expected, sizeof(out)) == 0);

  float grad[2][4] = {{1, 1, 2, 2}, {5, 5, 8, 8}};
  rh_feature_rows grad_rows[2] = {{&grad[0][0], 4}, {&grad[0][2], 4}};
  int64_t capacity = 0;
  EXPECT(rh_gradient_capacity(&lookup, &capacity) == RH_OK);
  EXPECT(capacity == 3);
  int64_t unique[3];
  float sums[3][2];
  rh_sparse_gradient gradient = {unique, &sums[0][0], capacity, 0};
  EXPECT(rh_pooled_lookup_gradient(&lookup, grad_rows, &gradient, &executor) == RH_OK);
  const float expected_sums[3][2] = {{1, 1}, {6, 6}, {5, 5}};
  EXPECT(gradient.num_rows == 3 && unique[0] == 0 && unique[1] == 1 && unique[2] == 2);
  EXPECT(memcmp(sums, expected_sums, sizeof(sums)) == 0);

  gradient.capacity = 2;
  EXPECT(rh_pooled_lookup_gradient(&lookup, grad_rows, &gradient, NULL) == RH_INVALID_ARGUMENT);
  EXPECT(strstr(rh_last_error(), "capacity 2: expected at least 3") != NULL);

  rh_optimizer optimizer = {.rule = RH_ADAGRAD, .learning_rate = 1};
  rh_update update = {.table = {.rows = &rows[0][0], .num_rows = 3, .dim = 2},
                      .optimizer = &optimizer,
                      .ids = unique,
                      .gradient = &sums[0][0],
                      .num_ids = 3};
  EXPECT(rh_apply(&update, 1, NULL) == RH_INVALID_ARGUMENT);
  EXPECT(strstr(rh_last_error(), "NULL slot 0") != NULL);
  optimizer.rule = RH_SGD;
  EXPECT(rh_apply(&update, 1, &executor) == RH_OK);
  EXPECT(rows[0][0] == 0 && rows[1][1] == 14 && rows[2][0] == 95);

  ids[3] = -1;
  EXPECT(rh_pooled_lookup(&lookup, out_rows, NULL, &executor) == RH_OUT_OF_RANGE);
  EXPECT(strstr(rh_last_error(), "id -1 of feature 1 (sample 1, position 0 in its bag)") != NULL);
  int is_empty = 0;
  pthread_t thread;
  EXPECT(pthread_create(&thread, NULL, last_error_of_another_thread, &is_empty) == 0);
  EXPECT(pthread_join(thread, NULL) == 0);
  EXPECT(is_empty);

  /* The sum of widths like this would overflow. */
  table.dim = INT64_MAX / 2;
  EXPECT(rh_gradient_capacity(&lookup, &capacity) == RH_INVALID_ARGUMENT);
  EXPECT(strstr(rh_last_error(), "a width of 1 to 2^31 - 1") != NULL);
  table.dim = 2;

  lookup.offsets = NULL;
  EXPECT(rh_pooled_lookup(&lookup, out_rows, NULL, NULL) == RH_INVALID_ARGUMENT);
  EXPECT(strstr(rh_last_error(), "offsets and hotness are both NULL") != NULL);
  EXPECT(rh_pooled_lookup(NULL, out_rows, NULL, NULL) == RH_INVALID_ARGUMENT);
  lookup.batch_size = -1;
  EXPECT(rh_pooled_lookup(&lookup, out_rows, NULL, NULL) == RH_INVALID_ARGUMENT);
  return 0;
}

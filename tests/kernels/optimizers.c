/* rankhouse/optimizers.h from C: one step of each rule by hand, the three kinds, and what is refused. */
#include <math.h>

#include "expect.h"

/* A step with the gradient 2 on a weight of 10. */
static const struct {
  rh_optimizer optimizer;
  float before[2]; /* slots */
  float after[2];
  float weight;
} kSteps[] = {
    {{.rule = RH_SGD, .learning_rate = 0.5f}, {0, 0}, {0, 0}, 9},
    {{.rule = RH_SGD, .learning_rate = 0.5f, .gradient_scale = 0.5f}, {0, 0}, {0, 0}, 9.5f},
    {{.rule = RH_MOMENTUM, .learning_rate = 0.5f, .momentum = 0.5f}, {4, 0}, {1, 0}, 11},
    {{.rule = RH_MOMENTUM, .learning_rate = 0.5f, .momentum = 0.5f, .nesterov = 1}, {4, 0}, {1, 0}, 9.5f},
    {{.rule = RH_ADAGRAD, .learning_rate = 0.5f}, {12, 0}, {16, 0}, 9.75f},
    {{.rule = RH_ADAGRAD, .learning_rate = 0.5f, .epsilon = 4}, {12, 0}, {16, 0}, 9.875f},
    {{.rule = RH_ADAGRAD, .learning_rate = 0.5f, .weight_decay = 0.5f}, {0, 0}, {49, 0}, 9.5f},
    {{.rule = RH_ADAGRAD, .learning_rate = 0.5f, .weight_decay = 0.5f, .decoupled = 1}, {0, 0}, {4, 0}, 7},
    {{.rule = RH_ROWWISE_ADAGRAD, .learning_rate = 0.5f}, {12, 0}, {16, 0}, 9.75f},
    /* The bias correction of step 1: sqrt(1 - 0.75) / (1 - 0.5) = 1. */
    {{.rule = RH_ADAM, .learning_rate = 1, .beta_1 = 0.5f, .beta_2 = 0.75f, .step = 1}, {4, 20}, {3, 16}, 9.25f},
    {{.rule = RH_FTRL, .learning_rate = 1, .learning_rate_power = -0.5f}, {0, 0}, {4, -18}, 9},
    {{.rule = RH_FTRL, .learning_rate = 1, .learning_rate_power = -0.5f, .l1 = 18}, {0, 0}, {4, -18}, 0},
    {{.rule = RH_FTRL, .learning_rate = 1, .learning_rate_power = -0.5f, .l2 = 2}, {0, 0}, {4, -18}, 3},
    {{.rule = RH_RMSPROP, .learning_rate = 0.5f, .rho = 0.75f}, {20, 0}, {16, 0}, 9.75f},
    {{.rule = RH_ADADELTA, .learning_rate = 0.5f, .rho = 0.75f}, {20, 64}, {16, 52}, 8},
    {{.rule = RH_ADAMAX, .learning_rate = 1, .beta_1 = 0.5f, .beta_2 = 0.5f, .step = 1}, {4, 8}, {3, 4}, 8.5f},
};

/* The second of two rows takes the step; the first is left alone. */
static int test_rules(int64_t dim) {
  for (size_t i = 0; i < sizeof(kSteps) / sizeof(kSteps[0]); ++i) {
    float weights[10], slots[2][10], gradient[5];
    for (int64_t d = 0; d < 2 * dim; ++d) {
      weights[d] = 10;
      for (int s = 0; s < 2; ++s) slots[s][d] = kSteps[i].before[s];
    }
    for (int64_t d = 0; d < dim; ++d) gradient[d] = 2;
    const int num_slots = rh_num_slots(kSteps[i].optimizer.rule);
    rh_update update = {.table = {.rows = weights, .num_rows = 2, .dim = dim},
                        .optimizer = &kSteps[i].optimizer,
                        .ids = (int64_t[]){1},
                        .gradient = gradient,
                        .num_ids = 1};
    for (int s = 0; s < num_slots; ++s) update.table.slots[s] = slots[s];
    EXPECT(rh_apply(&update, 1, NULL) == RH_OK);
    const int64_t slot_dim = kSteps[i].optimizer.rule == RH_ROWWISE_ADAGRAD ? 1 : dim;
    for (int64_t d = 0; d < dim; ++d) EXPECT(weights[d] == 10 && weights[dim + d] == kSteps[i].weight);
    for (int s = 0; s < num_slots; ++s) {
      for (int64_t d = 0; d < slot_dim; ++d) {
        EXPECT(slots[s][d] == kSteps[i].before[s] && slots[s][slot_dim + d] == kSteps[i].after[s]);
      }
    }
  }
  EXPECT(rh_num_slots(-1) == -1 && rh_num_slots(RH_ADAMAX + 1) == -1);
  return 0;
}

/* Rows of 16 bits hold all weights of kSteps exactly, so they take the same steps. */
static int test_narrow_rows(int32_t type, int64_t dim) {
  for (size_t i = 0; i < sizeof(kSteps) / sizeof(kSteps[0]); ++i) {
    rh_optimizer optimizer = kSteps[i].optimizer;
    optimizer.step = 1;
    float weights[10], slots[2][10], gradient[5];
    uint16_t rows[10];
    for (int64_t d = 0; d < 2 * dim; ++d) {
      weights[d] = 10;
      for (int s = 0; s < 2; ++s) slots[s][d] = kSteps[i].before[s];
    }
    for (int64_t d = 0; d < dim; ++d) gradient[d] = 2;
    EXPECT(rh_quantize_rows(weights, 2, dim, type, 0, rows, NULL) == RH_OK);
    rh_update update = {.table = {.rows = rows, .num_rows = 2, .dim = dim, .type = type},
                        .optimizer = &optimizer,
                        .ids = (int64_t[]){1},
                        .gradient = gradient,
                        .num_ids = 1};
    for (int s = 0; s < rh_num_slots(optimizer.rule); ++s) update.table.slots[s] = slots[s];
    EXPECT(rh_apply(&update, 1, NULL) == RH_OK);
    EXPECT(rh_dequantize_rows(rows, 2, dim, type, 0, weights, NULL) == RH_OK);
    for (int64_t d = 0; d < dim; ++d) EXPECT(weights[d] == 10 && weights[dim + d] == kSteps[i].weight);
  }
  return 0;
}

/* Momentum 0.5: row 0 has the gradient 8 in step 1, row 1 in step 2. */
static int test_kinds(void) {
  const int64_t row_0[] = {0}, row_1[] = {1};
  const float gradient[] = {8};
  for (int32_t kind = RH_LAZY; kind <= RH_EXACT; ++kind) {
    float weights[] = {10, 10}, slot[] = {0, 0};
    int32_t last_steps[] = {0, 0};
    rh_optimizer optimizer = {.rule = RH_MOMENTUM, .kind = kind, .learning_rate = 1, .momentum = 0.5f, .step = 1};
    rh_update update = {
        .table = {.rows = weights, .slots = {slot, NULL}, .last_steps = last_steps, .num_rows = 2, .dim = 1},
        .optimizer = &optimizer,
        .ids = row_0,
        .gradient = gradient,
        .num_ids = 1};
    EXPECT(rh_apply(&update, 1, NULL) == RH_OK);
    EXPECT(weights[0] == 2 && weights[1] == 10 && slot[0] == -8);
    update.ids = row_1;
    optimizer.step = 2;
    EXPECT(rh_apply(&update, 1, NULL) == RH_OK);
    EXPECT(weights[0] == (kind == RH_DENSE ? -2 : 2) && weights[1] == 2);
    update.ids = NULL;
    EXPECT(rh_catch_up(&update, 1, NULL) == RH_OK);
    EXPECT(weights[0] == (kind == RH_LAZY ? 2 : -2) && weights[1] == 2);
    EXPECT(slot[0] == (kind == RH_LAZY ? -8 : -4) && slot[1] == -8);
    if (kind != RH_EXACT) continue;
    EXPECT_ELEMENTS(int32_t, last_steps, 2, 2);
    update.ids = row_1;
    EXPECT_INVALID(rh_apply(&update, 1, NULL), "row 1 of table 0 is at step 2, and this is step 2");
    last_steps[0] = -1;
    update.ids = NULL;
    EXPECT_INVALID(rh_catch_up(&update, 1, NULL), "row 0 of table 0 is at step -1");
    update.table.last_steps = NULL;
    EXPECT_INVALID(rh_catch_up(&update, 1, NULL), "table 0 that is trained has NULL last_steps");
    EXPECT(weights[0] == -2 && weights[1] == 2);
  }
  return 0;
}

static int test_update_from_a_lookup(void) {
  float weights[] = {10, 20, 30}, slot[] = {0, 0, 0}, grad[] = {4, 3};
  rh_table table = {.num_rows = 3, .dim = 1, .out_of_range = RH_ZERO};
  const rh_lookup lookup = {.tables = &table,
                            .feature_tables = (int32_t[]){0},
                            .combiners = (int32_t[]){RH_MEAN},
                            .ids = (int64_t[]){2, -5, 0, 0},
                            .offsets = (int64_t[]){0, 2, 4},
                            .num_ids = 4,
                            .batch_size = 2,
                            .num_tables = 1,
                            .num_features = 1};
  const rh_feature_rows grads = {grad, 1};
  rh_optimizer optimizer = {.rule = RH_ADAGRAD, .learning_rate = 1};
  rh_trained_table trained = {.rows = weights, .slots = {slot, NULL}, .num_rows = 3, .dim = 1};
  EXPECT(rh_pooled_lookup_update(&lookup, &grads, &optimizer, &trained, NULL) == RH_OK);
  EXPECT_ELEMENTS(float, weights, 9, 20, 29);
  EXPECT_ELEMENTS(float, slot, 9, 0, 4);

  table.out_of_range = RH_ERROR;
  EXPECT_FAILS(rh_pooled_lookup_update(&lookup, &grads, &optimizer, &trained, NULL), RH_OUT_OF_RANGE,
               "id -5 of feature 0 (sample 0, position 1 in its bag)");
  EXPECT_INVALID(rh_pooled_lookup_update(NULL, &grads, &optimizer, &trained, NULL), "lookup is NULL");
  EXPECT_INVALID(rh_pooled_lookup_update(&lookup, NULL, &optimizer, &trained, NULL), "grad is NULL");
  EXPECT_INVALID(rh_pooled_lookup_update(&lookup, &grads, NULL, &trained, NULL), "optimizers or tables is NULL");
  EXPECT_INVALID(rh_pooled_lookup_update(&lookup, &grads, &optimizer, NULL, NULL), "optimizers or tables is NULL");
  trained.dim = 5;
  EXPECT_INVALID(rh_pooled_lookup_update(&lookup, &grads, &optimizer, &trained, NULL), "has shape [3, 5]");
  trained.dim = 1, trained.slots[0] = NULL;
  EXPECT_INVALID(rh_pooled_lookup_update(&lookup, &grads, &optimizer, &trained, NULL), "has a NULL slot 0");
  EXPECT_ELEMENTS(float, weights, 9, 20, 29);
  return 0;
}

static int test_squared_norm(void) {
  float values[] = {3, 4, 0, 0, 12};
  const rh_sparse_gradient gradients[] = {{.rows = values, .num_rows = 2}, {.rows = values, .num_rows = 1}, {0}};
  double norm = -1;
  EXPECT(rh_squared_norm(gradients, (int64_t[]){1, 5, 1}, 3, &norm, NULL) == RH_OK);
  EXPECT(norm == 25 + 169);
  EXPECT(rh_squared_norm(NULL, NULL, 0, &norm, NULL) == RH_OK && norm == 0);
  EXPECT_INVALID(rh_squared_norm(gradients, NULL, 3, &norm, NULL), "gradients or dims is NULL");
  EXPECT_INVALID(rh_squared_norm(NULL, (int64_t[]){1}, 1, &norm, NULL), "gradients or dims is NULL");
  EXPECT_INVALID(rh_squared_norm(gradients, (int64_t[]){1}, 1, NULL, NULL), "squared_norm is NULL");
  EXPECT_INVALID(rh_squared_norm(gradients, (int64_t[]){0}, 1, &norm, NULL),
                 "the gradient of table 0 has shape [2, 0]");
  EXPECT_INVALID(rh_squared_norm(gradients, (int64_t[]){1}, -1, &norm, NULL), "num_tables is -1");
  EXPECT_INVALID(rh_squared_norm(&(rh_sparse_gradient){.num_rows = 1}, (int64_t[]){1}, 1, &norm, NULL),
                 "the gradient of table 0 has NULL rows");
  return 0;
}

/* What a change makes of an update that is good without it; the rows stay as they are. */
#define EXPECT_REFUSED(change, status, text)                \
  do {                                                      \
    rh_optimizer optimizer = {.learning_rate = 1};          \
    rh_update update = good;                                \
    update.optimizer = &optimizer;                          \
    change;                                                 \
    EXPECT_FAILS(rh_apply(&update, 1, NULL), status, text); \
    EXPECT_ELEMENTS(float, weights, 10, 20);                \
  } while (0)

static int test_errors(void) {
  float weights[] = {10, 20};
  const rh_update good = {.table = {.rows = weights, .num_rows = 2, .dim = 1},
                          .ids = (int64_t[]){0, 1},
                          .gradient = (float[]){1, 1},
                          .num_ids = 2};
  EXPECT_REFUSED(update.ids = ((int64_t[]){0, 2}), RH_OUT_OF_RANGE, "id 2 at position 1 of the gradient is out of");
  EXPECT_REFUSED(update.ids = ((int64_t[]){INT64_MIN, 1}), RH_OUT_OF_RANGE, "id -9223372036854775808 at position 0");
  EXPECT_REFUSED(update.ids = ((int64_t[]){1, 1}), RH_INVALID_ARGUMENT, "must increase, but 1 at position 1 follows 1");
  EXPECT_REFUSED(update.ids = NULL, RH_INVALID_ARGUMENT, "NULL ids or gradient");
  EXPECT_REFUSED(update.gradient = NULL, RH_INVALID_ARGUMENT, "NULL ids or gradient");
  EXPECT_REFUSED(update.num_ids = -1, RH_INVALID_ARGUMENT, "the update of table 0 has -1 ids");
  EXPECT_REFUSED(update.optimizer = NULL, RH_INVALID_ARGUMENT, "NULL optimizer");
  EXPECT_REFUSED(update.table.rows = NULL, RH_INVALID_ARGUMENT, "NULL rows");
  EXPECT_REFUSED(update.table.dim = 0, RH_INVALID_ARGUMENT, "rows of shape [2, 0]");
  EXPECT_REFUSED(update.table.type = RH_INT8_ROWWISE, RH_INVALID_ARGUMENT,
                 "table 0 that is trained has rows of row-wise int8, which are looked up only");
  EXPECT_REFUSED(update.table.type = 4, RH_INVALID_ARGUMENT, "table 0 that is trained has row type 4");
  EXPECT_REFUSED(update.table.type = RH_BFLOAT16, RH_INVALID_ARGUMENT,
                 "has step 0: expected at least 1, because float16 and bfloat16 rows");
  EXPECT_REFUSED(optimizer.rule = RH_ADAM, RH_INVALID_ARGUMENT, "has step 0: expected at least 1");
  EXPECT_REFUSED((optimizer.rule = RH_ADAM, optimizer.step = 1), RH_INVALID_ARGUMENT, "NULL slot 0");
  EXPECT_REFUSED(optimizer.rule = 9, RH_INVALID_ARGUMENT, "has rule 9");
  EXPECT_REFUSED(optimizer.kind = RH_EXACT, RH_INVALID_ARGUMENT, "which only momentum and Adam have");
  EXPECT_REFUSED(optimizer.learning_rate = NAN, RH_INVALID_ARGUMENT, "has learning_rate nan");
  EXPECT_REFUSED(optimizer.epsilon = -1, RH_INVALID_ARGUMENT, "has epsilon -1");
  EXPECT_REFUSED(optimizer.gradient_scale = INFINITY, RH_INVALID_ARGUMENT, "has gradient_scale inf");
  EXPECT_REFUSED((optimizer.rule = RH_MOMENTUM, optimizer.momentum = 1), RH_INVALID_ARGUMENT, "has momentum 1");

  rh_update empty = {.table = {.dim = 5}, .optimizer = &(rh_optimizer){.rule = RH_ADAGRAD}};
  EXPECT(rh_apply(&empty, 1, NULL) == RH_OK && rh_catch_up(&empty, 1, NULL) == RH_OK);
  EXPECT(rh_apply(NULL, 0, NULL) == RH_OK && rh_catch_up(NULL, 0, NULL) == RH_OK);
  EXPECT_INVALID(rh_apply(NULL, 1, NULL), "updates is NULL");
  EXPECT_INVALID(rh_apply(&empty, -1, NULL), "num_tables is -1");
  EXPECT_INVALID(rh_catch_up(NULL, 1, NULL), "updates is NULL");
  EXPECT_INVALID(rh_catch_up(&empty, -1, NULL), "num_tables is -1");
  return 0;
}

int main(void) {
  return test_rules(1) || test_rules(5) || test_narrow_rows(RH_FLOAT16, 5) || test_narrow_rows(RH_BFLOAT16, 1) ||
         test_kinds() || test_update_from_a_lookup() || test_squared_norm() || test_errors();
}

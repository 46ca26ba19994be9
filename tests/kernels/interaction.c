/* rankhouse/interaction.h from C: products worked out by hand, and what is refused. */
#include "expect.h"

static int test_width(void) {
  rh_interaction interaction = {.batch_size = 2, .dim = 5, .num_embeddings = 3, .has_bottom = 1};
  EXPECT(rh_dot_interaction_width(&interaction) == 5 + 6);
  interaction.self_interaction = 1;
  EXPECT(rh_dot_interaction_width(&interaction) == 5 + 10);
  interaction.has_bottom = 0;
  EXPECT(rh_dot_interaction_width(&interaction) == 6);
  interaction.num_embeddings = 0;
  EXPECT(rh_dot_interaction_width(&interaction) == 0);
  interaction.num_embeddings = (1 << 15) + 1;
  EXPECT(rh_dot_interaction_width(&interaction) == -1);
  EXPECT(rh_dot_interaction_width(NULL) == -1);
  return 0;
}

static int test_width_1(void) {
  rh_interaction interaction = {.batch_size = 2, .dim = 1, .num_embeddings = 2, .has_bottom = 1};
  const float bottom[] = {2, 3};
  const float embeddings[] = {5, 7, 1, -1};
  float out[8];
  EXPECT(rh_dot_interaction(&interaction, bottom, embeddings, out, NULL) == RH_OK);
  EXPECT_ELEMENTS(float, out, 2, 10, 14, 35, 3, 3, -3, -1);

  const float grad[] = {1, 10, 100, 1000, 0, 0, 0, 1};
  float bottom_grad[2], embeddings_grad[4];
  EXPECT(rh_dot_interaction_gradient(&interaction, bottom, embeddings, grad, bottom_grad, embeddings_grad, NULL) ==
         RH_OK);
  EXPECT_ELEMENTS(float, bottom_grad, 1 + 10 * 5 + 100 * 7, 0);
  EXPECT_ELEMENTS(float, embeddings_grad, 10 * 2 + 1000 * 7, 100 * 2 + 1000 * 5, -1, 1);
  return 0;
}

static int test_width_5_without_bottom(void) {
  rh_interaction interaction = {.batch_size = 1, .dim = 5, .num_embeddings = 3};
  const float embeddings[] = {1, 2, 3, 4, 5, 1, 1, 1, 1, 1, 5, 4, 3, 2, 1};
  float out[3];
  EXPECT(rh_dot_interaction(&interaction, NULL, embeddings, out, NULL) == RH_OK);
  EXPECT_ELEMENTS(float, out, 15, 35, 15);

  const float grad[] = {1, 0, 2};
  float embeddings_grad[15];
  EXPECT(rh_dot_interaction_gradient(&interaction, NULL, embeddings, grad, NULL, embeddings_grad, NULL) == RH_OK);
  EXPECT_ELEMENTS(float, embeddings_grad, 1, 1, 1, 1, 1, 11, 10, 9, 8, 7, 2, 2, 2, 2, 2);
  return 0;
}

static int test_vectors_with_themselves(void) {
  rh_interaction interaction = {.batch_size = 1, .dim = 1, .num_embeddings = 2, .has_bottom = 1, .self_interaction = 1};
  const float bottom[] = {2}, embeddings[] = {5, 7};
  float out[7];
  EXPECT(rh_dot_interaction(&interaction, bottom, embeddings, out, NULL) == RH_OK);
  EXPECT_ELEMENTS(float, out, 2, 4, 10, 25, 14, 35, 49);

  const float grad[] = {0, 3, 0, 1, 0, 0, -1};
  float bottom_grad[1], embeddings_grad[2];
  EXPECT(rh_dot_interaction_gradient(&interaction, bottom, embeddings, grad, bottom_grad, embeddings_grad, NULL) ==
         RH_OK);
  EXPECT_ELEMENTS(float, bottom_grad, 2 * 3 * 2);
  EXPECT_ELEMENTS(float, embeddings_grad, 2 * 5, -2 * 7);
  return 0;
}

static int test_nothing_to_do(void) {
  rh_interaction interaction = {.dim = 5, .num_embeddings = 3, .has_bottom = 1};
  EXPECT(rh_dot_interaction(&interaction, NULL, NULL, NULL, NULL) == RH_OK);
  EXPECT(rh_dot_interaction_gradient(&interaction, NULL, NULL, NULL, NULL, NULL, NULL) == RH_OK);
  interaction = (rh_interaction){.batch_size = 4, .dim = 5};
  EXPECT(rh_dot_interaction(&interaction, NULL, NULL, NULL, NULL) == RH_OK);
  interaction = (rh_interaction){.batch_size = 1, .dim = 1, .has_bottom = 1};
  const float bottom[] = {3};
  float out[1];
  EXPECT(rh_dot_interaction(&interaction, bottom, NULL, out, NULL) == RH_OK);
  EXPECT_ELEMENTS(float, out, 3);
  return 0;
}

static int test_errors(void) {
  const rh_interaction good = {.batch_size = 1, .dim = 1, .num_embeddings = 1, .has_bottom = 1};
  const struct {
    rh_interaction interaction;
    const char* expected;
  } wrong[] = {{{.batch_size = -1, .dim = 1}, "a batch size of 0 to 2^31 - 1"},
               {{.batch_size = INT64_MAX, .dim = 1}, "a batch size of 0 to 2^31 - 1"},
               {{.batch_size = 1}, "a dim of 1 to 2^31 - 1"},
               {{.batch_size = 1, .dim = INT64_MAX}, "a dim of 1 to 2^31 - 1"},
               {{.batch_size = 1, .dim = 1, .num_embeddings = -1}, "0 to 2^15 embeddings"},
               {{.batch_size = 1, .dim = 1, .has_bottom = 2}, "has_bottom 0 or 1"},
               {{.batch_size = 1, .dim = 1, .self_interaction = -1}, "self_interaction 0 or 1"}};
  float one[1] = {1}, out[2];
  for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); ++i) {
    EXPECT_INVALID(rh_dot_interaction(&wrong[i].interaction, one, one, out, NULL), wrong[i].expected);
    EXPECT_INVALID(rh_dot_interaction_gradient(&wrong[i].interaction, one, one, out, one, one, NULL),
                   wrong[i].expected);
    EXPECT(rh_dot_interaction_width(&wrong[i].interaction) == -1);
  }
  EXPECT_INVALID(rh_dot_interaction(NULL, one, one, out, NULL), "interaction is NULL");
  EXPECT_INVALID(rh_dot_interaction(&good, NULL, one, out, NULL), "bottom or its gradient is NULL");
  EXPECT_INVALID(rh_dot_interaction(&good, one, NULL, out, NULL), "embeddings or their gradient is NULL");
  EXPECT_INVALID(rh_dot_interaction(&good, one, one, NULL, NULL), "out or its gradient is NULL");
  EXPECT_INVALID(rh_dot_interaction_gradient(NULL, one, one, out, one, one, NULL), "interaction is NULL");
  EXPECT_INVALID(rh_dot_interaction_gradient(&good, one, one, NULL, one, one, NULL), "out or its gradient is NULL");
  EXPECT_INVALID(rh_dot_interaction_gradient(&good, one, one, out, NULL, one, NULL), "bottom or its gradient is NULL");
  EXPECT_INVALID(rh_dot_interaction_gradient(&good, one, one, out, one, NULL, NULL),
                 "embeddings or their gradient is NULL");
  return 0;
}

int main(void) {
  return test_width() || test_width_1() || test_width_5_without_bottom() || test_vectors_with_themselves() ||
         test_nothing_to_do() || test_errors();
}

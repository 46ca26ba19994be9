// Optimizers on the rows that a batch touched. Include rankhouse/kernels.h.
#ifndef RANKHOUSE_OPTIMIZERS_H_
#define RANKHOUSE_OPTIMIZERS_H_

#include "rankhouse/kernels.h"
#include "rankhouse/lookup.h"

#ifdef __cplusplus
extern "C" {
#endif

// In the formulas w is a row, g its gradient (see rh_optimizer for what happens to it before), lr the learning rate,
// t the number of the step, a and b the first and second slot. All work element by element unless said otherwise, and
// on touched rows only; RH_MOMENTUM and RH_ADAM come in three kinds (rh_update_kind).
typedef enum rh_optimizer_rule {
  RH_SGD = 0,              // w -= lr g
  RH_MOMENTUM = 1,         // a = momentum a - lr g; w += a, or with nesterov w += momentum a - lr g
  RH_ADAGRAD = 2,          // a += g^2; w -= lr g / (sqrt(a) + epsilon)
  RH_ROWWISE_ADAGRAD = 3,  // one number a per row: a += mean(g^2); w -= lr g / (sqrt(a) + epsilon)
  RH_ADAM = 4,             // a = beta_1 a + (1 - beta_1) g; b = beta_2 b + (1 - beta_2) g^2;
                           // w -= lr sqrt(1 - beta_2^t) / (1 - beta_1^t) a / (sqrt(b) + epsilon)
  RH_FTRL = 5,             // McMahan et al. 2013 as TensorFlow's ApplyFtrlV2 has it: a accumulator, b linear; l1, l2,
                           // l2_shrinkage, learning_rate_power, beta
  RH_RMSPROP = 6,          // a = rho a + (1 - rho) g^2; w -= lr g / (sqrt(a) + epsilon)
  RH_ADADELTA = 7,         // a = rho a + (1 - rho) g^2; u = sqrt(b + epsilon) / sqrt(a + epsilon) g;
                           // b = rho b + (1 - rho) u^2; w -= lr u
  RH_ADAMAX = 8  // a = beta_1 a + (1 - beta_1) g; b = max(beta_2 b, |g|); w -= lr / (1 - beta_1^t) a / (b + epsilon)
} rh_optimizer_rule;

// What happens to the rows that a step did not touch, whose momentum would move them on.
typedef enum rh_update_kind {
  RH_LAZY = 0,   // nothing
  RH_DENSE = 1,  // they are moved in every step, as the dense definition says: costs the whole table
  RH_EXACT = 2   // the same result to rounding at the cost of touched rows: they are moved when they are next touched.
                 // Needs last_steps, and rh_catch_up before rows are read.
} rh_update_kind;

typedef struct rh_optimizer {
  int32_t rule;         // an rh_optimizer_rule
  int32_t kind;         // an rh_update_kind; RH_MOMENTUM and RH_ADAM only
  int32_t nesterov;     // RH_MOMENTUM: 1 or 0
  int32_t decoupled;    // weight_decay: 0: g += weight_decay * w (L2); 1: w -= lr * weight_decay * w before the step
  float learning_rate;  // of this step
  float epsilon;
  float momentum;
  float beta_1;
  float beta_2;
  float rho;
  float l1;
  float l2;
  float l2_shrinkage;
  float learning_rate_power;
  float beta;
  float weight_decay;    // on touched rows
  float gradient_scale;  // g is the gradient times this (before weight decay); 0 means 1. For clipping by global norm
  int64_t step;          // t, 1 for the first; RH_ADAM, RH_ADAMAX, RH_EXACT, and all rules on rows that are not float32
  // RH_ADAM with RH_EXACT: the learning rate of step s at [s - 1], for all s < step; NULL: always learning_rate. In
  // host memory; for *_cuda in device memory.
  const float* learning_rates;
} rh_optimizer;

// A table that is trained. Which slots are needed, the optimizer says: rh_num_slots.
//
// Rows of RH_FLOAT16 and RH_BFLOAT16 are widened to float32, make the same step as float32 rows, and are rounded back
// stochastically: a value between two neighbours goes to the upper one with the probability of its distance from the
// lower one, so that moves far smaller than a row's own steps add up, on average, to what they sum to. Values that are
// exact stay, also infinities; a NaN stays one; beyond the largest finite number values round to the nearest. The
// random bits are a hash of the new float32 value and the step's number, so the step must count on in every step
// (else the same value is always rounded to the same side), and no seed, row, thread or device changes a bit. Kinds:
// RH_DENSE rounds all rows in every step; RH_EXACT makes what a row has missed in float32 and rounds once, with the
// number of the last step that it makes up for, so it differs from RH_DENSE by the roundings, which are unbiased.
typedef struct rh_trained_table {
  void* rows;           // [R, D] of `type`, packed
  float* slots[2];      // [R, D] each; [R] for RH_ROWWISE_ADAGRAD
  int32_t* last_steps;  // [R] RH_EXACT: the step up to which each row is moved, 0 at first
  int64_t num_rows;     // R
  int64_t dim;          // D
  int32_t type;         // an rh_row_type: RH_FLOAT32, RH_FLOAT16 or RH_BFLOAT16
} rh_trained_table;

// Returns how many slots a rule has, 0 to 2; or -1 for an unknown rule.
RH_API int rh_num_slots(int32_t rule);

// One table's update from a sparse gradient.
typedef struct rh_update {
  rh_trained_table table;
  const rh_optimizer* optimizer;  // host
  const int64_t* ids;             // [num_ids] strictly increasing
  const float* gradient;          // [num_ids, D]
  // *_cuda only, or NULL: the number of ids, on the device; num_ids is then the most it can be.
  const int64_t* device_num_ids;
  int64_t num_ids;
} rh_update;

// Makes one step of each table. Bytes for each row touched: D * 4 of gradient read, and the row and D * 4 of each slot
// read and written.
RH_API int rh_apply(const rh_update* updates, int32_t num_tables, const rh_executor* executor);

// rh_pooled_lookup_gradient and rh_apply in one pass, with the same bits, without writing the gradient's rows.
// grad [F]; optimizers [T] and tables [T], whose shapes are those of the lookup's tables. Nothing is changed where a
// bag or an id is bad.
RH_API int rh_pooled_lookup_update(const rh_lookup* lookup, const rh_feature_rows* grad, const rh_optimizer* optimizers,
                                   const rh_trained_table* tables, const rh_executor* executor);

// RH_EXACT: moves the rows `ids` (NULL: all rows; num_ids is then ignored) to where the dense definition has them after
// step optimizer->step, as if no step since their last had touched them. Before the lookup of step t call it with step
// t - 1, before a table is read whole (evaluation, checkpoint, export) with the last step. gradient is not read. Does
// nothing for other kinds.
RH_API int rh_catch_up(const rh_update* updates, int32_t num_tables, const rh_executor* executor);

// The sum of the squares of all gradients' elements: its root is their global norm. In float64, in one fixed order.
// With tables spread over ranks each rank adds up what it owns, and the ranks' sums are added; what every rank holds is
// counted once.
RH_API int rh_squared_norm(const rh_sparse_gradient* gradients, const int64_t* dims, int32_t num_tables,
                           double* squared_norm, const rh_executor* executor);

// On a GPU. squared_norm: device memory; its gradients' numbers of rows are num_rows [T] in device memory, capacity
// bounds them.
RH_API int rh_apply_workspace_cuda(int32_t num_tables, int64_t* bytes);
RH_API int rh_apply_cuda(const rh_update* updates, int32_t num_tables, void* workspace, int64_t workspace_bytes,
                         void* stream);
RH_API int rh_catch_up_cuda(const rh_update* updates, int32_t num_tables, void* workspace, int64_t workspace_bytes,
                            void* stream);
RH_API int rh_pooled_lookup_update_workspace_cuda(const rh_lookup* lookup, int64_t* bytes);
RH_API int rh_pooled_lookup_update_cuda(const rh_lookup* lookup, const rh_feature_rows* grad,
                                        const rh_optimizer* optimizers, const rh_trained_table* tables, void* workspace,
                                        int64_t workspace_bytes, void* stream);
RH_API int rh_squared_norm_workspace_cuda(int32_t num_tables, int64_t* bytes);
RH_API int rh_squared_norm_cuda(const rh_sparse_gradient* gradients, const int64_t* dims, const int64_t* num_rows,
                                int32_t num_tables, double* squared_norm, void* workspace, int64_t workspace_bytes,
                                void* stream);

// Waits for the stream and returns what the apply or catch-up call with this workspace found wrong.
RH_API int rh_apply_check_cuda(const rh_update* updates, int32_t num_tables, const void* workspace, void* stream);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RANKHOUSE_OPTIMIZERS_H_

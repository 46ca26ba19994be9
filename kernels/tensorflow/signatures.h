// Parts of signatures that several ops share. Attributes are called as the fields that they fill.
#ifndef RANKHOUSE_TENSORFLOW_SIGNATURES_H_
#define RANKHOUSE_TENSORFLOW_SIGNATURES_H_

// What LookupAttributes reads: the inputs of the batch, then what they are looked up in.
#define RANKHOUSE_BATCH                       \
  Input("ids: id_type")                       \
      .Input("offsets: num_offsets * int64")  \
      .Input("weights: num_weights * float")  \
      .Attr("id_type: {int32, int64}")        \
      .Attr("num_tables: int >= 0")           \
      .Attr("num_offsets: int >= 0")          \
      .Attr("num_weights: int >= 0")          \
      .Attr("table_rows: list(int) >= 0")     \
      .Attr("table_dims: list(int) >= 0")     \
      .Attr("table_types: list(int) >= 0")    \
      .Attr("out_of_range: list(int) >= 0")   \
      .Attr("oov_rows: list(int) >= 0")       \
      .Attr("feature_tables: list(int) >= 0") \
      .Attr("combiners: list(int) >= 0")      \
      .Attr("hotness: list(int) >= 0")        \
      .Attr("weighting: int")

// What OptimizerAttributes reads: of the settings those that do not change, and of a step its inputs.
#define RANKHOUSE_OPTIMIZER                     \
  Attr("rule: int")                             \
      .Attr("kind: int = 0")                    \
      .Attr("nesterov: int = 0")                \
      .Attr("decoupled: int = 0")               \
      .Attr("epsilon: float = 0.0")             \
      .Attr("momentum: float = 0.0")            \
      .Attr("beta_1: float = 0.0")              \
      .Attr("beta_2: float = 0.0")              \
      .Attr("rho: float = 0.0")                 \
      .Attr("l1: float = 0.0")                  \
      .Attr("l2: float = 0.0")                  \
      .Attr("l2_shrinkage: float = 0.0")        \
      .Attr("learning_rate_power: float = 0.0") \
      .Attr("beta: float = 0.0")                \
      .Attr("weight_decay: float = 0.0")

#define RANKHOUSE_STEP \
  Input("learning_rate: float").Input("step: int64").Input("gradient_scale: float").Input("learning_rates: float")

#endif  // RANKHOUSE_TENSORFLOW_SIGNATURES_H_

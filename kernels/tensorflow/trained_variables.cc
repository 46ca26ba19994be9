#include "tensorflow/trained_variables.h"

#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

tf::Status CheckSlot(tf::Var* variable, const tf::TensorShape& expected, tf::DataType type) {
  if (variable->is_initialized && variable->tensor()->shape() == expected && variable->tensor()->dtype() == type) {
    return tf::OkStatus();
  }
  return tf::errors::InvalidArgument("slot of ", variable->DebugString(), ": expected an initialized one of shape ",
                                     expected.DebugString(), " with ", tf::DataTypeString(type));
}

// The rh_row_type of what a variable that is trained may hold.
tf::Status FindRowType(tf::Var* variable, int32_t* type) {
  switch (variable->tensor()->dtype()) {
    case tf::DT_FLOAT:
      *type = RH_FLOAT32;
      return tf::OkStatus();
    case tf::DT_HALF:
      *type = RH_FLOAT16;
      return tf::OkStatus();
    case tf::DT_BFLOAT16:
      *type = RH_BFLOAT16;
      return tf::OkStatus();
    default:
      return tf::errors::InvalidArgument("variable of ", variable->DebugString(),
                                         ": expected float32, float16 or bfloat16, which are what is trained");
  }
}

}  // namespace

OptimizerAttributes::OptimizerAttributes(tf::OpKernelConstruction* construction) {
  const std::pair<const char*, int32_t*> integers[] = {{"rule", &settings_.rule},
                                                       {"kind", &settings_.kind},
                                                       {"nesterov", &settings_.nesterov},
                                                       {"decoupled", &settings_.decoupled}};
  for (const auto& [name, field] : integers) OP_REQUIRES_OK(construction, construction->GetAttr(name, field));
  const std::pair<const char*, float*> numbers[] = {{"epsilon", &settings_.epsilon},
                                                    {"momentum", &settings_.momentum},
                                                    {"beta_1", &settings_.beta_1},
                                                    {"beta_2", &settings_.beta_2},
                                                    {"rho", &settings_.rho},
                                                    {"l1", &settings_.l1},
                                                    {"l2", &settings_.l2},
                                                    {"l2_shrinkage", &settings_.l2_shrinkage},
                                                    {"learning_rate_power", &settings_.learning_rate_power},
                                                    {"beta", &settings_.beta},
                                                    {"weight_decay", &settings_.weight_decay}};
  for (const auto& [name, field] : numbers) OP_REQUIRES_OK(construction, construction->GetAttr(name, field));
  OP_REQUIRES(construction, rh_num_slots(settings_.rule) >= 0,
              tf::errors::InvalidArgument("rule is ", settings_.rule, ": expected an rh_optimizer_rule"));
}

tf::Status OptimizerAttributes::MakeOptimizer(tf::OpKernelContext* context, int first, rh_optimizer* optimizer) const {
  for (int scalar = first; scalar < first + 3; ++scalar) {
    if (context->input(scalar).NumElements() == 1) continue;
    return tf::errors::InvalidArgument("learning_rate, step and gradient_scale must have the shape [], but one has ",
                                       context->input(scalar).shape().DebugString());
  }
  *optimizer = settings_;
  optimizer->learning_rate = context->input(first).flat<float>()(0);
  optimizer->step = context->input(first + 1).flat<int64_t>()(0);
  optimizer->gradient_scale = context->input(first + 2).flat<float>()(0);
  if (optimizer->gradient_scale == 0.0f) {
    return tf::errors::InvalidArgument(
        "gradient_scale is 0: expected another number; is the norm of the gradients infinite?");
  }
  const tf::Tensor& learning_rates = context->input(first + 3);
  if (learning_rates.NumElements() == 0) return tf::OkStatus();
  optimizer->learning_rates = learning_rates.flat<float>().data();
  if (learning_rates.NumElements() >= optimizer->step - 1) return tf::OkStatus();
  return tf::errors::InvalidArgument("learning_rates has ", learning_rates.NumElements(), " elements: step ",
                                     optimizer->step, " needs those of all steps before");
}

int OptimizerAttributes::num_variables() const {
  return 1 + rh_num_slots(settings_.rule) + (settings_.kind == RH_EXACT ? 1 : 0);
}

tf::Status OptimizerAttributes::MakeTable(const VariablePointer* variables, rh_trained_table* table) const {
  tf::Tensor* const rows = variables[0]->tensor();
  *table = {};
  if (rows->dims() == 2) {
    table->num_rows = rows->dim_size(0);
    table->dim = rows->dim_size(1);
  }
  TF_RETURN_IF_ERROR(FindRowType(variables[0].get(), &table->type));
  TF_RETURN_IF_ERROR(CheckVariable(variables[0].get(), table->num_rows, table->dim, rows->dtype()));
  table->rows = rows->data();
  const tf::TensorShape one_per_row({table->num_rows});
  const int num_slots = rh_num_slots(settings_.rule);
  for (int s = 0; s < num_slots; ++s) {
    tf::Var* const slot = variables[1 + s].get();
    TF_RETURN_IF_ERROR(
        CheckSlot(slot, settings_.rule == RH_ROWWISE_ADAGRAD ? one_per_row : rows->shape(), tf::DT_FLOAT));
    table->slots[s] = slot->tensor()->flat<float>().data();
  }
  if (settings_.kind != RH_EXACT) return tf::OkStatus();
  tf::Var* const last_steps = variables[1 + num_slots].get();
  TF_RETURN_IF_ERROR(CheckSlot(last_steps, one_per_row, tf::DT_INT32));
  table->last_steps = last_steps->tensor()->flat<int32_t>().data();
  return tf::OkStatus();
}

}  // namespace rankhouse

// Optimizers on the rows of TensorFlow variables, in place.
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/trained_variables.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

// What both ops do: they find and lock the variables of one table, which are the first inputs, and make an rh_update of
// them. Then Finish says which rows, and calls the library.
class UpdateOp : public tf::OpKernel {
 public:
  explicit UpdateOp(tf::OpKernelConstruction* construction) : OpKernel(construction), attributes_(construction) {
    if (!construction->status().ok()) return;
    int num_variables = 0;
    OP_REQUIRES_OK(construction, construction->GetAttr("num_variables", &num_variables));
    OP_REQUIRES(construction, num_variables == attributes_.num_variables(),
                tf::errors::InvalidArgument("there are ", num_variables, " variables: this optimizer needs ",
                                            attributes_.num_variables(), " (the table, its slots, its last steps)"));
  }

  void Compute(tf::OpKernelContext* context) override {
    std::vector<VariablePointer> variables(attributes_.num_variables());
    for (size_t v = 0; v < variables.size(); ++v) {
      OP_REQUIRES_OK(context, FindVariable(context, static_cast<int>(v), &variables[v]));
    }
    rh_optimizer optimizer;
    OP_REQUIRES_OK(context, attributes_.MakeOptimizer(context, context->num_inputs() - 4, &optimizer));
    std::vector<tf::mutex_lock> locks;
    OP_REQUIRES_OK(context, LockForWriting(variables, &locks));
    rh_update update = {};
    update.optimizer = &optimizer;
    OP_REQUIRES_OK(context, attributes_.MakeTable(variables.data(), &update.table));
    OP_REQUIRES_OK(context, Finish(context, static_cast<int>(variables.size()), &update));
  }

 protected:
  // The op's own inputs begin at number `first`.
  virtual tf::Status Finish(tf::OpKernelContext* context, int first, rh_update* update) = 0;

 private:
  const OptimizerAttributes attributes_;
};

class ApplyOp : public UpdateOp {
 public:
  using UpdateOp::UpdateOp;

 protected:
  tf::Status Finish(tf::OpKernelContext* context, int first, rh_update* update) override {
    const tf::Tensor& ids = context->input(first);
    const tf::Tensor& gradient = context->input(first + 1);
    const int64_t dim = update->table.dim;
    if (ids.dims() != 1 || gradient.shape() != tf::TensorShape({ids.NumElements(), dim})) {
      return tf::errors::InvalidArgument("gradient has ids of shape ", ids.shape().DebugString(), " and rows of shape ",
                                         gradient.shape().DebugString(), ": expected [U] and [U, ", dim, "]");
    }
    update->ids = ids.flat<int64_t>().data();
    update->num_ids = ids.NumElements();
    update->gradient = gradient.flat<float>().data();
    const Executor executor(context);
    return ToStatus(rh_apply(update, 1, executor.get()));
  }
};

class CatchUpOp : public UpdateOp {
 public:
  using UpdateOp::UpdateOp;

 protected:
  tf::Status Finish(tf::OpKernelContext* context, int first, rh_update* update) override {
    const Executor executor(context);
    std::vector<int64_t> rows;
    if (context->num_inputs() > first + 4) {
      const std::vector<int64_t> behind = RowsBehind(context->input(first), *update);
      if (behind.empty()) return tf::OkStatus();
      const int64_t num_behind = static_cast<int64_t>(behind.size());
      rows.resize(behind.size());
      TF_RETURN_IF_ERROR(ToStatus(
          rh_unique(behind.data(), num_behind, rows.data(), nullptr, nullptr, &update->num_ids, executor.get())));
      update->ids = rows.data();
    }
    return ToStatus(rh_catch_up(update, 1, executor.get()));
  }

 private:
  // Of the ids, those that are rows and not at the step yet. Many rows of a batch were touched by the last one, and
  // are.
  static std::vector<int64_t> RowsBehind(const tf::Tensor& ids, const rh_update& update) {
    const rh_trained_table& table = update.table;
    std::vector<int64_t> rows;
    if (table.last_steps == nullptr) return rows;
    const auto values = ids.flat<int64_t>();
    for (int64_t n = 0; n < values.size(); ++n) {
      const int64_t id = values(n);
      if (id >= 0 && id < table.num_rows && table.last_steps[id] < update.optimizer->step) rows.push_back(id);
    }
    return rows;
  }
};

REGISTER_KERNEL_BUILDER(Name("RankhouseApply").Device(tf::DEVICE_CPU), ApplyOp);
REGISTER_KERNEL_BUILDER(Name("RankhouseCatchUp").Device(tf::DEVICE_CPU), CatchUpOp);

}  // namespace
}  // namespace rankhouse

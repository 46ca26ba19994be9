// Pooled lookup over TensorFlow variables.
#include <algorithm>
#include <functional>

#include "tensorflow/bridge.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

class PooledLookupOp : public tf::OpKernel {
 public:
  explicit PooledLookupOp(tf::OpKernelConstruction* construction) : OpKernel(construction), attributes_(construction) {}

  void Compute(tf::OpKernelContext* context) override {
    const int num_tables = static_cast<int>(attributes_.table_rows.size());
    std::vector<tf::core::RefCountPtr<tf::Var>> variables(num_tables);
    for (int t = 0; t < num_tables; ++t) OP_REQUIRES_OK(context, FindVariable(context, t, &variables[t]));

    // Rows are read under the variables' shared locks, taken in the order of addresses (TensorFlow's rule), each once.
    std::vector<tf::mutex*> mutexes;
    for (const auto& variable : variables) mutexes.push_back(variable->mu());
    std::sort(mutexes.begin(), mutexes.end(), std::less<>());
    mutexes.erase(std::unique(mutexes.begin(), mutexes.end()), mutexes.end());
    std::vector<tf::tf_shared_lock> locks;
    locks.reserve(mutexes.size());
    for (tf::mutex* mutex : mutexes) locks.emplace_back(*mutex);

    std::vector<rh_table> tables = attributes_.Shapes();
    for (int t = 0; t < num_tables; ++t) {
      OP_REQUIRES_OK(context, CheckVariable(variables[t].get(), tables[t].num_rows, tables[t].dim));
      tables[t].rows = variables[t]->tensor()->flat<float>().data();
    }
    rh_lookup lookup;
    OP_REQUIRES_OK(context,
                   attributes_.MakeLookup(tables, context->input(num_tables), context->input(num_tables + 1), &lookup));
    tf::Tensor* pooled = nullptr;
    OP_REQUIRES_OK(context,
                   context->allocate_output(0, tf::TensorShape({lookup.batch_size, attributes_.width()}), &pooled));
    const rh_executor executor = ExecutorOf(context);
    const std::vector<rh_feature_rows> out = attributes_.FeatureRows(pooled->flat<float>().data());
    OP_REQUIRES_OK(context, ToStatus(rh_pooled_lookup(&lookup, out.data(), nullptr, &executor)));
  }

 private:
  const LookupAttributes attributes_;
};

REGISTER_KERNEL_BUILDER(Name("RankhousePooledLookup").Device(tf::DEVICE_CPU), PooledLookupOp);

}  // namespace
}  // namespace rankhouse

#include "tensorflow/bridge.h"

#include <algorithm>
#include <numeric>

#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/kernels/training_op_helpers.h"
#include "tensorflow/core/lib/core/threadpool.h"
#include "tensorflow/core/platform/errors.h"

namespace rankhouse {

namespace tf = tensorflow;

tf::Status ToStatus(int status) {
  switch (status) {
    case RH_OK:
      return tf::OkStatus();
    case RH_INVALID_ARGUMENT:
    case RH_OUT_OF_RANGE:
      return tf::errors::InvalidArgument(rh_last_error());
    case RH_OUT_OF_MEMORY:
      return tf::errors::ResourceExhausted(rh_last_error());
    case RH_UNSUPPORTED:
      return tf::errors::Unimplemented(rh_last_error());
    default:
      return tf::errors::Internal(rh_last_error());
  }
}

rh_executor ExecutorOf(tf::OpKernelContext* context) {
  const auto parallel_for = [](void* workers, int64_t total, int64_t cost, rh_range_body body, void* argument) {
    static_cast<tf::thread::ThreadPool*>(workers)->ParallelFor(
        total, cost, [body, argument](int64_t begin, int64_t end) { body(argument, begin, end); });
  };
  const tf::DeviceBase::CpuWorkerThreads* threads = context->device()->tensorflow_cpu_worker_threads();
  return {parallel_for, threads->workers, threads->num_threads};
}

LookupAttributes::LookupAttributes(tf::OpKernelConstruction* construction) {
  OP_REQUIRES_OK(construction, construction->GetAttr("table_rows", &table_rows));
  OP_REQUIRES_OK(construction, construction->GetAttr("table_dims", &table_dims));
  OP_REQUIRES_OK(construction, construction->GetAttr("feature_tables", &feature_tables));
  OP_REQUIRES_OK(construction, construction->GetAttr("combiners", &combiners));
  int num_tables = 0;
  OP_REQUIRES_OK(construction, construction->GetAttr("num_tables", &num_tables));
  OP_REQUIRES(construction,
              table_rows.size() == static_cast<size_t>(num_tables) && table_dims.size() == table_rows.size(),
              tf::errors::InvalidArgument(num_tables, " tables have ", table_rows.size(), " table_rows and ",
                                          table_dims.size(), " table_dims: expected one each"));
  OP_REQUIRES(construction, feature_tables.size() == combiners.size(),
              tf::errors::InvalidArgument("feature_tables and combiners have different lengths"));
  for (const int32_t table : feature_tables) {
    OP_REQUIRES(
        construction, 0 <= table && table < static_cast<int32_t>(table_rows.size()),
        tf::errors::InvalidArgument("feature_tables names table ", table, ", but there are ", table_rows.size()));
  }
}

tf::Status LookupAttributes::MakeLookup(const std::vector<rh_table>& tables, const tf::Tensor& ids,
                                        const tf::Tensor& offsets, rh_lookup* lookup) const {
  if (ids.dims() != 1 || offsets.dims() != 1 || offsets.NumElements() == 0) {
    return tf::errors::InvalidArgument("ids of shape ", ids.shape().DebugString(), " and offsets of shape ",
                                       offsets.shape().DebugString(), ": expected [N] and [F * B + 1]");
  }
  const int64_t num_features = static_cast<int64_t>(feature_tables.size());
  const int64_t num_bags = offsets.NumElements() - 1;
  if (num_features == 0 ? num_bags != 0 : num_bags % num_features != 0) {
    return tf::errors::InvalidArgument("offsets have ", num_bags + 1,
                                       " elements: expected F * B + 1 with F = ", num_features, " features");
  }
  *lookup = {};
  lookup->tables = tables.data();
  lookup->num_tables = static_cast<int32_t>(tables.size());
  lookup->feature_tables = feature_tables.data();
  lookup->combiners = combiners.data();
  lookup->num_features = static_cast<int32_t>(num_features);
  lookup->ids = ids.flat<int64_t>().data();
  lookup->num_ids = ids.NumElements();
  lookup->offsets = offsets.flat<int64_t>().data();
  lookup->batch_size = num_features == 0 ? 0 : num_bags / num_features;
  return tf::OkStatus();
}

std::vector<rh_table> LookupAttributes::Shapes() const {
  std::vector<rh_table> tables;
  // Attributes that were refused get here, too: an op's members are made before its constructor returns.
  const size_t num_tables = std::min(table_rows.size(), table_dims.size());
  for (size_t t = 0; t < num_tables; ++t) {
    rh_table table = {};
    table.num_rows = table_rows[t];
    table.dim = table_dims[t];
    tables.push_back(table);
  }
  return tables;
}

int64_t LookupAttributes::width() const {
  return std::accumulate(feature_tables.begin(), feature_tables.end(), int64_t{0},
                         [this](int64_t sum, int32_t table) { return sum + table_dims[table]; });
}

std::vector<rh_feature_rows> LookupAttributes::FeatureRows(float* matrix) const {
  std::vector<rh_feature_rows> rows;
  const int64_t stride = width();
  for (const int32_t table : feature_tables) {
    rows.push_back({matrix, stride});
    matrix += table_dims[table];
  }
  return rows;
}

tf::Status FindVariable(tf::OpKernelContext* context, int input, tf::core::RefCountPtr<tf::Var>* variable) {
  TF_RETURN_IF_ERROR(tf::LookupResource(context, tf::HandleFromInput(context, input), variable));
  if ((*variable)->tensor()->dtype() != tf::DT_FLOAT) {
    return tf::errors::InvalidArgument("variable ", (*variable)->DebugString(), ": expected float32");
  }
  // From here on nothing else aliases the variable's memory, so rows can be read and written without a copy of it.
  return tf::EnsureSparseVariableAccess<Eigen::ThreadPoolDevice, float>(context, variable->get());
}

tf::Status CheckVariable(tf::Var* variable, int64_t num_rows, int64_t dim) {
  const tf::TensorShape expected({num_rows, dim});
  if (variable->is_initialized && variable->tensor()->shape() == expected) return tf::OkStatus();
  return tf::errors::InvalidArgument("variable of ", variable->DebugString(), ": expected an initialized one of shape ",
                                     expected.DebugString());
}

}  // namespace rankhouse

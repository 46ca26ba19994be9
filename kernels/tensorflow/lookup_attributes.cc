#include "tensorflow/lookup_attributes.h"

#include <limits>
#include <numeric>

#include "tensorflow/core/framework/types.h"
#include "tensorflow/core/platform/errors.h"

namespace rankhouse {
namespace {

namespace tf = tensorflow;

// The dtype and the width of a variable that holds rows of a type: a row-wise int8 row is 8 bytes longer.
tf::DataType DataTypeOf(int32_t row_type) {
  switch (row_type) {
    case RH_FLOAT16:
      return tf::DT_HALF;
    case RH_BFLOAT16:
      return tf::DT_BFLOAT16;
    case RH_INT8_ROWWISE:
      return tf::DT_UINT8;
    default:
      return tf::DT_FLOAT;
  }
}

int64_t VariableWidth(int32_t row_type, int64_t dim) {
  return row_type == RH_INT8_ROWWISE ? rh_row_bytes(row_type, dim) : dim;
}

}  // namespace

LookupAttributes::LookupAttributes(tf::OpKernelConstruction* construction) {
  const tf::Status status = Read(construction);
  // An op's other members are made of these before TensorFlow hears of the failure.
  if (!status.ok()) table_rows.clear();
  OP_REQUIRES_OK(construction, status);
}

tf::Status LookupAttributes::Read(tf::OpKernelConstruction* construction) {
  int num_tables = 0;
  TF_RETURN_IF_ERROR(construction->GetAttr("num_tables", &num_tables));
  TF_RETURN_IF_ERROR(construction->GetAttr("table_rows", &table_rows));
  TF_RETURN_IF_ERROR(construction->GetAttr("table_dims", &table_dims));
  TF_RETURN_IF_ERROR(construction->GetAttr("table_types", &table_types));
  TF_RETURN_IF_ERROR(construction->GetAttr("out_of_range", &out_of_range));
  TF_RETURN_IF_ERROR(construction->GetAttr("oov_rows", &oov_rows));
  TF_RETURN_IF_ERROR(construction->GetAttr("feature_tables", &feature_tables));
  TF_RETURN_IF_ERROR(construction->GetAttr("combiners", &combiners));
  TF_RETURN_IF_ERROR(construction->GetAttr("hotness", &hotness));
  TF_RETURN_IF_ERROR(construction->GetAttr("weighting", &weighting));
  TF_RETURN_IF_ERROR(construction->GetAttr("num_offsets", &num_offsets));
  TF_RETURN_IF_ERROR(construction->GetAttr("num_weights", &num_weights));
  const size_t expected = num_tables;
  for (const size_t length :
       {table_rows.size(), table_dims.size(), table_types.size(), out_of_range.size(), oov_rows.size()}) {
    if (length == expected) continue;
    return tf::errors::InvalidArgument(num_tables, " tables have ", table_rows.size(), " table_rows, ",
                                       table_dims.size(), " table_dims, ", table_types.size(), " table_types, ",
                                       out_of_range.size(), " out_of_range and ", oov_rows.size(),
                                       " oov_rows: expected one each");
  }
  const size_t num_hotness = num_offsets == 1 ? 0 : feature_tables.size();
  if (feature_tables.size() != combiners.size() || hotness.size() != num_hotness || num_offsets > 1 ||
      num_weights > 1) {
    return tf::errors::InvalidArgument("feature_tables and combiners have different lengths, or there is not exactly ",
                                       "one of offsets and hotness, or more than one of weights");
  }
  for (size_t f = 0; f < feature_tables.size(); ++f) {
    const int32_t t = feature_tables[f];
    if (t < 0 || t >= num_tables) {
      return tf::errors::InvalidArgument("feature_tables names table ", t, ", but there are ", num_tables);
    }
    const int64_t rows_per_sample = combiners[f] != RH_NONE ? 1 : num_offsets == 1 ? -1 : hotness[f];
    constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
    if (rows_per_sample < 0 || rows_per_sample > kMost || table_dims[t] < 1 || table_dims[t] > kMost) {
      return tf::errors::InvalidArgument("feature ", f, " has combiner ", combiners[f], " and table_dims ",
                                         table_dims[t], ": expected a width of 1 to 2^31 - 1, and for no combiner ",
                                         "a hotness");
    }
    widths.push_back(rows_per_sample * table_dims[t]);
    width += widths.back();
    if (width > kMost) return tf::errors::InvalidArgument("the features are wider than 2^31 - 1 together");
  }
  return tf::OkStatus();
}

tf::Status LookupAttributes::MakeLookup(const std::vector<rh_table>& tables, tf::OpKernelContext* context, int first,
                                        rh_lookup* lookup) const {
  const tf::Tensor& ids = context->input(first);
  if (ids.dims() != 1) {
    return tf::errors::InvalidArgument("ids have shape ", ids.shape().DebugString(), ": expected [N]");
  }
  *lookup = {};
  lookup->tables = tables.data();
  lookup->num_tables = static_cast<int32_t>(tables.size());
  lookup->feature_tables = feature_tables.data();
  lookup->combiners = combiners.data();
  lookup->num_features = static_cast<int32_t>(feature_tables.size());
  lookup->ids = ids.data();
  lookup->id_type = ids.dtype() == tf::DT_INT32 ? RH_INT32 : RH_INT64;
  lookup->num_ids = ids.NumElements();
  lookup->weighting = weighting;
  if (num_weights == 1) {
    const tf::Tensor& weights = context->input(first + 1 + num_offsets);
    if (weights.shape() != ids.shape()) {
      return tf::errors::InvalidArgument("weights have shape ", weights.shape().DebugString(), ": expected one for ",
                                         "each of the ids, ", ids.shape().DebugString());
    }
    lookup->weights = weights.flat<float>().data();
  }
  const int64_t num_features = lookup->num_features;
  if (num_offsets == 1) {
    const tf::Tensor& offsets = context->input(first + 1);
    const int64_t num_bags = offsets.NumElements() - 1;
    if (offsets.dims() != 1 || num_bags < 0 || (num_features == 0 ? num_bags != 0 : num_bags % num_features != 0)) {
      return tf::errors::InvalidArgument("offsets of shape ", offsets.shape().DebugString(), " have ",
                                         offsets.NumElements(), " elements: expected F * B + 1 with F = ", num_features,
                                         " features");
    }
    lookup->offsets = offsets.flat<int64_t>().data();
    lookup->batch_size = num_features == 0 ? 0 : num_bags / num_features;
    return tf::OkStatus();
  }
  const int64_t per_sample = std::accumulate(hotness.begin(), hotness.end(), int64_t{0});
  if (per_sample < 1 ? lookup->num_ids != 0 : lookup->num_ids % per_sample != 0) {
    return tf::errors::InvalidArgument("there are ", lookup->num_ids, " ids: expected a multiple of the ", per_sample,
                                       " that hotness gives a sample");
  }
  lookup->hotness = hotness.data();
  lookup->batch_size = per_sample < 1 ? 0 : lookup->num_ids / per_sample;
  return tf::OkStatus();
}

std::vector<rh_table> LookupAttributes::Tables() const {
  std::vector<rh_table> tables(table_rows.size());
  for (size_t t = 0; t < tables.size(); ++t) {
    tables[t] = {};
    tables[t].num_rows = table_rows[t];
    tables[t].dim = table_dims[t];
    tables[t].type = table_types[t];
    tables[t].out_of_range = out_of_range[t];
    tables[t].oov_row = oov_rows[t];
  }
  return tables;
}

tf::Status LookupAttributes::TablesOf(const std::vector<VariablePointer>& variables,
                                      std::vector<rh_table>* tables) const {
  *tables = Tables();
  for (size_t t = 0; t < tables->size(); ++t) {
    rh_table& table = (*tables)[t];
    const int64_t variable_width = VariableWidth(table.type, table.dim);
    TF_RETURN_IF_ERROR(CheckVariable(variables[t].get(), table.num_rows, variable_width, DataTypeOf(table.type)));
    table.rows = variables[t]->tensor()->data();
  }
  return tf::OkStatus();
}

tf::Status LookupAttributes::CheckGradient(const tf::Tensor& grad, const rh_lookup& lookup) const {
  const tf::TensorShape expected({lookup.batch_size, width});
  if (grad.shape() == expected) return tf::OkStatus();
  return tf::errors::InvalidArgument("grad has shape ", grad.shape().DebugString(), ": expected ",
                                     expected.DebugString());
}

std::vector<rh_feature_rows> LookupAttributes::FeatureRows(const float* matrix) const {
  std::vector<rh_feature_rows> rows;
  float* column = const_cast<float*>(matrix);  // the interface has one struct for what is written and what is read
  for (const int64_t feature_width : widths) {
    rows.push_back({column, width});
    column += feature_width;
  }
  return rows;
}

}  // namespace rankhouse

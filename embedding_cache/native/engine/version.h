// A version that is open, and its lookups.
#ifndef RANKHOUSE_ENGINE_VERSION_H_
#define RANKHOUSE_ENGINE_VERSION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/manifest.h"
#include "engine/metrics.h"
#include "engine/options.h"
#include "engine/table.h"
#include "rankhouse/engine.h"

namespace rankhouse::engine {

// Immutable but for its counters; any thread may call it.
class Version {
 public:
  // `folder` is the version's, in the store. `device`: NULL where the engine has no GPU.
  Version(const std::string& store, const std::string& folder, const std::string& name, Manifest manifest,
          std::vector<Table> tables, const Options& options, std::shared_ptr<DeviceTier> device);

  const std::string& name() const { return name_; }
  const Manifest& manifest() const { return manifest_; }
  const std::vector<Table>& tables() const { return tables_; }
  const Options& options() const { return options_; }
  DeviceTier* device() const { return device_.get(); }
  const std::string& json() const { return json_; }
  VersionMetrics& metrics() const { return metrics_; }

  // Of the features in their order.
  const std::vector<int32_t>& feature_tables() const { return feature_tables_; }
  const std::vector<int32_t>& combiners() const { return combiners_; }

  // As the kernels see the tables. Of those that are not direct, only the shape holds.
  const std::vector<rh_table>& direct_tables() const { return direct_tables_; }
  bool is_direct() const { return is_direct_; }  // all tables are

 private:
  const std::string name_;
  const Manifest manifest_;
  const std::vector<Table> tables_;
  const Options options_;
  const std::shared_ptr<DeviceTier> device_;
  const std::string json_;
  mutable VersionMetrics metrics_;
  std::vector<int32_t> feature_tables_;
  std::vector<int32_t> combiners_;
  std::vector<rh_table> direct_tables_;
  bool is_direct_ = true;
};

// rh_engine_lookup, rh_engine_lookup_matrix, rh_engine_lookup_cuda and rh_engine_gather. They throw Error.
void LookUp(const Version& version, const rh_engine_batch& batch, const rh_feature_rows* out, rh_engine_answer* answer,
            const rh_executor* executor);
void LookUpMatrix(const Version& version, const rh_engine_batch& batch, float* out, int64_t stride,
                  rh_engine_answer* answer, const rh_executor* executor);
void LookUpCuda(const Version& version, const rh_engine_batch& batch, const rh_feature_rows* out,
                rh_engine_answer* answer, const rh_executor* executor, void* stream);
void Gather(const Version& version, int32_t table, const int64_t* ids, int64_t n, float* out, rh_engine_answer* answer,
            const rh_executor* executor);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_VERSION_H_

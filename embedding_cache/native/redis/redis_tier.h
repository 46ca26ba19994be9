// Redis as a tier of the engine.
#ifndef RANKHOUSE_REDIS_REDIS_TIER_H_
#define RANKHOUSE_REDIS_REDIS_TIER_H_

#include <memory>
#include <string>
#include <vector>

#include "engine/row_store.h"
#include "redis/cluster.h"

namespace rankhouse::redis {

class RedisTier final : public engine::RowTier {
 public:
  explicit RedisTier(Options options) : cluster_(std::move(options)) {}

  std::string ManifestOf(const std::string& version, engine::Deadline deadline) override;
  std::unique_ptr<engine::StoredRows> Open(const std::string& sha256, int64_t bytes, int64_t row_bytes,
                                           int64_t num_rows, engine::Deadline deadline) override;
  void Read(const std::vector<engine::RowRequest>& requests, engine::Deadline deadline) override;

 private:
  Cluster cluster_;
};

}  // namespace rankhouse::redis

#endif  // RANKHOUSE_REDIS_REDIS_TIER_H_

#include "redis/redis_tier.h"

#include "core/status.h"
#include "format/json.h"
#include "redis/push.h"
#include "redis/stored_file.h"

namespace rankhouse::redis {

std::string RedisTier::ManifestOf(const std::string& version, engine::Deadline deadline) {
  const std::string where = StrCat("redis: version ", version);
  const format::Json document = format::ParseObject(where, ReadVersion(&cluster_, version, deadline));
  format::CheckFormat(where, document, "redis_version");
  format::CheckKeys(where, document, {"format", "format_version", "model", "name", "manifest_sha256", "files"});
  return format::StringMember(where, document, "manifest_sha256");
}

std::unique_ptr<engine::StoredRows> RedisTier::Open(const std::string& sha256, int64_t bytes, int64_t row_bytes,
                                                    int64_t num_rows, engine::Deadline deadline) {
  auto file = std::make_unique<StoredFile>(&cluster_, sha256, deadline);
  const FileLayout& layout = file->layout();
  format::RequireIntact(layout.bytes == bytes && layout.row_bytes == row_bytes && layout.num_rows == num_rows,
                        StrCat("redis: file ", sha256), "has ", layout.num_rows, " rows of ", layout.row_bytes,
                        " bytes in ", layout.bytes, " bytes; the manifest says ", num_rows, " of ", row_bytes, " in ",
                        bytes);
  return file;
}

void RedisTier::Read(const std::vector<engine::RowRequest>& requests, engine::Deadline deadline) {
  ReadRows(&cluster_, requests, deadline);
}

}  // namespace rankhouse::redis

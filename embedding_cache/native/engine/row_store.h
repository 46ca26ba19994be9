// What a tier of rows that are not in this process' memory has to do.
#ifndef RANKHOUSE_ENGINE_ROW_STORE_H_
#define RANKHOUSE_ENGINE_ROW_STORE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "rankhouse/engine.h"

namespace rankhouse::engine {

using Deadline = std::chrono::steady_clock::time_point;

// A tier is down or late. Nothing that did not arrive may be cached.
class TierError : public Error {
 public:
  explicit TierError(const std::string& message) : Error(RH_TIER_FAILED, message) {}
};

// A file of rows that lies in a tier. Any thread may call it.
class StoredRows {
 public:
  virtual ~StoredRows() = default;

  // Reads what the file has around its rows: the bytes [0, rows_begin), then those behind the rows. Throws TierError.
  virtual std::string ReadAround(Deadline deadline) = 0;

  virtual int64_t rows_begin() const = 0;
};

// Some rows of a file that a tier gave.
struct RowRequest {
  const StoredRows* file;
  const int64_t* rows;  // [n] numbers in the file, sorted best
  int64_t n;
  std::byte* out;  // [n * row bytes]
  bool* arrived;   // [n] all false before; true where the row is in `out`
};

// A tier. Any thread may call it.
class RowTier {
 public:
  virtual ~RowTier() = default;

  // Returns the SHA-256 of the manifest of a version that is there as a whole. Throws TierError.
  virtual std::string ManifestOf(const std::string& version, Deadline deadline) = 0;

  // Opens a file by its SHA-256. It must not outlive the tier. Throws TierError where it is not there, Error RH_CORRUPT
  // where it is not of this size or has other rows.
  virtual std::unique_ptr<StoredRows> Open(const std::string& sha256, int64_t bytes, int64_t row_bytes,
                                           int64_t num_rows, Deadline deadline) = 0;

  // Reads rows of several files at once. Throws TierError where some did not arrive; others may have.
  virtual void Read(const std::vector<RowRequest>& requests, Deadline deadline) = 0;
};

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_ROW_STORE_H_

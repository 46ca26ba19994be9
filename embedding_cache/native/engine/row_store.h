// What a tier of rows that are not in this process' memory has to do.
#ifndef RANKHOUSE_ENGINE_ROW_STORE_H_
#define RANKHOUSE_ENGINE_ROW_STORE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/status.h"
#include "rankhouse/engine.h"

namespace rankhouse::engine {

// A tier is down or late. Nothing that it gave meanwhile may be cached.
class TierError : public Error {
 public:
  explicit TierError(const std::string& message) : Error(RH_TIER_FAILED, message) {}
};

// Rows of one file that are not in this process' memory. Any thread may call it.
class RowStore {
 public:
  virtual ~RowStore() = default;

  // Reads rows [n] (numbers in the file) into out [n * row bytes]. Throws TierError.
  virtual void Read(const int64_t* rows, int64_t n, std::byte* out, std::chrono::steady_clock::time_point deadline) = 0;
};

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_ROW_STORE_H_

// What an engine is told when it is created.
#ifndef RANKHOUSE_ENGINE_OPTIONS_H_
#define RANKHOUSE_ENGINE_OPTIONS_H_

#include <cstdint>
#include <string>

#include "cache/row_cache.h"
#include "engine/row_memory.h"
#include "rankhouse/kernels.h"

namespace rankhouse::engine {

// The row of the unknown value, in every table.
constexpr int64_t kUnknownRow = 2;

struct Options {
  int32_t num_threads = 0;  // of a call without an executor; 0: as many as there are processors
  MemoryKind memory = MemoryKind::kMap;
  int32_t out_of_range = RH_ERROR;  // an rh_out_of_range; RH_OOV_ROW stands for kUnknownRow
  std::string hot_rows;             // a folder; empty: what is hot is not kept
  bool requires_warm_up = false;    // a version whose hot rows did not all come is not opened

  // The GPU.
  int32_t device = -1;  // its number; -1: none
  int64_t device_cache_bytes = int64_t{1} << 30;
  cache::Policy device_cache_policy = cache::Policy::kLru;

  // Rows in Redis.
  std::string redis;                       // its client's options, JSON; empty: rows are in local files
  int64_t cache_bytes = int64_t{1} << 30;  // of rows in memory, for all versions together
  cache::Policy cache_policy = cache::Policy::kLru;
  bool uses_default_row = false;  // where Redis fails, instead of an error
};

// Parses a JSON object; NULL is an empty one. Throws Error RH_INVALID_ARGUMENT.
Options ParseOptions(const char* json);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_OPTIONS_H_

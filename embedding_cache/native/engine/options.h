// What an engine is told when it is created.
#ifndef RANKHOUSE_ENGINE_OPTIONS_H_
#define RANKHOUSE_ENGINE_OPTIONS_H_

#include <cstdint>

#include "engine/row_memory.h"
#include "rankhouse/kernels.h"

namespace rankhouse::engine {

// The row of the unknown value, in every table.
constexpr int64_t kUnknownRow = 2;

struct Options {
  int32_t num_threads = 0;  // of a call without an executor; 0: as many as there are processors
  MemoryKind memory = MemoryKind::kMap;
  int32_t out_of_range = RH_ERROR;  // an rh_out_of_range; RH_OOV_ROW stands for kUnknownRow
};

// Parses a JSON object; NULL is an empty one. Throws Error RH_INVALID_ARGUMENT.
Options ParseOptions(const char* json);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_OPTIONS_H_

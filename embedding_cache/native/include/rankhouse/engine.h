// The embedding engine: opens versions and looks their rows up. The conventions of rankhouse/kernels.h hold, and
// rh_last_error() gives its messages too.
#ifndef RANKHOUSE_ENGINE_H_
#define RANKHOUSE_ENGINE_H_

#include "rankhouse/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

#define RH_ENGINE_ABI_VERSION 1

// Beside those of rh_status.
typedef enum rh_engine_status {
  RH_NOT_FOUND = 16,   // no such store, version or table
  RH_CORRUPT = 17,     // a file is missing, truncated, or not what the version's manifest says
  RH_TIER_FAILED = 18  // rows lie in a store that is down or late
} rh_engine_status;

// Returns RH_ENGINE_ABI_VERSION of the built library.
RH_API int rh_engine_abi_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // RANKHOUSE_ENGINE_H_

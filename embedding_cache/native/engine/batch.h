// A batch as callers hand it over, checked, and as the kernels want it.
#ifndef RANKHOUSE_ENGINE_BATCH_H_
#define RANKHOUSE_ENGINE_BATCH_H_

#include "engine/arena.h"
#include "engine/version.h"

namespace rankhouse::engine {

// Refuses a type of ids that is none. Throws Error.
void CheckIdType(const rh_engine_batch& batch);

// The lookup of a batch whose arrays are in the host's memory, without tables; what it needs beside the batch is taken
// from the arena. Throws Error where the batch contradicts itself.
rh_lookup LookupOf(const Version& version, const rh_engine_batch& batch, Arena* arena);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_BATCH_H_

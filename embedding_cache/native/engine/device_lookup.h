// The lookup of a batch on a GPU, once its ids are places.
//
//   host    places of each table, each once -> keys ─┐
//   device                                           └> row cache -> rows (what it lacks is read on the host) -> pool
//
// What a place stands for is resolved on the host, where the index is. Rows of all tables with the same size share one
// cache, and are fetched by one call. The pooling is rh_pooled_lookup_cuda's over the fetched rows, whose order of sums
// is the CPU's: so a batch has the same bits on both, whatever the cache holds and however small it is.
#ifndef RANKHOUSE_ENGINE_DEVICE_LOOKUP_H_
#define RANKHOUSE_ENGINE_DEVICE_LOOKUP_H_

#include <vector>

#include "engine/arena.h"
#include "engine/version.h"
#include "rankhouse/kernels.h"

namespace rankhouse::engine {

struct PlacedBatch {
  rh_lookup lookup;              // in host memory, checked; its tables and ids are not read
  const int64_t* places;         // [N]
  std::vector<Places> features;  // [F] the parts of `places` that each feature has; overwritten
  bool weights_on_device;
  Deadline since;  // as LocateRemote has it
};

// Where `batch` brings arrays in device memory (rh_engine_batch), copies those that the host reads into the arena; that
// waits for the stream. Its weights stay where they are.
void BringToHost(const Version& version, rh_engine_batch* batch, Arena* arena, void* stream);

// Queues the lookup on the stream: out [F] on the device. Waits for the stream as rh_row_cache_fetch_cuda does, once
// for each size of rows. Returns what came from where, by table. Throws Error.
std::vector<SourceReport> PoolOnDevice(const Version& version, PlacedBatch batch, const rh_feature_rows* out,
                                       Arena* arena, const rh_executor& executor, void* stream);

// Brings rows to the GPU's cache before lookups ask for them: places [T], in this order. What a tier does not give is
// left to the lookups.
void WarmDevice(const Version& version, const std::vector<std::vector<int64_t>>& places);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_DEVICE_LOOKUP_H_

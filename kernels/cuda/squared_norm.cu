// The sum of the squares of gradients on a GPU, in the order of core/squared_norm.h: a warp owns a chunk, its lanes the
// partial sums. Bytes moved: U * D * 4 read.
#include "core/squared_norm.h"
#include "cuda/group.cuh"

namespace rankhouse {
namespace {

static_assert(kNormLanes == 32, "a warp has a lane for each partial sum");

struct NormTable {
  const float* rows;
  int64_t dim;
  int64_t capacity;
};

struct NormWorkspace {
  NormWorkspace(Workspace* workspace, int32_t num_tables)
      : tables(workspace->Take<NormTable>(num_tables)), sums(workspace->Take<double>(num_tables * kNormChunks)) {}

  NormTable* tables;
  double* sums;  // [T, kNormChunks]
};

__global__ void SumChunks(NormWorkspace parts, const int64_t* num_rows) {
  const int64_t warp = GlobalThread() / 32;
  const int64_t t = warp / kNormChunks;
  const int64_t chunk = warp % kNormChunks;
  const NormTable table = parts.tables[t];
  const int64_t n = min(num_rows[t], table.capacity) * table.dim;
  const int64_t length = NormChunkLength(n);
  const int64_t end = min(n, (chunk + 1) * length);
  double sum = 0.0;
#pragma unroll 8
  for (int64_t i = chunk * length + threadIdx.x % 32; i < end; i += 32) {
    const double value = table.rows[i];
    sum += value * value;
  }
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) parts.sums[warp] = sum;
}

// One block: tables are few, and a table's chunks are added by one thread, in order.
__global__ void SumTables(NormWorkspace parts, int32_t num_tables, double* squared_norm) {
  for (int32_t t = threadIdx.x; t < num_tables; t += kBlockThreads) {
    double* sums = parts.sums + t * kNormChunks;
    double sum = 0.0;
#pragma unroll 16
    for (int64_t chunk = 0; chunk < kNormChunks; ++chunk) sum += sums[chunk];
    sums[0] = sum;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  double sum = 0.0;
  for (int32_t t = 0; t < num_tables; ++t) sum += parts.sums[t * kNormChunks];
  *squared_norm = sum;
}

void SquaredNorm(const rh_sparse_gradient* gradients, const int64_t* dims, const int64_t* num_rows, int32_t num_tables,
                 double* squared_norm, Workspace workspace, cudaStream_t stream) {
  Require(num_tables >= 0, "num_tables is ", num_tables, ": expected >= 0");
  Require(squared_norm != nullptr, "squared_norm is NULL");
  Require(num_tables == 0 || (gradients != nullptr && dims != nullptr && num_rows != nullptr),
          "gradients, dims or num_rows is NULL");
  std::vector<NormTable> tables;
  for (int32_t t = 0; t < num_tables; ++t) {
    Require(dims[t] >= 1 && gradients[t].capacity >= 0, "the gradient of table ", t, " has shape [",
            gradients[t].capacity, ", ", dims[t], "]: expected rows >= 0 and a width >= 1");
    Require(gradients[t].capacity == 0 || gradients[t].rows != nullptr, "the gradient of table ", t, " has NULL rows");
    tables.push_back({gradients[t].rows, dims[t], gradients[t].capacity});
  }
  const NormWorkspace parts(&workspace, num_tables);
  Upload(parts.tables, tables, stream);
  Launch(SumChunks, num_tables * kNormChunks * 32 / kBlockThreads, stream, parts, num_rows);
  Launch(SumTables, 1, stream, parts, num_tables, squared_norm);
}

}  // namespace
}  // namespace rankhouse

int rh_squared_norm_workspace_cuda(int32_t num_tables, int64_t* bytes) {
  return rankhouse::Guard([&] {
    rankhouse::Require(num_tables >= 0 && bytes != nullptr, "num_tables is negative or bytes is NULL");
    rankhouse::Workspace workspace;
    rankhouse::NormWorkspace(&workspace, num_tables);
    *bytes = workspace.used();
  });
}

int rh_squared_norm_cuda(const rh_sparse_gradient* gradients, const int64_t* dims, const int64_t* num_rows,
                         int32_t num_tables, double* squared_norm, void* workspace, int64_t workspace_bytes,
                         void* stream) {
  return rankhouse::Guard([&] {
    rankhouse::SquaredNorm(gradients, dims, num_rows, num_tables, squared_norm,
                           rankhouse::Workspace(workspace, workspace_bytes), static_cast<cudaStream_t>(stream));
  });
}

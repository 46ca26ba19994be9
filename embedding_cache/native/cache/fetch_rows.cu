// Rows to the device, wherever they are: what the cache has is copied there, and what it lacks goes through host memory
// to a part of the workspace, from there to its places among the rows, and into the cache.
//
// Bytes moved beside those of finding and inserting: 8 + row_bytes per missing key over the bus, and row_bytes read and
// written to put a row in its place.
#include "cache/find_rows.cuh"
#include "cache/insert_rows.cuh"

namespace rankhouse::cache {
namespace {

struct FetchWorkspace {
  FetchWorkspace(Workspace* workspace, int64_t n, int64_t row_bytes)
      : find(workspace, n),
        insert(workspace, n),
        num_missing(workspace->Take<int64_t>(1)),
        missing(workspace->Take<int32_t>(n)),
        keys(workspace->Take<uint64_t>(n)),
        rows(workspace->Take<char>(n * row_bytes)) {}

  FindWorkspace find;
  InsertWorkspace insert;
  int64_t* num_missing;
  int32_t* missing;  // the positions, keys and rows of what is missing
  uint64_t* keys;
  char* rows;
};

// A thread owns a missing key.
__global__ void GatherKeys(const uint64_t* keys, const int32_t* missing, int64_t count, uint64_t* missing_keys) {
  const int64_t i = GlobalThread();
  if (i < count) missing_keys[i] = keys[missing[i]];
}

// A warp owns a missing row.
template <typename Unit>
__global__ void ScatterRows(const char* missing_rows, const int32_t* missing, int64_t count, int64_t row_bytes,
                            char* rows) {
  const int64_t i = GlobalWarp();
  if (i < count) CopyRow<Unit>(rows + missing[i] * row_bytes, missing_rows + i * row_bytes, row_bytes);
}

// Copies keys of what is missing to the host, has their rows read, and copies those to the device.
void ReadMissing(const rh_row_fetch& fetch, int64_t row_bytes, int64_t count, const FetchWorkspace& workspace,
                 cudaStream_t stream) {
  char* host_rows = static_cast<char*>(fetch.host_memory);  // first, so that they are as aligned as the memory
  uint64_t* host_keys = reinterpret_cast<uint64_t*>(host_rows + (fetch.n * row_bytes + 7) / 8 * 8);
  Launch(GatherKeys, DivideUp(count, kBlockThreads), stream, fetch.keys, workspace.missing, count, workspace.keys);
  CopyToHost(host_keys, workspace.keys, count, stream);
  const int status = fetch.read(fetch.context, host_keys, count, host_rows);
  if (status != RH_OK) throw Error(status, rh_last_error());
  CheckCuda(cudaMemcpyAsync(workspace.rows, host_rows, count * row_bytes, cudaMemcpyHostToDevice, stream),
            "copying rows to the device");
}

void Fetch(rh_device_row_cache* cache, const rh_row_fetch& fetch, FetchWorkspace* workspace, cudaStream_t stream) {
  char* rows = static_cast<char*>(fetch.rows);
  FindRows(cache, fetch.keys, fetch.n, rows, workspace->missing, workspace->num_missing, workspace->find, stream);
  int64_t count = 0;
  CopyToHost(&count, workspace->num_missing, 1, stream);
  if (count == 0) return;
  const int64_t row_bytes = cache->row_bytes();
  ReadMissing(fetch, row_bytes, count, *workspace, stream);
  const int64_t at_once = BytesAtOnce(row_bytes, rows);
  const auto kernel = at_once == 16  ? ScatterRows<Bytes16>
                      : at_once == 4 ? ScatterRows<uint32_t>
                                     : ScatterRows<uint8_t>;
  Launch(kernel, BlocksOfWarps(count), stream, workspace->rows, workspace->missing, count, row_bytes, rows);
  if (fetch.is_complete != nullptr && *fetch.is_complete == 0) return;
  InsertRows(cache, workspace->keys, count, workspace->rows, &workspace->insert, stream);
}

int64_t HostBytes(int64_t n, int64_t row_bytes) {
  return (n * row_bytes + 7) / 8 * 8 + n * static_cast<int64_t>(sizeof(uint64_t));
}

void CheckFetch(const rh_device_row_cache& cache, const rh_row_fetch& fetch) {
  CheckNumKeys(fetch.n);
  Require(fetch.read != nullptr, "read is NULL: expected a function that reads rows which the cache lacks");
  if (fetch.n == 0) return;
  Require(fetch.keys != nullptr && fetch.rows != nullptr, "keys or rows is NULL, but there are ", fetch.n, " keys");
  const int64_t host_bytes = HostBytes(fetch.n, cache.row_bytes());
  Require(fetch.host_memory != nullptr && reinterpret_cast<uintptr_t>(fetch.host_memory) % sizeof(uint64_t) == 0,
          "host_memory is NULL or not aligned to 8 bytes");
  Require(fetch.host_bytes >= host_bytes, "host_memory has ", fetch.host_bytes, " bytes: expected ", host_bytes,
          ", as rh_row_cache_fetch_workspace_cuda says for ", fetch.n, " keys");
}

}  // namespace
}  // namespace rankhouse::cache

using rankhouse::Guard;
using rankhouse::Require;
using rankhouse::Workspace;

int rh_row_cache_fetch_workspace_cuda(const rh_device_row_cache* cache, int64_t n, int64_t* bytes,
                                      int64_t* host_bytes) {
  return Guard([&] {
    Require(cache != nullptr && bytes != nullptr && host_bytes != nullptr, "cache, bytes or host_bytes is NULL");
    rankhouse::cache::CheckNumKeys(n);
    Workspace workspace;
    rankhouse::cache::FetchWorkspace(&workspace, n, cache->row_bytes());
    *bytes = workspace.used();
    *host_bytes = rankhouse::cache::HostBytes(n, cache->row_bytes());
  });
}

int rh_row_cache_fetch_cuda(rh_device_row_cache* cache, const rh_row_fetch* fetch, void* workspace,
                            int64_t workspace_bytes, void* stream) {
  return Guard([&] {
    Require(cache != nullptr && fetch != nullptr, "cache or fetch is NULL");
    rankhouse::cache::CheckFetch(*cache, *fetch);
    if (fetch->n == 0) return;
    Workspace memory(workspace, workspace_bytes);
    rankhouse::cache::FetchWorkspace parts(&memory, fetch->n, cache->row_bytes());
    rankhouse::cache::Fetch(cache, *fetch, &parts, static_cast<cudaStream_t>(stream));
  });
}

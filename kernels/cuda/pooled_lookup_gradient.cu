// The backward of pooled lookup on a GPU, for all tables at once: sort, cut into runs of equal ids, add up each run.
//
//   keys   <- table | id | feature | sample of each id          (a thread owns a bag)
//   keys   <- sorted by table and id, stable: CUB's radix sort  (so each run keeps the order of positions)
//   runs   <- where the table or the id changes: CUB's scan
//   sums   <- a group of threads owns a run, and each of its threads some columns; a run of several chunks of
//             RH_GRADIENT_CHUNK is shared by the groups of its block, chunk by chunk
//
// Every sum has the order that kernels.h promises, and no atomics add, so the result is always the same bits.
// Bytes moved: 16 per id and radix pass, 24 per id for keys and runs, N * D * 4 of grad, U * (8 + D * 4) written.
#include <cub/cub.cuh>

#include "core/sort_key.h"
#include "cuda/device.cuh"
#include "cuda/device_lookup.cuh"

namespace rankhouse {
namespace {

// Where the gradient of one table goes.
struct TableOutput {
  int64_t* ids;
  float* rows;
  int64_t capacity;
  int64_t dim;
};

// Sorts by table first, then as KeyLayout has it.
struct TableKeyLayout {
  KeyLayout within;
  int id_bits;

  RH_HOST_DEVICE int table_shift() const { return within.id_shift() + id_bits; }
  RH_HOST_DEVICE int64_t Table(uint64_t key) const { return static_cast<int64_t>(key >> table_shift()); }
  RH_HOST_DEVICE int64_t Id(uint64_t key) const {
    return static_cast<int64_t>((key & ((uint64_t{1} << table_shift()) - 1)) >> within.id_shift());
  }
};

// What no id has as its key: behind all tables. Keys start as this, and those of bad ids stay so.
constexpr uint64_t kNoKey = std::numeric_limits<uint64_t>::max();

struct Backward {
  DeviceLookup lookup;
  TableKeyLayout layout;
  const TableOutput* tables;  // [T]
  const float* grad;
  uint64_t* keys;       // [N] sorted
  int32_t* runs;        // [N] 1 + the run that a key belongs to
  int32_t* run_starts;  // [runs + 1]
  int32_t* first_runs;  // [T + 1] the first run of each table; [T] is the number of runs
  int32_t num_ids;
  int32_t num_tables;
};

__global__ void MakeKeys(Backward backward) {
  const DeviceLookup& lookup = backward.lookup;
  const int64_t index = GlobalThread();
  if (index >= lookup.num_bags) return;
  const int64_t f = index / lookup.batch_size;
  const int64_t sample = index % lookup.batch_size;
  const Feature feature = lookup.features[f];
  const Bag bag = lookup.bag(feature, index, sample);
  if (!bag.Within(feature)) return lookup.ReportBag(index);
  const uint64_t table = static_cast<uint64_t>(feature.table) << backward.layout.table_shift();
  for (int64_t n = bag.begin; n < bag.end; ++n) {
    const int64_t id = lookup.ids[n];
    if (static_cast<uint64_t>(id) >= static_cast<uint64_t>(feature.num_rows)) return lookup.ReportBag(index);
    backward.keys[n] = table | backward.layout.within.Key(id, f, sample);
  }
}

// runs[n] = 1 where a run begins, else 0.
__global__ void MarkRuns(Backward backward) {
  const int64_t n = GlobalThread();
  if (n >= backward.num_ids) return;
  const int shift = backward.layout.within.id_shift();
  const uint64_t key = backward.keys[n];
  const bool begins = n == 0 || key >> shift != backward.keys[n - 1] >> shift;
  backward.runs[n] = key != kNoKey && begins ? 1 : 0;
}

// From runs, now numbers: where each run begins, and (threads 0 to T) which run is the first of each table.
__global__ void CutRuns(Backward backward) {
  const int64_t n = GlobalThread();
  const int64_t num_ids = backward.num_ids;
  if (n < num_ids && backward.keys[n] != kNoKey && (n == 0 || backward.runs[n] != backward.runs[n - 1])) {
    backward.run_starts[backward.runs[n] - 1] = static_cast<int32_t>(n);
  }
  if (n > backward.num_tables) return;
  int64_t low = 0;
  int64_t high = num_ids;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (backward.keys[middle] != kNoKey && backward.layout.Table(backward.keys[middle]) < n) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const int32_t first_run = low == 0 ? 0 : backward.runs[low - 1];
  backward.first_runs[n] = first_run;
  if (n == backward.num_tables) backward.run_starts[first_run] = static_cast<int32_t>(low);
}

// num_rows[t], and a fault where they do not fit.
__global__ void CountRuns(Backward backward, int64_t* num_rows) {
  const int64_t t = GlobalThread();
  if (t >= backward.num_tables) return;
  num_rows[t] = backward.first_runs[t + 1] - backward.first_runs[t];
  if (num_rows[t] > backward.tables[t].capacity) {
    atomicMin(&backward.lookup.faults[kSmallCapacity], static_cast<Fault>(t));
  }
}

// The sum of the gradients of the keys [begin, end) in the columns from `column` on.
template <int kColumns>
__device__ Columns<kColumns> AddUpChunk(const Backward& backward, int32_t begin, int32_t end, int64_t column) {
  const DeviceLookup& lookup = backward.lookup;
  Columns<kColumns> sum = {};
  for (int32_t n = begin; n < end; ++n) {
    const uint64_t key = backward.keys[n];
    const int64_t f = backward.layout.within.Feature(key);
    const int64_t sample = backward.layout.within.Sample(key);
    const Feature& feature = lookup.features[f];
    float scale = 1.0f;
    if (feature.mean) {
      const Bag bag = lookup.bag(feature, f * lookup.batch_size + sample, sample);
      scale = 1.0f / static_cast<float>(bag.end - bag.begin);
    }
    const float* source = backward.grad + sample * lookup.width + feature.column + column;
    const auto row = *reinterpret_cast<const Columns<kColumns>*>(source);
    for (int c = 0; c < kColumns; ++c) {
      const float value = scale * row.value[c];
      sum.value[c] = n == begin ? value : sum.value[c] + value;
    }
  }
  return sum;
}

// What a group of threads knows of a run.
struct Run {
  int64_t table;
  int64_t position;  // among the rows of its table
  int32_t begin;
  int32_t end;
};

__device__ Run GetRun(const Backward& backward, int64_t run) {
  const int32_t begin = backward.run_starts[run];
  const int64_t table = backward.layout.Table(backward.keys[begin]);
  return {table, run - backward.first_runs[table], begin, backward.run_starts[run + 1]};
}

// Groups of `lanes` threads; a block owns as many neighbouring runs as it has groups. Shared memory: kColumns floats
// for each thread.
template <int kColumns>
__global__ void AddUpRuns(Backward backward, int lanes) {
  __shared__ Columns<kColumns> partial[kBlockThreads];
  const int group = threadIdx.x / lanes;
  const int lane = threadIdx.x % lanes;
  const int num_groups = kBlockThreads / lanes;
  const int64_t num_runs = backward.first_runs[backward.num_tables];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * num_groups;

  // Each group adds up its own run, if that is one chunk.
  if (first + group < num_runs) {
    const Run run = GetRun(backward, first + group);
    const TableOutput& table = backward.tables[run.table];
    const bool fits = run.position < table.capacity;
    if (fits && lane == 0) table.ids[run.position] = backward.layout.Id(backward.keys[run.begin]);
    if (fits && run.end - run.begin <= RH_GRADIENT_CHUNK) {
      for (int64_t column = lane * kColumns; column < table.dim; column += lanes * kColumns) {
        float* target = table.rows + run.position * table.dim + column;
        *reinterpret_cast<Columns<kColumns>*>(target) = AddUpChunk<kColumns>(backward, run.begin, run.end, column);
      }
    }
  }

  // Then all groups share the longer runs of the block, one after the other; group 0 adds the chunks' sums in their
  // order.
  for (int64_t r = first; r < first + num_groups && r < num_runs; ++r) {
    const Run run = GetRun(backward, r);
    const TableOutput& table = backward.tables[run.table];
    if (run.position >= table.capacity || run.end - run.begin <= RH_GRADIENT_CHUNK) continue;
    // The same number of rounds for all threads, so that they meet at the barriers.
    for (int64_t base = 0; base < table.dim; base += lanes * kColumns) {
      const int64_t column = base + lane * kColumns;
      const bool active = column < table.dim;
      Columns<kColumns> sum = {};
      for (int32_t round = run.begin; round < run.end; round += num_groups * RH_GRADIENT_CHUNK) {
        const int32_t begin = round + group * RH_GRADIENT_CHUNK;
        if (active && begin < run.end) {
          const int32_t end = min(begin + RH_GRADIENT_CHUNK, run.end);
          partial[threadIdx.x] = AddUpChunk<kColumns>(backward, begin, end, column);
        }
        __syncthreads();
        if (active && group == 0) {
          for (int g = 0; g < num_groups && round + g * RH_GRADIENT_CHUNK < run.end; ++g) {
            const Columns<kColumns> chunk = partial[g * lanes + lane];
            const bool is_first = round == run.begin && g == 0;
            for (int c = 0; c < kColumns; ++c) sum.value[c] = is_first ? chunk.value[c] : sum.value[c] + chunk.value[c];
          }
        }
        __syncthreads();
      }
      if (active && group == 0) {
        *reinterpret_cast<Columns<kColumns>*>(table.rows + run.position * table.dim + column) = sum;
      }
    }
  }
}

// The parts of a gradient's workspace, in their order.
struct GradientWorkspace {
  GradientWorkspace(Workspace* workspace, const Lookup& lookup)
      : lookup(workspace, lookup),
        tables(workspace->Take<TableOutput>(lookup.num_tables())),
        keys(workspace->Take<uint64_t>(lookup.num_ids())),
        sorted(workspace->Take<uint64_t>(lookup.num_ids())),
        runs(workspace->Take<int32_t>(lookup.num_ids())),
        run_starts(workspace->Take<int32_t>(lookup.num_ids() + 1)),
        first_runs(workspace->Take<int32_t>(lookup.num_tables() + 1)) {
    Require(lookup.num_ids() < std::numeric_limits<int32_t>::max(), "there are ", lookup.num_ids(),
            " ids: expected less than 2^31 in one call");
    const int num_ids = static_cast<int>(lookup.num_ids());
    CheckCuda(cub::DeviceRadixSort::SortKeys(nullptr, sort_bytes, keys, sorted, num_ids), "planning the sort");
    CheckCuda(cub::DeviceScan::InclusiveSum(nullptr, scan_bytes, runs, runs, num_ids), "planning the scan");
    cub = workspace->Take<char>(static_cast<int64_t>(std::max(sort_bytes, scan_bytes)));
  }

  LookupWorkspace lookup;
  TableOutput* tables;
  uint64_t* keys;
  uint64_t* sorted;
  int32_t* runs;
  int32_t* run_starts;
  int32_t* first_runs;
  char* cub = nullptr;
  size_t sort_bytes = 0;
  size_t scan_bytes = 0;
};

// The layout of the keys of all tables; throws where they do not fit into 64 bits.
TableKeyLayout MakeLayout(const Lookup& lookup) {
  int64_t max_rows = 1;
  for (int32_t t = 0; t < lookup.num_tables(); ++t) max_rows = std::max(max_rows, lookup.table(t).num_rows);
  const int feature_bits = BitWidth(static_cast<int64_t>(lookup.features().size()));
  const TableKeyLayout layout = {{feature_bits, BitWidth(lookup.batch_size())}, BitWidth(max_rows)};
  // One table more than there are leaves room for kNoKey.
  Require(layout.table_shift() + BitWidth(lookup.num_tables() + 1) <= 64, "tables of up to ", max_rows,
          " rows are too many to sort with ", lookup.features().size(), " features of ", lookup.batch_size(),
          " samples: split the tables or the batch");
  return layout;
}

std::vector<TableOutput> CheckOutputs(const Lookup& lookup, const rh_lookup& raw, const rh_sparse_gradient* gradients) {
  const std::vector<int64_t> num_ids = lookup.IdsPerTable();
  std::vector<TableOutput> outputs;
  for (int32_t t = 0; t < lookup.num_tables(); ++t) {
    const rh_sparse_gradient& gradient = gradients[t];
    const int64_t needed = raw.offsets == nullptr ? std::min(num_ids[t], lookup.table(t).num_rows) : 0;
    Require(gradient.capacity >= needed, "the gradient of table ", t, " has capacity ", gradient.capacity,
            ": expected at least ", needed, " (see rh_gradient_capacity)");
    Require(gradient.capacity == 0 || (gradient.ids != nullptr && gradient.rows != nullptr), "the gradient of table ",
            t, " has NULL ids or rows");
    outputs.push_back({gradient.ids, gradient.rows, gradient.capacity, lookup.table(t).dim});
  }
  return outputs;
}

void PooledLookupGradient(const rh_lookup* raw, const float* grad, const rh_sparse_gradient* gradients,
                          int64_t* num_rows, Workspace workspace, cudaStream_t stream) {
  const Lookup lookup(raw, Lookup::Memory::kDevice);
  if (lookup.num_tables() == 0) return;
  Require(gradients != nullptr && num_rows != nullptr, "gradients or num_rows is NULL");
  const std::vector<TableOutput> outputs = CheckOutputs(lookup, *raw, gradients);
  GradientWorkspace parts(&workspace, lookup);
  const TableKeyLayout layout = MakeLayout(lookup);
  const int num_ids = static_cast<int>(lookup.num_ids());
  const DeviceLookup device = parts.lookup.Fill(lookup, raw->offsets, stream);
  CopyToDevice(parts.tables, outputs.data(), lookup.num_tables(), stream);
  Backward backward = {device,     layout,           parts.tables,     grad,    parts.keys,
                       parts.runs, parts.run_starts, parts.first_runs, num_ids, lookup.num_tables()};

  CheckCuda(cudaMemsetAsync(parts.keys, 0xff, num_ids * sizeof(uint64_t), stream), "clearing the keys");
  Launch(MakeKeys, device.num_bags, stream, backward);
  const int end_bit = layout.table_shift() + BitWidth(lookup.num_tables() + 1);
  CheckCuda(cub::DeviceRadixSort::SortKeys(parts.cub, parts.sort_bytes, parts.keys, parts.sorted, num_ids,
                                           layout.within.id_shift(), end_bit, stream),
            "sorting the ids");
  backward.keys = parts.sorted;
  Launch(MarkRuns, num_ids, stream, backward);
  CheckCuda(cub::DeviceScan::InclusiveSum(parts.cub, parts.scan_bytes, parts.runs, parts.runs, num_ids, stream),
            "numbering the runs");
  Launch(CutRuns, std::max<int64_t>(num_ids, lookup.num_tables() + 1), stream, backward);
  Launch(CountRuns, lookup.num_tables(), stream, backward, num_rows);

  bool by_four = IsAligned(grad);
  int64_t max_dim = 1;
  for (const TableOutput& output : outputs) {
    by_four = by_four && output.dim % 4 == 0 && IsAligned(output.rows);
    max_dim = std::max(max_dim, output.dim);
  }
  const int lanes = LanesPerRow(max_dim, by_four ? 4 : 1);
  Launch(by_four ? AddUpRuns<4> : AddUpRuns<1>, lookup.num_ids() * lanes, stream, backward, lanes);
}

}  // namespace
}  // namespace rankhouse

int rh_pooled_lookup_gradient_workspace_cuda(const rh_lookup* lookup, int64_t* bytes) {
  return rankhouse::Guard([&] {
    rankhouse::Require(bytes != nullptr, "bytes is NULL");
    rankhouse::Workspace workspace;
    rankhouse::GradientWorkspace(&workspace, rankhouse::Lookup(lookup, rankhouse::Lookup::Memory::kDevice));
    *bytes = workspace.used();
  });
}

int rh_pooled_lookup_gradient_cuda(const rh_lookup* lookup, const float* grad, rh_sparse_gradient* gradients,
                                   int64_t* num_rows, void* workspace, int64_t workspace_bytes, void* stream) {
  return rankhouse::Guard([&] {
    rankhouse::PooledLookupGradient(lookup, grad, gradients, num_rows, rankhouse::Workspace(workspace, workspace_bytes),
                                    static_cast<cudaStream_t>(stream));
  });
}

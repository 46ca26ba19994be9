#include "engine/device_lookup.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "core/status.h"
#include "cpu/parallel.h"
#include "engine/batch.h"
#include "engine/device_memory.h"
#include "engine/device_tier.h"
#include "engine/warm.h"
#include "rankhouse/row_cache.h"

namespace rankhouse::engine {
namespace {

constexpr int64_t kCyclesPerRow = 200;  // about what it takes to copy one from memory

using Clock = std::chrono::steady_clock;

void Check(int status) {
  if (status != RH_OK) throw Error(status, rh_last_error());
}

// Cuts memory into pieces on multiples of 256 bytes; without memory it only adds them up.
class Pieces {
 public:
  explicit Pieces(char* memory) : memory_(memory) {}

  template <typename T>
  T* Take(int64_t count) {
    char* piece = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return reinterpret_cast<T*>(piece);
  }

  int64_t used() const { return used_; }

 private:
  char* const memory_;
  int64_t used_ = 0;
};

// What a batch needs of one table: rows, each once.
struct Demand {
  const Table* table;
  int32_t number;              // the table's
  std::vector<Places> places;  // overwritten by positions in `unique`
  int64_t num_ids = 0;         // that have a place
  int64_t num_unique = 0;
  int64_t* unique = nullptr;  // [U] places
  int64_t* counts = nullptr;  // [U] ids of each
  int64_t first_row = 0;      // among the rows of the group
};

// Tables whose rows have the same size, and their cache.
struct Group {
  int64_t row_bytes = 0;
  std::shared_ptr<rh_device_row_cache> cache;
  std::vector<Demand> demands;
  int64_t num_rows = 0;       // of all demands; their keys stand in this order
  char* rows = nullptr;       // [num_rows, row_bytes] on the device
  char* workspace = nullptr;  // of the fetch, on the device
  int64_t workspace_bytes = 0;
  char* fetched = nullptr;  // of the fetch, on the host
  int64_t fetched_bytes = 0;
};

// What goes to the device in one copy, as it lies on either side.
struct Upload {
  int64_t* ids = nullptr;
  int64_t* offsets = nullptr;
  float* weights = nullptr;
  std::vector<uint64_t*> keys;  // of each group
};

class DeviceCall {
 public:
  DeviceCall(const Version& version, PlacedBatch batch, Arena* arena, const rh_executor& executor, void* stream)
      : version_(version),
        batch_(std::move(batch)),
        lookup_(batch_.lookup),
        arena_(arena),
        executor_(executor),
        stream_(stream),
        reports_(version.tables().size()) {}

  std::vector<SourceReport> Run(const rh_feature_rows* out) {
    FetchAll(Demands());
    Pool(out);
    CountTimes();
    return std::move(reports_);
  }

  // Fetches rows of one table, of a batch without features. That is no lookup, and its time does not count as one's.
  void Keep(int32_t table, Places places) {
    std::map<int32_t, std::vector<Places>> demands;
    demands[table] = {places};
    FetchAll(demands);
  }

 private:
  // The places that the batch has of each table.
  std::map<int32_t, std::vector<Places>> Demands() const {
    std::map<int32_t, std::vector<Places>> demands;
    for (int32_t f = 0; f < lookup_.num_features; ++f) {
      if (batch_.features[f].size > 0) demands[lookup_.feature_tables[f]].push_back(batch_.features[f]);
    }
    return demands;
  }

  void FetchAll(const std::map<int32_t, std::vector<Places>>& demands) {
    std::map<int64_t, size_t> by_size;
    for (const auto& [t, places] : demands) {
      const Table& table = version_.tables()[t];
      const auto [known, is_new] = by_size.emplace(table.record.row_bytes(), groups_.size());
      if (is_new) {
        groups_.emplace_back();
        groups_.back().row_bytes = table.record.row_bytes();
        groups_.back().cache = table.device_cache->get();
      }
      Group& group = groups_[known->second];
      group.demands.push_back({&table, t, places});
      FindUnique(&group.demands.back(), &group);
    }
    Plan();
    Send();
    for (size_t g = 0; g < groups_.size(); ++g) Fetch(g);
  }

  // The places of a table, each once; places in the batch become positions among them.
  void FindUnique(Demand* demand, Group* group) {
    int64_t capacity = 0;
    for (const Places& some : demand->places) capacity += some.size;
    int64_t* places = arena_->Take<int64_t>(capacity);
    for (const Places& some : demand->places) {
      for (int64_t i = 0; i < some.size; ++i) {
        if (some.data[i] != kNoPlace) places[demand->num_ids++] = some.data[i];
      }
    }
    demand->unique = arena_->Take<int64_t>(demand->num_ids);
    demand->counts = arena_->Take<int64_t>(demand->num_ids);
    int64_t* inverse = arena_->Take<int64_t>(demand->num_ids);
    Check(rh_unique(places, demand->num_ids, demand->unique, inverse, demand->counts, &demand->num_unique, &executor_));
    for (const Places& some : demand->places) {
      for (int64_t i = 0; i < some.size; ++i) {
        if (some.data[i] != kNoPlace) some.data[i] = *inverse++;
      }
    }
    demand->first_row = group->num_rows;
    group->num_rows += demand->num_unique;
    reports_[demand->number].num_unique = demand->num_unique;
  }

  int64_t num_offsets() const { return lookup_.num_features * lookup_.batch_size + 1; }
  bool uploads_weights() const { return lookup_.weights != nullptr && !batch_.weights_on_device; }

  Upload CutUpload(Pieces* pieces) const {
    Upload upload;
    upload.ids = pieces->Take<int64_t>(lookup_.num_ids);
    if (lookup_.offsets != nullptr) upload.offsets = pieces->Take<int64_t>(num_offsets());
    if (uploads_weights()) upload.weights = pieces->Take<float>(lookup_.num_ids);
    for (const Group& group : groups_) upload.keys.push_back(pieces->Take<uint64_t>(group.num_rows));
    return upload;
  }

  // Cuts the memory of both sides; without memory, to know how much is needed. What is sent lies first on both.
  void Cut(Pieces* device, Pieces* host) {
    sent_ = CutUpload(device);
    kept_ = CutUpload(host);
    upload_bytes_ = host->used();
    for (Group& group : groups_) {
      Check(rh_row_cache_fetch_workspace_cuda(group.cache.get(), group.num_rows, &group.workspace_bytes,
                                              &group.fetched_bytes));
      group.rows = device->Take<char>(group.num_rows * group.row_bytes);
      group.workspace = device->Take<char>(group.workspace_bytes);
      group.fetched = host->Take<char>(group.fetched_bytes);
    }
    workspace_ = device->Take<char>(workspace_bytes_);
  }

  void Plan() {
    for (const Table& table : version_.tables()) {
      tables_.push_back(MemoryTable(table.record.type, table.record.dim));
      tables_.back().rows = nullptr;
      tables_.back().num_rows = 0;
    }
    lookup_.tables = tables_.data();
    lookup_.ids = batch_.places;
    lookup_.id_type = RH_INT64;
    Check(rh_pooled_lookup_workspace_cuda(&lookup_, &workspace_bytes_));
    Pieces device(nullptr), host(nullptr);
    Cut(&device, &host);
    scratch_ = version_.device()->Borrow(stream_);
    scratch_->Begin(device.used(), host.used());
    Pieces device_memory(scratch_->device()), host_memory(scratch_->host());
    Cut(&device_memory, &host_memory);
  }

  void Send() {
    std::copy_n(batch_.places, lookup_.num_ids, kept_.ids);
    if (lookup_.offsets != nullptr) {
      std::copy_n(lookup_.offsets, num_offsets(), kept_.offsets);
    }
    if (uploads_weights()) std::copy_n(lookup_.weights, lookup_.num_ids, kept_.weights);
    for (size_t g = 0; g < groups_.size(); ++g) {
      uint64_t* key = kept_.keys[g];
      for (const Demand& demand : groups_[g].demands) {
        for (int64_t i = 0; i < demand.num_unique; ++i) {
          const int64_t place = demand.unique[i];
          *key++ = KeyOf(demand.table->file_numbers[FileOf(place)], place);
        }
      }
    }
    CopyToDevice(scratch_->device(), scratch_->host(), upload_bytes_, stream_);
  }

  void Fetch(size_t g) {
    const Group& group = groups_[g];
    for (const Demand& demand : group.demands) reports_[demand.number].num_on_device = demand.num_ids;
    if (group.num_rows == 0) return;
    const auto begin = Clock::now();
    reading_ = {};
    is_complete_ = 1;
    Context context = {this, g};
    rh_row_fetch fetch = {};
    fetch.keys = sent_.keys[g];
    fetch.n = group.num_rows;
    fetch.rows = group.rows;
    fetch.read = ReadMissing;
    fetch.context = &context;
    fetch.host_memory = group.fetched;
    fetch.host_bytes = group.fetched_bytes;
    fetch.is_complete = &is_complete_;
    Check(rh_row_cache_fetch_cuda(group.cache.get(), &fetch, group.workspace, group.workspace_bytes, stream_));
    device_time_ += Clock::now() - begin - reading_;
    memory_time_ += reading_;
  }

  struct Context {
    DeviceCall* call;
    size_t group;
  };

  static int ReadMissing(void* context, const uint64_t* keys, int64_t n, void* rows) {
    const Context& from = *static_cast<const Context*>(context);
    return Guard([&] {
      const auto begin = Clock::now();
      from.call->Read(from.group, keys, n, static_cast<char*>(rows));
      from.call->reading_ = Clock::now() - begin;
    });
  }

  // Rows of a table that the cache lacks.
  struct Missing {
    const Demand* demand;
    int64_t first;        // the position of its first key among the missing ones
    int64_t n;            // these follow each other
    int64_t* places;      // [n]
    int64_t* counts;      // [n] ids of each
    rh_table found = {};  // where they lie on the host; places are then row numbers of it
  };

  // Reads the rows of keys, which stand in the group's order, to `rows`.
  void Read(size_t g, const uint64_t* keys, int64_t n, char* rows) {
    const int64_t row_bytes = groups_[g].row_bytes;
    std::vector<Missing> missing = FindMissing(g, keys, n);
    LocateMapped(&missing);
    LocateInTier(&missing);
    for (const Missing& some : missing) {
      const intptr_t from = reinterpret_cast<intptr_t>(some.found.rows);
      char* to = rows + some.first * row_bytes;
      ParallelFor(&executor_, some.n, kCyclesPerRow, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const void* row = reinterpret_cast<const void*>(from + some.places[i] * row_bytes);
          std::memcpy(to + i * row_bytes, row, row_bytes);
        }
      });
    }
  }

  std::vector<Missing> FindMissing(size_t g, const uint64_t* keys, int64_t n) {
    std::vector<Missing> missing;
    int64_t next = 0;
    for (const Demand& demand : groups_[g].demands) {
      Missing some = {&demand, next, 0, nullptr, nullptr, {}};
      const int64_t most = std::min(n - next, demand.num_unique);
      some.places = arena_->Take<int64_t>(most);
      some.counts = arena_->Take<int64_t>(most);
      for (int64_t i = 0; i < demand.num_unique && next < n; ++i) {
        if (kept_.keys[g][demand.first_row + i] != keys[next]) continue;
        some.places[some.n] = demand.unique[i];
        some.counts[some.n++] = demand.counts[i];
        reports_[demand.number].num_on_device -= demand.counts[i];
        ++next;
      }
      if (some.n > 0) missing.push_back(some);
    }
    return missing;
  }

  void LocateMapped(std::vector<Missing>* missing) {
    std::vector<const char*> pages;
    for (Missing& some : *missing) {
      const Table& table = *some.demand->table;
      if (table.remote != nullptr) continue;
      SourceReport report;
      some.found = table.source->Locate({{some.places, some.n}}, arena_, &report);
      pages.insert(pages.end(), report.pages.begin(), report.pages.end());
    }
    AskForPages(pages, &executor_);
  }

  void LocateInTier(std::vector<Missing>* missing) {
    std::vector<RemoteDemand> demands;
    std::vector<Missing*> asked;
    for (Missing& some : *missing) {
      const Demand& demand = *some.demand;
      if (demand.table->remote == nullptr) continue;
      demands.push_back({demand.table->remote.get(), demand.number, {{some.places, some.n}}, {}, {}, some.counts});
      asked.push_back(&some);
    }
    if (demands.empty()) return;
    const RemoteTimes times = LocateRemote(&demands, arena_, batch_.since);
    remote_times_ = remote_times_ ? *remote_times_ + times : times;
    for (size_t i = 0; i < demands.size(); ++i) {
      asked[i]->found = demands[i].found;
      SourceReport& report = reports_[demands[i].table];
      report.num_cached = demands[i].report.num_cached;
      report.num_remote = demands[i].report.num_remote;
      report.num_default = demands[i].report.num_default;
      if (report.num_default > 0) is_complete_ = 0;
    }
  }

  void Pool(const rh_feature_rows* out) {
    for (const Group& group : groups_) {
      for (const Demand& demand : group.demands) {
        tables_[demand.number].rows = group.rows + demand.first_row * group.row_bytes;
        tables_[demand.number].num_rows = demand.num_unique;
      }
    }
    lookup_.ids = sent_.ids;
    if (lookup_.offsets != nullptr) lookup_.offsets = sent_.offsets;
    if (uploads_weights()) lookup_.weights = sent_.weights;
    Check(rh_pooled_lookup_cuda(&lookup_, out, workspace_, workspace_bytes_, stream_));
  }

  // Once for a lookup, whatever number of groups it has.
  void CountTimes() const {
    VersionMetrics& metrics = version_.metrics();
    metrics.AddTime(kDeviceTime, device_time_);
    if (memory_time_.count() > 0) metrics.AddTime(kMemoryTime, memory_time_);
    if (remote_times_) remote_times_->AddTo(&metrics);
  }

  const Version& version_;
  PlacedBatch batch_;
  rh_lookup lookup_;
  Arena* const arena_;
  const rh_executor executor_;
  void* const stream_;
  std::vector<SourceReport> reports_;  // [T]
  std::vector<Group> groups_;
  std::vector<rh_table> tables_;  // [T]
  DeviceTier::ScratchLease scratch_;
  Upload kept_, sent_;  // on the host and on the device
  int64_t upload_bytes_ = 0;
  char* workspace_ = nullptr;  // of the pooled lookup
  int64_t workspace_bytes_ = 0;
  int32_t is_complete_ = 1;                // of the fetch: no default row stands in
  std::chrono::nanoseconds reading_ = {};  // what the fetch spent on the host

  // Of all groups.
  std::chrono::nanoseconds device_time_ = {};
  std::chrono::nanoseconds memory_time_ = {};  // 0: the cache had all rows
  std::optional<RemoteTimes> remote_times_;    // none: no tier was asked, and nor was its cache
};

}  // namespace

void BringToHost(const Version& version, rh_engine_batch* batch, Arena* arena, void* stream) {
  Require(batch->memory == RH_HOST_MEMORY || batch->memory == RH_DEVICE_MEMORY, "memory is ", batch->memory,
          ": expected 0 (of the host) or 1 (of the device)");
  if (batch->memory == RH_HOST_MEMORY) return;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  Require(0 <= batch->num_ids && batch->num_ids <= kMost && 0 <= batch->batch_size && batch->batch_size <= kMost,
          "there are ", batch->num_ids, " ids and ", batch->batch_size, " samples: expected 0 to 2^31 - 1 of each");
  const int64_t num_bags = static_cast<int64_t>(version.feature_tables().size()) * batch->batch_size;
  const auto bring = [&](const void* array, int64_t bytes) {
    if (array == nullptr) return static_cast<char*>(nullptr);
    char* copy = arena->Take<char>(bytes);
    CopyFromDevice(copy, array, bytes, stream);
    return copy;
  };
  CheckIdType(*batch);
  const int64_t id_bytes = batch->id_type == RH_INT32 ? sizeof(int32_t) : sizeof(int64_t);
  batch->ids = bring(batch->ids, batch->num_ids * id_bytes);
  batch->offsets = reinterpret_cast<int64_t*>(bring(batch->offsets, (num_bags + 1) * int64_t{sizeof(int64_t)}));
  batch->lengths = reinterpret_cast<int32_t*>(bring(batch->lengths, num_bags * int64_t{sizeof(int32_t)}));
}

std::vector<SourceReport> PoolOnDevice(const Version& version, PlacedBatch batch, const rh_feature_rows* out,
                                       Arena* arena, const rh_executor& executor, void* stream) {
  return DeviceCall(version, std::move(batch), arena, executor, stream).Run(out);
}

void WarmDevice(const Version& version, const std::vector<std::vector<int64_t>>& places) {
  const CurrentDevice current(version.device()->device());
  rh_executor executor = {};
  executor.num_threads = 1;  // beside the lookups of others
  for (size_t t = 0; t < places.size(); ++t) {
    std::vector<int64_t> own = places[t];
    const int64_t n = static_cast<int64_t>(own.size());
    for (int64_t begin = 0; begin < n; begin += kWarmedAtOnce) {
      const ThreadArena arena;
      PlacedBatch batch = {};
      batch.since = Clock::now();
      DeviceCall call(version, std::move(batch), arena.get(), executor, ThreadStream());
      try {
        call.Keep(static_cast<int32_t>(t), {own.data() + begin, std::min(n - begin, kWarmedAtOnce)});
      } catch (const Error& error) {
        if (error.status() == RH_TIER_FAILED) return;
        throw;
      }
    }
  }
}

}  // namespace rankhouse::engine

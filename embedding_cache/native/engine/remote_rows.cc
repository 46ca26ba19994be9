#include "engine/remote_rows.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/status.h"
#include "rankhouse/vocabulary.h"

namespace rankhouse::engine {
namespace {

// Opening a version may wait longer than a lookup.
constexpr std::chrono::seconds kOpenPatience{10};

// A file without rows, in memory: the bytes around the rows where they belong, and nothing between them.
class SparseFile {
 public:
  SparseFile(const FileRecord& record, int64_t rows_begin, const std::string& around)
      : descriptor_(memfd_create(record.sha256.c_str(), MFD_CLOEXEC)) {
    const int64_t behind = static_cast<int64_t>(around.size()) - rows_begin;
    const bool is_written = descriptor_ >= 0 && ftruncate(descriptor_, record.bytes) == 0 &&
                            pwrite(descriptor_, around.data(), rows_begin, 0) == rows_begin &&
                            pwrite(descriptor_, around.data() + rows_begin, behind, record.bytes - behind) == behind;
    if (is_written) return;
    const int fault = errno;
    if (descriptor_ >= 0) close(descriptor_);
    throw Error(RH_OUT_OF_MEMORY,
                StrCat("no memory for the description of file ", record.sha256, " (", std::strerror(fault), ")"));
  }
  ~SparseFile() { close(descriptor_); }
  SparseFile(const SparseFile&) = delete;
  SparseFile& operator=(const SparseFile&) = delete;

  std::string path() const { return StrCat("/proc/self/fd/", descriptor_); }

 private:
  const int descriptor_;
};

}  // namespace

RemoteFile::RemoteFile(RowTier* tier, const FileRecord& record, int64_t row_bytes, int64_t num_rows, int64_t number,
                       Deadline deadline)
    : number_(number), rows_(tier->Open(record.sha256, record.bytes, row_bytes, num_rows, deadline)) {
  const SparseFile file(record, rows_->rows_begin(), rows_->ReadAround(deadline));
  description_ = std::make_unique<RowFile>(file.path(), record, number, MemoryKind::kMap);
}

void RemoteTier::Check(const std::string& version, const std::string& manifest_sha256) {
  const std::string found = tier_->ManifestOf(version, Now() + kOpenPatience);
  if (found != manifest_sha256) {
    throw TierError(StrCat("version ", version, " in the tier is of another manifest (", found, ") than the store's (",
                           manifest_sha256, "): push it from this store"));
  }
}

std::shared_ptr<RemoteFile> RemoteTier::Open(const FileRecord& record, int64_t row_bytes, int64_t num_rows) {
  const std::lock_guard<std::mutex> opening(opening_);
  std::weak_ptr<RemoteFile>& known = files_[record.sha256];
  if (std::shared_ptr<RemoteFile> file = known.lock()) return file;
  // Numbers are not given again, as the cache may have rows of files that are closed.
  if (next_number_ == kMostFiles) throw Error(RH_INTERNAL, "this engine has opened 2^24 files: make a new one");
  const auto file =
      std::make_shared<RemoteFile>(tier_.get(), record, row_bytes, num_rows, next_number_, Now() + kOpenPatience);
  ++next_number_;
  known = file;
  return file;
}

RemoteTier::RemoteTier(std::unique_ptr<RowTier> tier, const Options& options)
    : tier_(std::move(tier)),
      options_(options),
      caches_(options.cache_bytes, [policy = options.policy](int64_t bytes, int64_t row_bytes) {
        return std::make_shared<cache::RowCache>(bytes, row_bytes, policy);
      }) {}

std::optional<std::chrono::nanoseconds> RemoteTier::Read(const std::vector<RowRequest>& requests, Deadline since) {
  const Deadline begin = Now(), deadline = since + options_.deadline;
  if (begin >= deadline) {
    // Not the tier's failure: it is not asked.
    if (options_.uses_default_row) return std::nullopt;
    throw TierError(StrCat("rows that are not in the cache were not asked for: the ", options_.deadline.count(),
                           " ms that the tier may take were over before, for others of the same batch"));
  }
  try {
    tier_->Read(requests, deadline);
  } catch (const TierError&) {
    ++num_failures_;
    if (!options_.uses_default_row) throw;
  }
  return Now() - begin;
}

void RemoteTier::ReadRow(const RemoteFile& file, int64_t row, char* out) {
  bool arrived = false;
  tier_->Read({{&file.rows(), &row, 1, reinterpret_cast<std::byte*>(out), &arrived}}, Now() + kOpenPatience);
}

CacheTotals RemoteTier::cache_totals() {
  CacheTotals totals;
  caches_.ForEach([&](const cache::RowCache& cache) {
    const cache::CacheStats stats = cache.stats();
    totals.bytes += stats.bytes;
    totals.num_evicted += stats.evicted;
  });
  return totals;
}

RemoteRows::RemoteRows(const TableRecord& table, std::vector<std::shared_ptr<RemoteFile>> files,
                       std::shared_ptr<RemoteTier> tier, HostCaches::Slot cache, std::string default_row)
    : shape_(MemoryTable(table.type, table.dim)),
      row_bytes_(table.row_bytes()),
      tier_(std::move(tier)),
      files_(std::move(files)),
      cache_(std::move(cache)),
      default_row_(std::move(default_row)) {}

// One demand on its way.
class RemoteLookup {
 public:
  // Finds what the cache has.
  RemoteLookup(RemoteDemand* demand, Arena* arena)
      : demand_(*demand), rows_(*demand->rows), cache_(rows_.cache_->get()) {
    int64_t capacity = 0;
    for (const Places& some : demand_.places) capacity += some.size;
    int64_t* places = arena->Take<int64_t>(capacity);
    int64_t n = 0;
    for (const Places& some : demand_.places) {
      for (int64_t i = 0; i < some.size; ++i) {
        if (some.data[i] != kNoPlace) places[n++] = some.data[i];
      }
    }
    unique_ = arena->Take<int64_t>(n);
    inverse_ = arena->Take<int64_t>(n);
    counts_ = arena->Take<int64_t>(n);
    rh_executor alone = {};
    alone.num_threads = 1;
    alone.scratch = arena->kernels();
    if (rh_unique(places, n, unique_, inverse_, counts_, &num_unique_, &alone) != RH_OK) {
      throw Error(RH_INTERNAL, rh_last_error());
    }
    if (demand_.num_ids != nullptr) CountIds(n);
    keys_ = arena->Take<uint64_t>(num_unique_);
    for (int64_t i = 0; i < num_unique_; ++i) {
      keys_[i] = KeyOf(rows_.files_[FileOf(unique_[i])]->number(), unique_[i]);
    }
    found_ = arena->Take<std::byte>(num_unique_ * rows_.row_bytes_);
    missing_ = arena->Take<int32_t>(num_unique_);
    num_missing_ = cache_->Find(keys_, num_unique_, found_, missing_);
    wanted_ = arena->Take<int64_t>(num_missing_);
    asked_keys_ = arena->Take<uint64_t>(num_missing_);
    arrived_ = arena->Take<bool>(num_missing_);
    came_ = arena->Take<std::byte>(num_missing_ * rows_.row_bytes_);
  }

  // Asks for the others: places are sorted, so those of a file stand together.
  void Ask(std::vector<RowRequest>* requests) {
    for (int64_t i = 0; i < num_missing_; ++i) {
      const int64_t place = unique_[missing_[i]];
      const StoredRows* file = &rows_.files_[FileOf(place)]->rows();
      wanted_[i] = RowOf(place);
      arrived_[i] = false;
      if (i == 0 || requests->back().file != file) {
        requests->push_back({file, wanted_ + i, 0, came_ + i * rows_.row_bytes_, arrived_ + i});
      }
      ++requests->back().n;
    }
  }

  // Puts rows that arrived into the cache, those that follow each other at once.
  void Keep() {
    for (int64_t i = 0; i < num_missing_; ++i) asked_keys_[i] = keys_[missing_[i]];
    for (int64_t begin = 0, end = 0; begin < num_missing_; begin = end + 1) {
      end = std::find(arrived_ + begin, arrived_ + num_missing_, false) - arrived_;
      if (end > begin) cache_->Insert(asked_keys_ + begin, end - begin, came_ + begin * rows_.row_bytes_);
    }
  }

  // Puts rows that arrived into place, and the default row where none did.
  void Take() {
    const int64_t row_bytes = rows_.row_bytes_;
    for (int64_t i = 0; i < num_missing_; ++i) {
      const std::byte* row =
          arrived_[i] ? came_ + i * row_bytes : reinterpret_cast<const std::byte*>(rows_.default_row_.data());
      std::memcpy(found_ + missing_[i] * row_bytes, row, row_bytes);
    }
    Report();
    int64_t n = 0;
    for (const Places& some : demand_.places) {
      for (int64_t i = 0; i < some.size; ++i) {
        if (some.data[i] != kNoPlace) some.data[i] = inverse_[n++];
      }
    }
    demand_.found = rows_.shape_;
    demand_.found.rows = found_;
    demand_.found.num_rows = num_unique_;
  }

 private:
  // Where a place stands for several ids.
  void CountIds(int64_t n) {
    std::fill_n(counts_, num_unique_, 0);
    for (int64_t i = 0; i < n; ++i) counts_[inverse_[i]] += demand_.num_ids[i];
  }

  void Report() {
    int64_t num_ids = 0, num_asked = 0, num_default = 0;
    for (int64_t i = 0; i < num_unique_; ++i) num_ids += counts_[i];
    for (int64_t i = 0; i < num_missing_; ++i) {
      (arrived_[i] ? num_asked : num_default) += counts_[missing_[i]];
    }
    demand_.report = {num_unique_, num_ids - num_asked - num_default, num_asked, num_default};
  }

  RemoteDemand& demand_;
  const RemoteRows& rows_;
  const std::shared_ptr<cache::RowCache> cache_;
  int64_t num_unique_ = 0, num_missing_ = 0;
  int64_t* unique_;       // [U] places
  int64_t* inverse_;      // of each id that has a place
  int64_t* counts_;       // [U]
  uint64_t* keys_;        // [U]
  std::byte* found_;      // [U] rows
  int32_t* missing_;      // positions in unique_ of those that the cache does not have
  int64_t* wanted_;       // of these: the row in its file
  uint64_t* asked_keys_;  // ... its key
  bool* arrived_;         // ... whether it came
  std::byte* came_;       // ... and what came
};

RemoteTimes LocateRemote(std::vector<RemoteDemand>* demands, Arena* arena, Deadline since) {
  RemoteTimes times;
  const auto begin = std::chrono::steady_clock::now();
  std::vector<RemoteLookup> lookups;
  std::vector<RowRequest> requests;
  lookups.reserve(demands->size());
  for (RemoteDemand& demand : *demands) {
    lookups.emplace_back(&demand, arena);
    lookups.back().Ask(&requests);
  }
  times.cache = std::chrono::steady_clock::now() - begin;
  const auto keep = [&] {
    for (RemoteLookup& lookup : lookups) lookup.Keep();
  };
  try {
    if (!requests.empty()) times.tier = demands->front().rows->tier_->Read(requests, since);
  } catch (const TierError&) {
    // A batch that is too large for one deadline gets further each time it is tried.
    keep();
    throw;
  }
  keep();
  for (RemoteLookup& lookup : lookups) lookup.Take();
  return times;
}

}  // namespace rankhouse::engine

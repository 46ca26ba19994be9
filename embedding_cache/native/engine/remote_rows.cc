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

// A cache is not larger than for so many times the rows of the version, each with what a cache keeps beside it.
constexpr int64_t kMostCopies = 4;
constexpr int64_t kBytesBesideRow = 24;

// A file's number has the bits of a cache's key that its rows leave.
constexpr int64_t kMostFiles = int64_t{1} << (64 - kRowBits);

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
  const std::lock_guard<std::mutex> lock(mutex_);
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

std::shared_ptr<cache::RowCache> RemoteTier::CacheOf(int64_t row_bytes, const Manifest& manifest) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (caches_.empty()) {
    std::map<int64_t, int64_t> num_rows;
    double all = 0;
    for (const TableRecord& table : manifest.tables) {
      num_rows[table.row_bytes()] += table.num_rows;
      all += static_cast<double>(table.num_rows * table.row_bytes());
    }
    for (const auto& [size, count] : num_rows) {
      const auto share = static_cast<int64_t>(static_cast<double>(options_.cache_bytes) * (count * size / all));
      const int64_t most = kMostCopies * count * (size + kBytesBesideRow);
      caches_[size] = std::make_shared<cache::RowCache>(std::min(share, most), size, options_.policy);
    }
  }
  std::shared_ptr<cache::RowCache>& cache = caches_[row_bytes];
  if (cache == nullptr) cache = std::make_shared<cache::RowCache>(0, row_bytes, options_.policy);
  return cache;
}

void RemoteTier::Read(const std::vector<RowRequest>& requests, Deadline since) {
  const Deadline begin = Now(), deadline = since + options_.deadline;
  if (begin >= deadline) {
    // Not the tier's failure: it is not asked.
    if (options_.uses_default_row) return;
    throw TierError(StrCat("rows that are not in the cache were not asked for: the ", options_.deadline.count(),
                           " ms that the tier may take were over before, for others of the same batch"));
  }
  try {
    tier_->Read(requests, deadline);
  } catch (const TierError&) {
    ++num_failures_;
    if (!options_.uses_default_row) throw;
  }
  const std::chrono::nanoseconds duration = Now() - begin;
  const double seconds = duration.count() * 1e-9;
  ++latencies_[std::lower_bound(kLatencyBounds.begin(), kLatencyBounds.end(), seconds) - kLatencyBounds.begin()];
  nanoseconds_ += duration.count();
}

void RemoteTier::ReadRow(const RemoteFile& file, int64_t row, char* out) {
  bool arrived = false;
  tier_->Read({{&file.rows(), &row, 1, reinterpret_cast<std::byte*>(out), &arrived}}, Now() + kOpenPatience);
}

void RemoteTier::AppendMetrics(MetricsText* text) {
  int64_t bytes = 0, num_evicted = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [size, cache] : caches_) {
      bytes += cache->stats().bytes;
      num_evicted += cache->stats().evicted;
    }
  }
  text->Add(Label("tier", "cache"), static_cast<double>(bytes));  // of rankhouse_embedding_bytes
  text->Begin("rankhouse_embedding_evictions_total", "counter", "Rows that made way for others in caches.");
  text->Add("", static_cast<double>(num_evicted));
  text->Begin("rankhouse_embedding_tier_failures_total", "counter", "Batches whose rows a tier did not give in time.");
  text->Add(Label("tier", "redis"), static_cast<double>(num_failures_));
  AppendLatencies(text);
}

void RemoteTier::AppendLatencies(MetricsText* text) const {
  text->Begin("rankhouse_embedding_tier_seconds", "histogram",
              "Time of a batch's read of a tier, all tables together.");
  const std::string tier = Label("tier", "redis");
  int64_t count = 0;
  for (size_t bucket = 0; bucket < latencies_.size(); ++bucket) {
    count += latencies_[bucket];
    text->Add(tier + "," + BoundLabel(bucket), static_cast<double>(count), "_bucket");
  }
  text->Add(tier, static_cast<double>(nanoseconds_) * 1e-9, "_sum");
  text->Add(tier, static_cast<double>(count), "_count");
}

RemoteRows::RemoteRows(const TableRecord& table, std::vector<std::shared_ptr<RemoteFile>> files,
                       std::shared_ptr<RemoteTier> tier, std::shared_ptr<cache::RowCache> cache,
                       std::string default_row)
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
  RemoteLookup(RemoteDemand* demand, Arena* arena) : demand_(*demand), rows_(*demand->rows) {
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
    keys_ = arena->Take<uint64_t>(num_unique_);
    for (int64_t i = 0; i < num_unique_; ++i) keys_[i] = KeyOf(unique_[i]);
    found_ = arena->Take<std::byte>(num_unique_ * rows_.row_bytes_);
    missing_ = arena->Take<int32_t>(num_unique_);
    num_missing_ = rows_.cache_->Find(keys_, num_unique_, found_, missing_);
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
      if (end > begin) rows_.cache_->Insert(asked_keys_ + begin, end - begin, came_ + begin * rows_.row_bytes_);
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
  // The cache's key of a row: versions that share the file share it.
  uint64_t KeyOf(int64_t place) const {
    return static_cast<uint64_t>(rows_.files_[FileOf(place)]->number()) << kRowBits | RowOf(place);
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

void LocateRemote(std::vector<RemoteDemand>* demands, Arena* arena, Deadline since) {
  std::vector<RemoteLookup> lookups;
  std::vector<RowRequest> requests;
  lookups.reserve(demands->size());
  for (RemoteDemand& demand : *demands) {
    lookups.emplace_back(&demand, arena);
    lookups.back().Ask(&requests);
  }
  const auto keep = [&] {
    for (RemoteLookup& lookup : lookups) lookup.Keep();
  };
  try {
    if (!requests.empty()) demands->front().rows->tier_->Read(requests, since);
  } catch (const TierError&) {
    // A batch that is too large for one deadline gets further each time it is tried.
    keep();
    throw;
  }
  keep();
  for (RemoteLookup& lookup : lookups) lookup.Take();
}

}  // namespace rankhouse::engine

// Lookups of an open version.
//
//   1. Bags: offsets from lengths, and where the ids of each feature lie.
//   2. Ids of tables that are not direct become places (RowIndex), then row numbers (RowSource). Where all tables are
//      direct there is no such step, and no id is copied.
//   3. Pages of mapped files that may not be in memory are asked for, all at once (AskedPages).
//   4. One call of rh_pooled_lookup for all tables.
//
// On a GPU ids of all tables become places, and device_lookup.cc does the rest.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "cpu/parallel.h"
#include "engine/arena.h"
#include "engine/batch.h"
#include "engine/device_lookup.h"
#include "engine/version.h"

namespace rankhouse::engine {
namespace {

constexpr int64_t kCyclesPerId = 15;  // about what it takes to resolve one

// Ids of one table that are no rows of it.
struct UnknownIds {
  std::atomic<int64_t> count{0};
  std::atomic<int64_t> first{std::numeric_limits<int64_t>::max()};  // the lowest position among all ids

  void Add(int64_t number, int64_t position) {
    count.fetch_add(number, std::memory_order_relaxed);
    int64_t seen = first.load(std::memory_order_relaxed);
    while (position < seen && !first.compare_exchange_weak(seen, position, std::memory_order_relaxed)) {
    }
  }
};

// A feature as messages name it: "feature 'C3'"; what a gather looks up has no name. It becomes text only in a message.
struct FeatureName {
  const std::string* name;  // or NULL

  friend std::ostream& operator<<(std::ostream& text, const FeatureName& feature) {
    return feature.name == nullptr ? text << "the batch" : text << "feature '" << *feature.name << "'";
  }
};

// Positions of the ids of one feature in the batch.
struct Span {
  int64_t begin;
  int64_t end;
};

struct Began {
  std::chrono::steady_clock::time_point lookup;
  Deadline work;  // that the lookup is a part of: the time that a tier may take counts from there
};

class Call {
 public:
  // `lookup` has no tables yet.
  Call(const Version& version, const rh_lookup& lookup, const rh_executor* executor, Arena* arena, const Began& began)
      : version_(version), lookup_(lookup), arena_(arena), began_(began), unknown_(version.tables().size()) {
    if (executor != nullptr) executor_ = *executor;
    if (executor == nullptr) executor_.num_threads = version.options().num_threads;
    if (executor_.scratch == nullptr) executor_.scratch = arena->kernels();
    lookup_.tables = version.direct_tables().data();
    lookup_.num_tables = static_cast<int32_t>(version.tables().size());
  }

  void Run(const rh_feature_rows* out, rh_engine_answer* answer) {
    const bool is_sampled = version_.metrics().IsSampled();
    const rh_lookup batch = lookup_;  // before ids are resolved
    FindSpans();
    bool resolves = false;
    for (int32_t f = 0; f < lookup_.num_features; ++f) resolves |= !version_.tables()[table_of(f)].is_direct;
    if (resolves) Resolve();
    if (resolves) Locate();
    TakeDirectPages();
    const auto read_begin = is_sampled ? Clock::now() : began_.lookup;
    AskForPages(pages_, &executor_);
    Pool(out);
    if (is_sampled) version_.metrics().AddTime(kMemoryTime, Clock::now() - read_begin);
    Count(answer);
    NoteHot(batch);
    version_.metrics().AddTime(kLookupTime, Clock::now() - began_.lookup);
    if (is_sampled) CountUnique(batch);
  }

  // The same on the GPU; `weights` says where those of the batch lie.
  void RunOnDevice(const rh_feature_rows* out, rh_engine_answer* answer, rh_memory weights, void* stream) {
    const rh_lookup batch = lookup_;
    resolves_all_ = true;
    FindSpans();
    CheckOffsets();
    Resolve();
    PlacedBatch placed = {lookup_, rows_, {}, weights == RH_DEVICE_MEMORY, began_.work};
    for (const Span& span : spans_) placed.features.push_back({rows_ + span.begin, span.end - span.begin});
    const std::vector<SourceReport> reports = PoolOnDevice(version_, std::move(placed), out, arena_, executor_, stream);
    for (size_t t = 0; t < reports.size(); ++t) Count(static_cast<int64_t>(t), reports[t]);
    Count(answer);
    NoteHot(batch);
    version_.metrics().AddTime(kLookupTime, Clock::now() - began_.lookup);
  }

 private:
  using Clock = std::chrono::steady_clock;

  int32_t table_of(int64_t feature) const { return lookup_.feature_tables[feature]; }

  int64_t id_at(int64_t position) const {
    return lookup_.id_type == RH_INT32 ? static_cast<const int32_t*>(lookup_.ids)[position]
                                       : static_cast<const int64_t*>(lookup_.ids)[position];
  }

  FeatureName NameOf(int64_t feature) const {
    const bool has_names = lookup_.feature_tables == version_.feature_tables().data();
    return {has_names ? &version_.manifest().features[feature].name : nullptr};
  }

  // The kernels check the same, but only once ids have been resolved by it.
  void FindSpans() {
    int64_t position = 0;
    spans_.reserve(lookup_.num_features);
    for (int64_t f = 0; f < lookup_.num_features; ++f) {
      Span span = {position, position};
      if (lookup_.offsets != nullptr) {
        span = {lookup_.offsets[f * lookup_.batch_size], lookup_.offsets[(f + 1) * lookup_.batch_size]};
        Require(span.begin == position && span.begin <= span.end && span.end <= lookup_.num_ids, "offsets of ",
                NameOf(f), " run from ", span.begin, " to ", span.end, ": expected ", position,
                " first, never to fall, and the number of ids, ", lookup_.num_ids, ", last");
      } else {
        const int64_t hotness = lookup_.hotness[f];
        Require(hotness >= 0 && hotness * lookup_.batch_size <= lookup_.num_ids - position, "hotness of ", NameOf(f),
                " is ", hotness, ": expected 0 or more, and for a batch size of ", lookup_.batch_size,
                " no more ids than there are, ", lookup_.num_ids);
        span.end += hotness * lookup_.batch_size;
      }
      spans_.push_back(span);
      position = span.end;
    }
    Require(position == lookup_.num_ids, "the bags hold ", position, " ids, there are ", lookup_.num_ids,
            ": expected as many");
  }

  // Refuses offsets that fall within a feature; on the CPU the kernels do.
  void CheckOffsets() const {
    if (lookup_.offsets == nullptr) return;
    const int64_t num_bags = lookup_.num_features * lookup_.batch_size;
    for (int64_t bag = 0; bag < num_bags; ++bag) {
      Require(lookup_.offsets[bag] <= lookup_.offsets[bag + 1], "offsets of ", NameOf(bag / lookup_.batch_size),
              " fall at sample ", bag % lookup_.batch_size, ", from ", lookup_.offsets[bag], " to ",
              lookup_.offsets[bag + 1], ": expected them never to");
    }
  }

  // Overwrites ids with places, those of direct tables only where all are resolved.
  void Resolve() {
    rows_ = arena_->Take<int64_t>(lookup_.num_ids);
    ParallelFor(&executor_, lookup_.num_ids, kCyclesPerId, [&](int64_t begin, int64_t end) {
      for (size_t f = 0; f < spans_.size(); ++f) {
        const Span part = {std::max(begin, spans_[f].begin), std::min(end, spans_[f].end)};
        if (part.begin >= part.end) continue;
        if (lookup_.id_type == RH_INT32) {
          ResolvePart(static_cast<const int32_t*>(lookup_.ids), table_of(f), part);
        } else {
          ResolvePart(static_cast<const int64_t*>(lookup_.ids), table_of(f), part);
        }
      }
    });
    CheckUnknown();
    lookup_.ids = rows_;
    lookup_.id_type = RH_INT64;
  }

  // Any thread calls it, each for ids of its own.
  template <typename Id>
  void ResolvePart(const Id* ids, int32_t t, Span part) {
    const Table& table = version_.tables()[t];
    if (table.is_direct && !resolves_all_) {
      std::copy(ids + part.begin, ids + part.end, rows_ + part.begin);
      return;
    }
    const auto num_rows = static_cast<uint64_t>(table.record.num_rows);
    uint64_t num_unknown = 0;
    for (int64_t i = part.begin; i < part.end; ++i) {
      rows_[i] = ids[i];
      num_unknown += static_cast<uint64_t>(rows_[i]) >= num_rows;
    }
    if (num_unknown > 0) ReplaceUnknown(t, part, static_cast<int64_t>(num_unknown));
    table.index->Resolve(rows_ + part.begin, part.end - part.begin);
  }

  void ReplaceUnknown(int32_t t, Span part, int64_t num_unknown) {
    const Table& table = version_.tables()[t];
    const auto is_unknown = [&](int64_t id) { return id < 0 || id >= table.record.num_rows; };
    const int64_t* const first = std::find_if(rows_ + part.begin, rows_ + part.end, is_unknown);
    unknown_[t].Add(num_unknown, first - rows_);
    for (int64_t i = first - rows_; i < part.end; ++i) {
      if (is_unknown(rows_[i])) rows_[i] = InsteadOf(table, rows_[i]);
    }
  }

  // The row that takes the place of an id that is none; -1: zeros.
  static int64_t InsteadOf(const Table& table, int64_t id) {
    switch (table.out_of_range) {
      case RH_CLIP:
        return id < 0 ? 0 : table.record.num_rows - 1;
      case RH_OOV_ROW:
        return kUnknownRow;
      default:
        return -1;
    }
  }

  void Locate() {
    tables_ = version_.direct_tables();
    std::vector<RemoteDemand> demands;
    std::vector<std::vector<Places>> all_places(tables_.size());
    for (size_t f = 0; f < spans_.size(); ++f) {
      const Span span = spans_[f];
      if (span.begin < span.end) all_places[table_of(f)].push_back({rows_ + span.begin, span.end - span.begin});
    }
    for (size_t t = 0; t < tables_.size(); ++t) {
      std::vector<Places>& places = all_places[t];
      if (version_.tables()[t].is_direct || places.empty()) continue;
      if (version_.tables()[t].remote != nullptr) {
        demands.push_back({version_.tables()[t].remote.get(), static_cast<int32_t>(t), std::move(places), {}, {}});
        continue;
      }
      SourceReport report;
      tables_[t] = version_.tables()[t].source->Locate(places, arena_, &report);
      Count(static_cast<int64_t>(t), report);
      pages_.insert(pages_.end(), report.pages.begin(), report.pages.end());
    }
    if (!demands.empty()) LocateRemote(&demands, arena_, began_.work).AddTo(&version_.metrics());
    for (const RemoteDemand& demand : demands) {
      tables_[demand.table] = demand.found;
      Count(demand.table, demand.report);
    }
    lookup_.tables = tables_.data();
  }

  void TakeDirectPages() {
    for (size_t f = 0; f < spans_.size(); ++f) {
      const Table& table = version_.tables()[table_of(f)];
      if (table.direct_pages == nullptr || !table.direct_pages->asks()) continue;
      const int64_t stride = table.record.row_bytes();
      const auto take = [&](const auto* ids) {
        table.direct_pages->TakeRows(ids + spans_[f].begin, spans_[f].end - spans_[f].begin, table.record.num_rows,
                                     stride, &pages_);
      };
      if (lookup_.id_type == RH_INT32) {
        take(static_cast<const int32_t*>(lookup_.ids));
      } else {
        take(static_cast<const int64_t*>(lookup_.ids));
      }
    }
  }

  void Pool(const rh_feature_rows* out) {
    rh_bad_ids* bad = arena_->Take<rh_bad_ids>(lookup_.num_tables);
    std::fill_n(bad, lookup_.num_tables, rh_bad_ids{});
    const int status = rh_pooled_lookup(&lookup_, out, bad, &executor_);
    for (int32_t t = 0; t < lookup_.num_tables; ++t) {
      // Row numbers of tables that are not direct have been checked already; removed rows are no unknown ids.
      if (!version_.tables()[t].is_direct || bad[t].count == 0) continue;
      unknown_[t].Add(bad[t].count, bag_begin(bad[t].feature, bad[t].sample) + bad[t].position);
    }
    if (status == RH_OUT_OF_RANGE) CheckUnknown();
    if (status != RH_OK) throw Error(status, rh_last_error());
  }

  int64_t bag_begin(int64_t feature, int64_t sample) const {
    return lookup_.offsets != nullptr ? lookup_.offsets[feature * lookup_.batch_size + sample]
                                      : spans_[feature].begin + sample * lookup_.hotness[feature];
  }

  // Refuses the first id that is unknown to a table with the policy RH_ERROR.
  void CheckUnknown() const {
    int64_t position = std::numeric_limits<int64_t>::max();
    for (size_t t = 0; t < unknown_.size(); ++t) {
      if (version_.tables()[t].out_of_range == RH_ERROR) {
        position = std::min(position, unknown_[t].first.load(std::memory_order_relaxed));
      }
    }
    if (position == std::numeric_limits<int64_t>::max()) return;
    int64_t f = 0;
    while (spans_[f].end <= position) ++f;
    int64_t sample = 0;
    if (lookup_.offsets != nullptr) {
      const int64_t* bags = lookup_.offsets + f * lookup_.batch_size;
      sample = std::upper_bound(bags, bags + lookup_.batch_size, position) - bags - 1;
    } else {
      sample = (position - spans_[f].begin) / lookup_.hotness[f];
    }
    const TableRecord& table = version_.tables()[table_of(f)].record;
    throw Error(RH_OUT_OF_RANGE, StrCat("id ", id_at(position), " of ", NameOf(f), " (sample ", sample, ", position ",
                                        position - bag_begin(f, sample), " in its bag) is out of range: table '",
                                        table.name, "' has ", table.num_rows, " rows"));
  }

  void Count(int64_t table, const SourceReport& report) {
    VersionMetrics& metrics = version_.metrics();
    metrics.Add(table, kUnique, report.num_unique);
    metrics.Add(table, kOnDevice, report.num_on_device);
    metrics.Add(table, kCached, report.num_cached);
    metrics.Add(table, kRemote, report.num_remote);
    metrics.Add(table, kDegraded, report.num_default);
    degraded_ |= report.num_default > 0;
  }

  void Count(rh_engine_answer* answer) {
    VersionMetrics& metrics = version_.metrics();
    int64_t num_unknown = 0;
    for (size_t f = 0; f < spans_.size(); ++f) metrics.Add(table_of(f), kIds, spans_[f].end - spans_[f].begin);
    for (size_t t = 0; t < unknown_.size(); ++t) {
      const int64_t count = unknown_[t].count.load(std::memory_order_relaxed);
      metrics.Add(static_cast<int64_t>(t), kUnknown, count);
      if (version_.tables()[t].out_of_range == RH_ZERO) metrics.Add(static_cast<int64_t>(t), kWithoutRow, count);
      num_unknown += count;
    }
    if (answer != nullptr) *answer = {num_unknown, degraded_};
  }

  // Of tables whose rows are in memory; others count at each lookup.
  void CountUnique(const rh_lookup& batch) {
    int64_t* ids = arena_->Take<int64_t>(batch.num_ids);
    int64_t* unique = arena_->Take<int64_t>(batch.num_ids);
    for (size_t t = 0; t < version_.tables().size(); ++t) {
      if (version_.tables()[t].remote != nullptr) continue;
      int64_t n = 0;
      for (size_t f = 0; f < spans_.size(); ++f) {
        if (table_of(f) != static_cast<int32_t>(t)) continue;
        for (int64_t i = spans_[f].begin; i < spans_[f].end; ++i) {
          ids[n++] = batch.id_type == RH_INT32 ? static_cast<const int32_t*>(batch.ids)[i]
                                               : static_cast<const int64_t*>(batch.ids)[i];
        }
      }
      int64_t num_unique = 0;
      const int status = rh_unique(ids, n, unique, nullptr, nullptr, &num_unique, &executor_);
      if (status != RH_OK) throw Error(status, rh_last_error());
      version_.metrics().Add(static_cast<int64_t>(t), kUnique, num_unique * VersionMetrics::kSampleEvery);
    }
  }

  void NoteHot(const rh_lookup& batch) {
    for (size_t f = 0; f < spans_.size(); ++f) {
      cache::HotTable* hot = version_.tables()[table_of(f)].hot.get();
      if (hot == nullptr) continue;
      const int64_t count = spans_[f].end - spans_[f].begin;
      if (batch.id_type == RH_INT32) {
        hot->Note(static_cast<const int32_t*>(batch.ids) + spans_[f].begin, count);
      } else {
        hot->Note(static_cast<const int64_t*>(batch.ids) + spans_[f].begin, count);
      }
    }
  }

  const Version& version_;
  rh_lookup lookup_;
  rh_executor executor_ = {};
  Arena* const arena_;
  const Began began_;
  std::vector<Span> spans_;          // [F]
  std::vector<UnknownIds> unknown_;  // [T]
  std::vector<rh_table> tables_;     // [T] where some are not direct
  int64_t* rows_ = nullptr;          // [N] what ids resolve to: places, then row numbers
  std::vector<const char*> pages_;   // to be asked for before rows are read
  bool resolves_all_ = false;        // ids of direct tables, too
  bool degraded_ = false;
};

Began BeganNow(int64_t started_ns) {
  const auto now = std::chrono::steady_clock::now();
  return {now, started_ns == 0 ? now : Deadline(std::chrono::nanoseconds(started_ns))};
}

}  // namespace

void LookUp(const Version& version, const rh_engine_batch& batch, const rh_feature_rows* out, rh_engine_answer* answer,
            const rh_executor* executor) {
  const Began began = BeganNow(batch.started_ns);
  Require(batch.memory == RH_HOST_MEMORY, "memory is ", batch.memory,
          ": expected 0 (of the host); arrays on a GPU are rh_engine_lookup_cuda's");
  const ThreadArena arena;
  Call(version, LookupOf(version, batch, arena.get()), executor, arena.get(), began).Run(out, answer);
}

void LookUpCuda(const Version& version, const rh_engine_batch& given, const rh_feature_rows* out,
                rh_engine_answer* answer, const rh_executor* executor, void* stream) {
  const Began began = BeganNow(given.started_ns);
  if (version.device() == nullptr) {
    throw Error(RH_UNSUPPORTED, "this engine has no GPU: create it with the option 'device', a GPU's number");
  }
  const CurrentDevice current(version.device()->device());
  const ThreadArena arena;
  rh_engine_batch batch = given;
  BringToHost(version, &batch, arena.get(), stream);
  Call(version, LookupOf(version, batch, arena.get()), executor, arena.get(), began)
      .RunOnDevice(out, answer, static_cast<rh_memory>(given.memory), stream);
}

void LookUpMatrix(const Version& version, const rh_engine_batch& batch, float* out, int64_t stride,
                  rh_engine_answer* answer, const rh_executor* executor) {
  std::vector<rh_feature_rows> columns;
  columns.reserve(version.manifest().features.size());
  int64_t width = 0;
  const int32_t* const combiners = batch.combiners != nullptr ? batch.combiners : version.combiners().data();
  for (const FeatureRecord& feature : version.manifest().features) {
    Require(combiners[columns.size()] != RH_NONE, "feature '", feature.name, "' has the combiner RH_NONE: expected ",
            "one that pools, as rows of a matrix are samples");
    columns.push_back({out == nullptr ? nullptr : out + feature.column_begin, stride});
    width += feature.dim;
  }
  Require(stride >= width, "stride is ", stride, ": expected at least the width of all features, ", width);
  LookUp(version, batch, columns.data(), answer, executor);
}

void Gather(const Version& version, int32_t table, const int64_t* ids, int64_t n, float* out, rh_engine_answer* answer,
            const rh_executor* executor) {
  if (table < 0 || table >= static_cast<int32_t>(version.tables().size())) {
    throw Error(RH_NOT_FOUND, StrCat("version ", version.name(), " has ", version.tables().size(),
                                     " tables: there is no table ", table));
  }
  const Began began = BeganNow(0);
  const ThreadArena arena;
  const int32_t sum = RH_SUM;
  const int32_t hotness = 1;
  const rh_feature_rows rows = {out, version.tables()[table].record.dim};
  rh_lookup lookup = {};
  lookup.feature_tables = &table;
  lookup.combiners = &sum;
  lookup.hotness = &hotness;
  lookup.num_features = 1;
  lookup.ids = ids;
  lookup.num_ids = lookup.batch_size = n;
  Require(0 <= n && n <= std::numeric_limits<int32_t>::max() && (n == 0 || (ids != nullptr && out != nullptr)),
          "there are ", n, " ids: expected 0 to 2^31 - 1, and neither ids nor out to be NULL");
  Call(version, lookup, executor, arena.get(), began).Run(&rows, answer);
}

}  // namespace rankhouse::engine

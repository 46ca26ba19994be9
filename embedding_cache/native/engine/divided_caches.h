// Memory of a fixed size, divided among caches of rows of several sizes.
#ifndef RANKHOUSE_ENGINE_DIVIDED_CACHES_H_
#define RANKHOUSE_ENGINE_DIVIDED_CACHES_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "engine/manifest.h"

namespace rankhouse::engine {

// The rows of each size, in bytes, that versions have had: as many as the first version with that size had, so that
// versions which follow each other change nothing.
using RowSizes = std::map<int64_t, int64_t>;

// Adds the sizes of a version's rows that are new. Returns whether any is.
bool AddRowSizes(const Manifest& manifest, RowSizes* sizes);

// The bytes of each size's cache, `bytes` at most together: in proportion to the bytes of its rows, and not more than
// these rows can fill several times.
std::map<int64_t, int64_t> SharesOf(const RowSizes& sizes, int64_t bytes);

// Of all caches of a tier.
struct CacheTotals {
  int64_t bytes = 0;
  int64_t num_evicted = 0;
};

// A cache that is replaced by one of another capacity. Any thread may call it.
template <typename Cache>
class CacheSlot {
 public:
  std::shared_ptr<Cache> get() const { return std::atomic_load(&cache_); }
  void set(std::shared_ptr<Cache> cache) { std::atomic_store(&cache_, std::move(cache)); }

 private:
  std::shared_ptr<Cache> cache_;
};

// Where a version brings rows of a size that none had before, all memory is divided anew: caches whose share changes
// begin empty then. Lookups in flight keep the caches that they use until they end. Any thread may call it.
template <typename Cache>
class DividedCaches {
 public:
  using Slot = std::shared_ptr<const CacheSlot<Cache>>;
  using Make = std::function<std::shared_ptr<Cache>(int64_t capacity_bytes, int64_t row_bytes)>;

  DividedCaches(int64_t bytes, Make make) : bytes_(bytes), make_(std::move(make)) {}

  // The cache of rows of a size that a version has. Throws what `make` throws; memory is divided as before then, and
  // the sizes count as new.
  Slot Of(int64_t row_bytes, const Manifest& manifest) {
    const std::lock_guard<std::mutex> lock(mutex_);
    RowSizes sizes = sizes_;
    if (AddRowSizes(manifest, &sizes)) {
      try {
        Divide(SharesOf(sizes, bytes_));
      } catch (...) {
        DivideAsBefore();
        throw;
      }
    }
    sizes_ = std::move(sizes);
    return slots_.at(row_bytes);
  }

  // Calls visit(cache) for each.
  template <typename Visit>
  void ForEach(Visit visit) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [row_bytes, slot] : slots_) visit(*slot->get());
  }

 private:
  // Empties first what changes, so that old and new caches do not take memory at once.
  void Divide(const std::map<int64_t, int64_t>& shares) {
    for (const auto& [row_bytes, share] : shares) {
      if (shares_[row_bytes] == share && slots_.count(row_bytes) > 0) continue;
      std::shared_ptr<Cache> empty = make_(0, row_bytes);  // first, so that no slot is ever without a cache
      std::shared_ptr<CacheSlot<Cache>>& slot = slots_[row_bytes];
      if (slot == nullptr) slot = std::make_shared<CacheSlot<Cache>>();
      slot->set(std::move(empty));
      shares_[row_bytes] = 0;
    }
    for (const auto& [row_bytes, share] : shares) {
      if (shares_[row_bytes] == share) continue;
      slots_[row_bytes]->set(make_(share, row_bytes));
      shares_[row_bytes] = share;
    }
  }

  // Gives the versions that are open the caches back that a failure has emptied.
  void DivideAsBefore() noexcept {
    try {
      std::map<int64_t, int64_t> shares = SharesOf(sizes_, bytes_);
      for (const auto& [row_bytes, slot] : slots_) shares.emplace(row_bytes, 0);
      Divide(shares);
    } catch (...) {  // Without room for them lookups go past caches, as where there are none.
    }
  }

  const int64_t bytes_;
  const Make make_;
  std::mutex mutex_;  // guards what follows
  RowSizes sizes_;
  std::map<int64_t, int64_t> shares_;  // of what is in the slots
  std::map<int64_t, std::shared_ptr<CacheSlot<Cache>>> slots_;
};

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_DIVIDED_CACHES_H_

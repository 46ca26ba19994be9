// Keeps what is hot from one process to the next: reads it when the engine is created, and writes it every minute and
// when the engine is destroyed.
#ifndef RANKHOUSE_ENGINE_HOT_ROW_KEEPER_H_
#define RANKHOUSE_ENGINE_HOT_ROW_KEEPER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "cache/hot_rows.h"

namespace rankhouse::engine {

struct HotRowCounters {
  std::atomic<int64_t> warmed{0};  // rows read before their version was opened
  std::atomic<int64_t> missed{0};  // rows that were to be, but that a tier did not give
  std::atomic<int64_t> saved{0};   // times
  std::atomic<int64_t> failed{0};  // saves that failed, as on a disk that is full; the next one tries again
};

// Any thread may call it.
class HotRowKeeper {
 public:
  // Throws Error where a file in the folder is damaged.
  explicit HotRowKeeper(std::string folder);
  ~HotRowKeeper();
  HotRowKeeper(const HotRowKeeper&) = delete;
  HotRowKeeper& operator=(const HotRowKeeper&) = delete;

  cache::HotRows& rows() { return rows_; }
  HotRowCounters& counters() { return counters_; }

 private:
  void KeepSaving();
  void Save() noexcept;

  const std::string folder_;
  cache::HotRows rows_;
  HotRowCounters counters_;
  std::mutex mutex_;  // guards ending_
  std::condition_variable end_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_HOT_ROW_KEEPER_H_

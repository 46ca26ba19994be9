#include "engine/hot_row_keeper.h"

#include <chrono>
#include <exception>
#include <utility>

namespace rankhouse::engine {
namespace {

constexpr std::chrono::seconds kBetweenSaves{60};

}  // namespace

HotRowKeeper::HotRowKeeper(std::string folder) : folder_(std::move(folder)) {
  rows_.Load(folder_);
  thread_ = std::thread([this] { KeepSaving(); });
}

HotRowKeeper::~HotRowKeeper() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  end_.notify_one();
  thread_.join();
  Save();
}

void HotRowKeeper::KeepSaving() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!end_.wait_for(lock, kBetweenSaves, [this] { return ending_; })) {
    lock.unlock();
    Save();
    lock.lock();
  }
}

void HotRowKeeper::Save() noexcept {
  try {
    rows_.Save(folder_);
    ++counters_.saved;
  } catch (const std::exception&) {
    ++counters_.failed;
  }
}

}  // namespace rankhouse::engine

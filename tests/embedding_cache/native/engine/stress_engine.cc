// Threads look up in versions that others open and close, in one engine. Arguments: the folder of the committed stores,
// and how many versions to open. What is hot is kept meanwhile, in a folder that is gone at the end.
#include <stdlib.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rankhouse/engine.h"

namespace {

constexpr const char* kNames[] = {"000001-ab01e749", "000002-233a39bb", "000003-b7a8a7ab"};
constexpr int kDim = 4;  // of table 0, whose first rows all versions have
constexpr int64_t kIds[] = {0, 1, 2, 3, 4, 5, 3, 2};
using Rows = float[8][kDim];

void Expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s; last error: %s\n", what, rh_last_error());
  std::abort();
}

using Version = std::shared_ptr<rh_engine_version>;  // whoever lets go last closes it

struct Shared {
  rh_engine* engine;
  std::string store;
  Rows expected[3];
  std::mutex mutex;  // guards what follows
  Version version;
  int number = 0;
  std::atomic<bool> stop{false};
};

Version Open(rh_engine* engine, const std::string& store, int number, int verify) {
  rh_engine_version* version = nullptr;
  Expect(rh_engine_open(engine, store.c_str(), kNames[number], verify, &version) == RH_OK, "open");
  return Version(version, rh_engine_close);
}

void LookUp(Shared* shared) {
  while (!shared->stop) {
    Rows rows;
    std::unique_lock<std::mutex> lock(shared->mutex);
    const Version version = shared->version;
    const int number = shared->number;
    lock.unlock();
    Expect(rh_engine_gather(version.get(), 0, kIds, 8, rows[0], nullptr, nullptr) == RH_OK, "gather");
    Expect(std::memcmp(rows, shared->expected[number], sizeof(rows)) == 0, "rows of another version");
  }
}

void ReadMetrics(Shared* shared) {
  std::vector<char> text(1 << 16);
  while (!shared->stop) {
    int64_t size = 0;
    Expect(rh_engine_metrics(shared->engine, text.data(), text.size(), &size) == RH_OK, "metrics");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  Shared shared;
  shared.store = std::string(argv[1]) + "/golden_chain";
  char hot_rows[] = "/tmp/hot_rows.XXXXXX";
  Expect(mkdtemp(hot_rows) != nullptr, "mkdtemp");
  const std::string options = std::string("{\"num_threads\": 1, \"hot_rows\": \"") + hot_rows + "\"}";
  Expect(rh_engine_create(options.c_str(), &shared.engine) == RH_OK, "create");
  for (int number = 0; number < 3; ++number) {
    const Version version = Open(shared.engine, shared.store, number, 1);
    float* rows = shared.expected[number][0];
    Expect(rh_engine_gather(version.get(), 0, kIds, 8, rows, nullptr, nullptr) == RH_OK, "gather");
  }
  shared.version = Open(shared.engine, shared.store, 0, 1);
  std::vector<std::thread> threads;
  for (int n = 0; n < 3; ++n) threads.emplace_back(LookUp, &shared);
  threads.emplace_back(ReadMetrics, &shared);
  for (int n = 0; n < std::atoi(argv[2]); ++n) {
    Version next = Open(shared.engine, shared.store, n % 3, n % 2);
    const std::lock_guard<std::mutex> lock(shared.mutex);
    shared.version.swap(next);
    shared.number = n % 3;
  }
  shared.stop = true;
  for (std::thread& thread : threads) thread.join();
  shared.version.reset();
  rh_engine_destroy(shared.engine);
  Expect(!std::filesystem::is_empty(hot_rows), "hot rows were kept");
  std::filesystem::remove_all(hot_rows);
  return 0;
}

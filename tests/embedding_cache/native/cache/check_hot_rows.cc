// Hot rows: what the sketch finds, keeps in files and forgets. Usage: check_hot_rows <empty folder>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <set>
#include <thread>

#include "cache/hot_rows.h"
#include "core/status.h"
#include "tests/kernels/expect.h"

namespace rankhouse::cache {

bool operator==(const HotRow& a, const HotRow& b) { return a.id == b.id && a.count == b.count; }

}  // namespace rankhouse::cache

namespace {

using rankhouse::cache::HotRow;
using rankhouse::cache::HotRowOptions;
using rankhouse::cache::HotRows;
using rankhouse::cache::HotTable;

// Ids 0 to num_ids - 1, falling in frequency as 1 / (id + 1)^1.05, times `factor` to tell them apart from their rank.
std::vector<int64_t> Zipf(int64_t count, int64_t num_ids, int64_t factor, int seed) {
  std::mt19937_64 random(seed);
  std::vector<double> weights(num_ids);
  for (int64_t i = 0; i < num_ids; ++i) weights[i] = std::pow(static_cast<double>(i + 1), -1.05);
  std::discrete_distribution<int64_t> rank(weights.begin(), weights.end());
  std::vector<int64_t> ids(count);
  for (int64_t& id : ids) id = rank(random) * factor;
  return ids;
}

// In calls of a batch's size.
void NoteAll(HotTable* table, const std::vector<int64_t>& ids) {
  constexpr size_t kBatch = 1000;
  for (size_t begin = 0; begin < ids.size(); begin += kBatch) {
    table->Note(ids.data() + begin, static_cast<int64_t>(std::min(kBatch, ids.size() - begin)));
  }
}

// How many of the true `k` hottest, 0 to (k - 1) * factor, are among the table's.
int64_t NumFound(HotTable* table, int64_t k, int64_t factor) {
  int64_t found = 0;
  for (const HotRow& row : table->Top(k)) found += row.id % factor == 0 && row.id / factor < k;
  return found;
}

template <typename Call>
bool Fails(Call call, const std::string& text) {
  try {
    call();
  } catch (const rankhouse::Error& error) {
    if (std::string(error.what()).find(text) != std::string::npos) return true;
    std::fprintf(stderr, "another error: %s\n", error.what());
  }
  return false;
}

int FindsTheHotIdsOfAZipfStream() {
  HotTable table({4096, 8, 1 << 20});
  NoteAll(&table, Zipf(2'000'000, 100'000, 977, 1));
  EXPECT(NumFound(&table, 100, 977) >= 90);
  const std::vector<HotRow> top = table.Top(1000);
  EXPECT(top.size() == 1000 && top[0].id == 0);
  EXPECT(std::is_sorted(top.begin(), top.end(), [](const HotRow& a, const HotRow& b) { return a.count > b.count; }));
  EXPECT(table.Top(1 << 20).size() <= 4096 && table.Top(0).empty());
  return 0;
}

int ForgetsWhatWasHot() {
  HotTable table({256, 1, 5000});
  NoteAll(&table, Zipf(50'000, 1000, 3, 2));
  NoteAll(&table, Zipf(50'000, 1000, 1'000'003, 3));
  EXPECT(NumFound(&table, 10, 1'000'003) >= 9);
  return 0;
}

int CountsAnyId() {
  HotTable table({64, 1, 1 << 20});
  const std::vector<int64_t> edges = {std::numeric_limits<int64_t>::min(), -1, 0, std::numeric_limits<int64_t>::max()};
  table.Note(edges.data(), 4);
  const int32_t again[] = {-1, 0, 0, 7};
  table.Note(again, 4);
  const std::vector<HotRow> expected = {{0, 3}, {-1, 2}, {edges[0], 1}, {7, 1}, {edges[3], 1}};
  EXPECT(table.Top(10) == expected);
  table.Note(edges.data(), 0);
  table.Add({{0, 10}, {5, 1}});
  EXPECT(table.Top(1)[0] == (HotRow{0, 13}));
  return 0;
}

int ComesBackFromFiles(const std::string& folder) {
  HotRows rows({1024, 1, 1 << 20});
  rows.Load(folder);
  NoteAll(rows.Table("ads", "user id").get(), Zipf(50'000, 5000, 1, 4));
  NoteAll(rows.Table("ads", "Länder/\"x\"").get(), {5, 5, 9});
  rows.Table("empty", "t");
  rows.Save(folder);
  rows.Save(folder);
  HotRows read({1024, 1, 1 << 20});
  read.Load(folder);
  const std::vector<HotRow> expected = {{5, 2}, {9, 1}};
  EXPECT(read.Table("ads", "Länder/\"x\"")->Top(10) == expected);
  EXPECT(read.Table("ads", "user id")->Top(2000) == rows.Table("ads", "user id")->Top(2000));
  EXPECT(read.Table("empty", "t")->Top(10).empty());
  return 0;
}

int RefusesWhatIsWrong(const std::string& folder) {
  EXPECT(Fails([] { HotTable({0, 1, 1}); }, "max_ids is 0: expected 1 to 2^32"));
  EXPECT(Fails([] { HotTable({1, 0, 1}); }, "sample_every is 0: expected >= 1"));
  EXPECT(Fails([] { HotTable({1, 1, 0}); }, "samples_per_halving is 0: expected 1 to 2^31"));
  EXPECT(Fails([] { HotTable({1, 1, 1}).Top(-1); }, "k is -1: expected >= 0"));
  EXPECT(Fails([] { HotRows().Table("a/b", "t"); }, "the model's name is \"a/b\""));
  const std::string broken = folder + "/broken.hot_rows.safetensors";
  std::ofstream(broken) << "no tensors";
  EXPECT(Fails([&] { HotRows().Load(folder); }, broken));
  std::filesystem::remove(broken);
  EXPECT(Fails([&] { HotRows().Load(folder + "/ads.hot_rows.safetensors"); }, "reading the folder"));
  EXPECT(Fails([&] { HotRows().Save(folder + "/ads.hot_rows.safetensors/x"); }, "making the folder"));
  return 0;
}

int ThreadsShareATable(const std::string& folder) {
  HotRows rows({512, 4, 1 << 16});
  const std::vector<int64_t> ids = Zipf(100'000, 5000, 1, 5);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back([&] { NoteAll(rows.Table("shared", "t").get(), ids); });
  for (int i = 0; i < 20; ++i) {
    rows.Save(folder);
    EXPECT(rows.Table("shared", "t")->Top(1000).size() <= 512);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT(rows.Table("shared", "t")->Top(1)[0].id == 0);
  return 0;
}

// For people: what sampling adds to a lookup of so many ids, which have just been read; the median.
int MeasuresNote() {
  const std::vector<int64_t> ids = Zipf(2'000'000, 1'000'000, 1, 6);
  for (const int64_t batch : {64, 1664, 13312}) {
    HotTable table({});
    std::vector<double> times;
    for (int64_t begin = 0; begin + batch <= static_cast<int64_t>(ids.size()); begin += batch) {
      const std::vector<int64_t> read(ids.begin() + begin, ids.begin() + begin + batch);
      const auto start = std::chrono::steady_clock::now();
      table.Note(read.data(), batch);
      times.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count());
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    std::printf("Note of %lld ids: %.2f ns per id\n", static_cast<long long>(batch), times[times.size() / 2] / batch);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = argv[1];
  return FindsTheHotIdsOfAZipfStream() + ForgetsWhatWasHot() + CountsAnyId() + ComesBackFromFiles(folder) +
         RefusesWhatIsWrong(folder) + ThreadsShareATable(folder) + MeasuresNote();
}

// Memory that is divided among caches, where one of them cannot be made.
#include <cstdio>
#include <memory>
#include <set>

#include "core/status.h"
#include "engine/divided_caches.h"
#include "tests/kernels/expect.h"

namespace {

using rankhouse::engine::DividedCaches;
using rankhouse::engine::Manifest;
using rankhouse::engine::TableRecord;

struct Cache {
  int64_t bytes;
  int64_t row_bytes;
};

constexpr int64_t kBytes = 10'000;

// float32 rows of as many columns, 100 of them in each table.
Manifest ManifestOf(const std::set<int64_t>& dims) {
  Manifest manifest = {};
  for (const int64_t dim : dims) {
    TableRecord table = {};
    table.num_rows = 100;
    table.dim = dim;
    table.type = RH_FLOAT32;
    manifest.tables.push_back(table);
  }
  return manifest;
}

// A device that gives caches only while it has memory: `refused` is the size of rows that it has none for, if they are
// to be more than none, or at all.
struct Device {
  int64_t refused = -1;
  bool refuses_empty = false;

  std::shared_ptr<Cache> Make(int64_t bytes, int64_t row_bytes) const {
    if (row_bytes == refused && (bytes > 0 || refuses_empty)) throw rankhouse::Error(RH_OUT_OF_MEMORY, "none is left");
    return std::make_shared<Cache>(Cache{bytes, row_bytes});
  }
};

template <typename Call>
bool IsRefused(Call call) {
  try {
    call();
  } catch (const rankhouse::Error& error) {
    return error.status() == RH_OUT_OF_MEMORY;
  }
  return false;
}

int64_t BytesOf(DividedCaches<Cache>* caches) {
  int64_t bytes = 0;
  caches->ForEach([&](const Cache& cache) { bytes += cache.bytes; });
  return bytes;
}

int CheckFailure(bool refuses_empty) {
  Device device;
  DividedCaches<Cache> caches(kBytes, [&](int64_t bytes, int64_t row_bytes) { return device.Make(bytes, row_bytes); });
  const auto narrow = caches.Of(16, ManifestOf({4}));
  EXPECT(narrow->get()->bytes == kBytes);
  // The new size stands behind one that could be made, and before one that cannot.
  device.refused = 64;
  device.refuses_empty = refuses_empty;
  EXPECT(IsRefused([&] { caches.Of(16, ManifestOf({4, 8, 16})); }));
  EXPECT(narrow->get()->bytes == kBytes);
  EXPECT(BytesOf(&caches) == kBytes);
  // With memory again it is divided, and versions that are open see that.
  device.refused = -1;
  const auto wide = caches.Of(64, ManifestOf({4, 8, 16}));
  EXPECT(narrow->get()->bytes < kBytes && wide->get()->bytes > narrow->get()->bytes);
  EXPECT(BytesOf(&caches) <= kBytes);
  EXPECT(narrow->get()->row_bytes == 16 && wide->get()->row_bytes == 64);
  return 0;
}

}  // namespace

int main() { return CheckFailure(false) + CheckFailure(true); }

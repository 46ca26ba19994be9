#include "engine/divided_caches.h"

#include <algorithm>

namespace rankhouse::engine {
namespace {

// A cache is not larger than for so many times the rows of its size, each with what a cache keeps beside it.
constexpr int64_t kMostCopies = 4;
constexpr int64_t kBytesBesideRow = 24;

}  // namespace

bool AddRowSizes(const Manifest& manifest, RowSizes* sizes) {
  RowSizes own;
  for (const TableRecord& table : manifest.tables) own[table.row_bytes()] += table.num_rows;
  const size_t before = sizes->size();
  sizes->insert(own.begin(), own.end());
  return sizes->size() > before;
}

std::map<int64_t, int64_t> SharesOf(const RowSizes& sizes, int64_t bytes) {
  double all = 0;
  for (const auto& [size, count] : sizes) all += static_cast<double>(count) * static_cast<double>(size);
  std::map<int64_t, int64_t> shares;
  for (const auto& [size, count] : sizes) {
    const double part = static_cast<double>(count) * static_cast<double>(size) / all;
    const int64_t most = kMostCopies * count * (size + kBytesBesideRow);
    shares[size] = std::min(static_cast<int64_t>(static_cast<double>(bytes) * part), most);
  }
  return shares;
}

}  // namespace rankhouse::engine

#include "engine/asked_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "cpu/parallel.h"

namespace rankhouse::engine {
namespace {

constexpr int64_t kQuietRows = int64_t{1} << 24;  // some milliseconds of looking for pages in vain
constexpr int64_t kReadAheadBytes = 128 << 10;    // what Linux reads at once unless it is told otherwise
constexpr int64_t kCyclesPerPage = 20000;         // to hand one to the disk

int PageBits() {
  int bits = 0;
  while (int64_t{1} << bits < sysconf(_SC_PAGESIZE)) ++bits;
  return bits;
}

// It is advice: where the system does not take it, rows are read when they are touched.
void AskFor(const char* begin, int64_t bytes) { madvise(const_cast<char*>(begin), bytes, MADV_WILLNEED); }

}  // namespace

AskedPages::AskedPages(const char* begin, int64_t bytes)
    : begin_(begin),
      page_bits_(PageBits()),
      num_left_((bytes + (int64_t{1} << page_bits_) - 1) >> page_bits_),
      asked_((num_left_ + 63) / 64) {}

bool AskedPages::Mark(int64_t page) {
  const uint64_t bit = uint64_t{1} << (page & 63);
  if ((asked_[page >> 6].fetch_or(bit, std::memory_order_relaxed) & bit) != 0) return false;
  if (num_left_.fetch_sub(1, std::memory_order_relaxed) == 1) asks_.store(false, std::memory_order_relaxed);
  return true;
}

void AskedPages::Note(int64_t num_rows, int64_t num_pages) {
  if (num_pages > 0) {
    num_quiet_.store(0, std::memory_order_relaxed);
  } else if (num_quiet_.fetch_add(num_rows, std::memory_order_relaxed) > kQuietRows) {
    asks_.store(false, std::memory_order_relaxed);
  }
}

void AskedPages::MarkRead(int64_t begin, int64_t end) {
  for (int64_t page = begin >> page_bits_; page <= (end - 1) >> page_bits_; ++page) Mark(page);
}

void AskedPages::ReadAhead(int64_t begin, int64_t end) {
  for (int64_t part = begin; part < end; part += kReadAheadBytes) {
    AskFor(begin_ + part, std::min(kReadAheadBytes, end - part));
  }
  MarkRead(begin, end);
}

void AskForPages(const std::vector<const char*>& pages, const rh_executor* executor) {
  if (pages.empty()) return;
  static const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  ParallelFor(executor, static_cast<int64_t>(pages.size()), kCyclesPerPage, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) AskFor(pages[i], page_bytes);
  });
}

}  // namespace rankhouse::engine

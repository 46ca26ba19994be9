// Pages of a mapped file that the system has been asked to read.
//
// A row that is not in the page cache stops the thread that touches it until the disk has answered, and only then does
// the thread come to the next one. So a lookup first asks for all pages of its batch, and the disk works on them at
// once. Each page is asked for once: where it leaves the page cache later, it is read when it is touched.
#ifndef RANKHOUSE_ENGINE_ASKED_PAGES_H_
#define RANKHOUSE_ENGINE_ASKED_PAGES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rankhouse/kernels.h"

namespace rankhouse::engine {

// Any thread may call it.
class AskedPages {
 public:
  // `begin` is on a page.
  AskedPages(const char* begin, int64_t bytes);

  // Whether there may be something to ask for. Where all pages are in memory, this is all that a lookup pays.
  bool asks() const { return asks_.load(std::memory_order_relaxed); }

  // Appends to `pages` those of rows [n] of `stride` bytes that nobody has asked for; the caller then does
  // (AskForPages). Numbers outside [0, num_rows) are ignored.
  template <typename Id>
  void TakeRows(const Id* rows, int64_t n, int64_t num_rows, int64_t stride, std::vector<const char*>* pages) {
    const std::size_t before = pages->size();
    for (int64_t i = 0; i < n; ++i) {
      const auto row = static_cast<int64_t>(rows[i]);
      if (static_cast<uint64_t>(row) < static_cast<uint64_t>(num_rows)) TakeRow(row * stride, stride, pages);
    }
    Note(n, static_cast<int64_t>(pages->size() - before));
  }

  // The same for one row, `bytes` > 0 from `begin` on; Note is the caller's.
  void TakeRow(int64_t begin, int64_t bytes, std::vector<const char*>* pages) {
    for (int64_t page = begin >> page_bits_; page <= (begin + bytes - 1) >> page_bits_; ++page) {
      const uint64_t bit = uint64_t{1} << (page & 63);
      if ((asked_[page >> 6].load(std::memory_order_relaxed) & bit) == 0 && Mark(page)) {
        pages->push_back(begin_ + (page << page_bits_));
      }
    }
  }

  // Remembers what became of some rows: it stops asking once no page has been new for a long time.
  void Note(int64_t num_rows, int64_t num_pages);

  // The bytes [begin, end), of whole pages but at the file's end, are in memory.
  void MarkRead(int64_t begin, int64_t end);

  // Asks for the same bytes in one go, as far as the system's limits for reading ahead allow.
  void ReadAhead(int64_t begin, int64_t end);

 private:
  bool Mark(int64_t page);  // false: it was marked

  const char* const begin_;
  const int page_bits_;
  std::atomic<int64_t> num_left_;  // pages without a mark
  std::atomic<int64_t> num_quiet_{0};
  std::atomic<bool> asks_{true};
  std::vector<std::atomic<uint64_t>> asked_;  // a bit for each page
};

// Asks the system to read pages; returns before it has.
void AskForPages(const std::vector<const char*>& pages, const rh_executor* executor);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_ASKED_PAGES_H_

#include "engine/row_memory.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>

#include "core/status.h"

namespace rankhouse::engine {
namespace {

constexpr int64_t kHugePageBytes = 2 << 20;  // of most processors; where they are larger, rows are not all in one

int64_t PageBytes() {
  static const int64_t bytes = sysconf(_SC_PAGESIZE);
  return bytes;
}

int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Whether the page cache holds the bytes [begin, end) of a file, as far as some samples say.
bool IsCached([[maybe_unused]] const OpenFile& file, [[maybe_unused]] int64_t begin, [[maybe_unused]] int64_t end) {
#ifdef RWF_NOWAIT
  constexpr int64_t kSamples = 32;
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    char byte;
    const iovec to = {&byte, 1};
    if (preadv2(file.descriptor(), &to, 1, begin + (end - begin - 1) * sample / kSamples, RWF_NOWAIT) != 1)
      return false;
  }
  return true;
#else
  return false;
#endif
}

// Enters pages into the page tables; false: the system cannot.
bool Enter([[maybe_unused]] char* begin, [[maybe_unused]] int64_t bytes) {
#ifdef MADV_POPULATE_READ
  return madvise(begin, bytes, MADV_POPULATE_READ) == 0;
#else
  return false;
#endif
}

[[noreturn]] void ThrowOutOfMemory(const char* what, int64_t bytes) {
  throw Error(RH_OUT_OF_MEMORY, StrCat("cannot ", what, " ", bytes, " bytes of rows: ", std::strerror(errno)));
}

}  // namespace

RowMemory::RowMemory(const OpenFile& file, int64_t begin, int64_t bytes, int64_t stride, MemoryKind kind)
    : bytes_(bytes), stride_(stride), rows_(reinterpret_cast<char*>(stride)) {
  if (bytes == 0) return;
  Reserve();
  try {
    // Rows begin on a multiple of 4096; where the system's pages are larger, that may be no page.
    if (kind == MemoryKind::kMap && begin % PageBytes() == 0) {
      Map(file, begin);
    } else {
      Copy(file, begin);
    }
  } catch (...) {
    munmap(rows_, RoundUp(bytes_, PageBytes()));
    throw;
  }
}

RowMemory::~RowMemory() {
  if (bytes_ > 0) munmap(rows_, RoundUp(bytes_, PageBytes()));
}

// Takes addresses that begin on a page, of a huge one where one fits, and on a multiple of the stride. They cost
// nothing until something lies there.
void RowMemory::Reserve() {
  const int64_t page = PageBytes();
  const int64_t needed = RoundUp(bytes_, page);
  const int64_t alignment = std::lcm(bytes_ < kHugePageBytes ? page : std::max(page, kHugePageBytes), stride_);
  void* found = mmap(nullptr, needed + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) ThrowOutOfMemory("find addresses for", bytes_);
  char* begin = static_cast<char*>(found);
  rows_ = reinterpret_cast<char*>(RoundUp(reinterpret_cast<intptr_t>(begin), alignment));
  if (rows_ > begin) munmap(begin, rows_ - begin);
  char* end = begin + needed + alignment;
  if (end > rows_ + needed) munmap(rows_ + needed, end - rows_ - needed);
}

void RowMemory::Map(const OpenFile& file, int64_t begin) {
  void* found = mmap(rows_, bytes_, PROT_READ, MAP_SHARED | MAP_FIXED, file.descriptor(), begin);
  if (found == MAP_FAILED) ThrowOutOfMemory("map", bytes_);
  mapped_from_ = begin;
  // Rows are read at random: what lies around one is not worth reading with it.
  madvise(rows_, bytes_, MADV_RANDOM);
  asked_ = std::make_unique<AskedPages>(rows_, bytes_);
}

void RowMemory::Copy(const OpenFile& file, int64_t begin) {
  void* found =
      mmap(rows_, RoundUp(bytes_, PageBytes()), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (found == MAP_FAILED) ThrowOutOfMemory("allocate", bytes_);
  rh_advise_huge_pages(rows_, RoundUp(bytes_, PageBytes()));
  file.Read(begin, bytes_, rows_);
  mprotect(rows_, RoundUp(bytes_, PageBytes()), PROT_READ);
}

void RowMemory::EnterPages(const OpenFile& file) const {
  constexpr int64_t kPartBytes = 4 << 20;
  constexpr int64_t kSmallBytes = 64 << 20;  // a few batches touch most of its pages: one long read costs less
  if (mapped_from_ < 0) return;
  for (int64_t part = 0; part < bytes_; part += kPartBytes) {
    const int64_t end = std::min(part + kPartBytes, bytes_);
    if (IsCached(file, mapped_from_ + part, mapped_from_ + end) && Enter(rows_ + part, end - part)) {
      asked_->MarkRead(part, end);
    } else if (bytes_ <= kSmallBytes) {
      asked_->ReadAhead(part, end);
    }
  }
}

}  // namespace rankhouse::engine

#include "cpu/memory.h"

#include <sys/mman.h>

#include <limits>

#include "core/status.h"

namespace rankhouse {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kPage = 4096;
// Leaves room for rounding, and is beyond every address space.
constexpr int64_t kMaxBytes = std::numeric_limits<int64_t>::max() / 2;

constexpr uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

// Linux 6.1 and newer, with the headers of any.
constexpr int kMadviseCollapse = 25;

// A mapping that ends on a huge page can have one there too; small ones are not worth it.
uint64_t MappedBytes(int64_t bytes) {
  const uint64_t size = static_cast<uint64_t>(bytes);
  return RoundUp(size, size < kHugePage ? kPage : kHugePage);
}

}  // namespace

// Private memory: the system gives shared mappings no huge pages.
void* MapMemory(int64_t bytes) noexcept {
  if (bytes > kMaxBytes) return nullptr;
  const uint64_t size = MappedBytes(bytes);
  void* mapped = mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  // Cut off what lies before the boundary and after the end.
  const uintptr_t begin = reinterpret_cast<uintptr_t>(mapped);
  const uintptr_t aligned = RoundUp(begin, kHugePage);
  if (aligned > begin) munmap(mapped, aligned - begin);
  if (begin + kHugePage > aligned) munmap(reinterpret_cast<void*>(aligned + size), begin + kHugePage - aligned);
  void* memory = reinterpret_cast<void*>(aligned);
  madvise(memory, size, MADV_HUGEPAGE);  // refusal leaves small pages, which work too
  return memory;
}

void UnmapMemory(void* memory, int64_t bytes) noexcept { munmap(memory, MappedBytes(bytes)); }

}  // namespace rankhouse

int rh_allocate(int64_t bytes, void** memory) {
  return rankhouse::Guard([&] {
    rankhouse::Require(memory != nullptr, "memory is NULL");
    *memory = nullptr;
    rankhouse::Require(bytes >= 0, "bytes is ", bytes, ": expected >= 0");
    if (bytes == 0) return;
    *memory = rankhouse::MapMemory(bytes);
    if (*memory == nullptr) {
      throw rankhouse::Error(RH_OUT_OF_MEMORY, rankhouse::StrCat("the system has no ", bytes, " bytes of memory"));
    }
  });
}

void rh_free(void* memory, int64_t bytes) {
  if (memory != nullptr && bytes > 0) rankhouse::UnmapMemory(memory, bytes);
}

int rh_advise_huge_pages(void* memory, int64_t bytes) {
  return rankhouse::Guard([&] {
    rankhouse::Require(bytes >= 0, "bytes is ", bytes, ": expected >= 0");
    rankhouse::Require(bytes == 0 || memory != nullptr, "memory is NULL");
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
    const uintptr_t begin = rankhouse::RoundUp(address, rankhouse::kPage);
    const uintptr_t end = (address + static_cast<uint64_t>(bytes)) / rankhouse::kPage * rankhouse::kPage;
    if (begin >= end) return;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
    // What was written before would become huge over hours. One at a time: pages that were never written are refused.
    for (uintptr_t page = rankhouse::RoundUp(begin, rankhouse::kHugePage); page + rankhouse::kHugePage <= end;
         page += rankhouse::kHugePage) {
      madvise(reinterpret_cast<void*>(page), rankhouse::kHugePage, rankhouse::kMadviseCollapse);
    }
  });
}

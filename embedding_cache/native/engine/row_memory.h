// Rows of a file in memory, at an address that makes them part of one large table.
//
// The address of every file's row 0 is a multiple of the row's stride. So all rows of that stride in this process, in
// whatever file, are rows of one table whose row 0 would lie at the address `stride`: the row at an address has the
// number address / stride - 1. That is how one call of rh_pooled_lookup reads rows of a base and of its deltas.
#ifndef RANKHOUSE_ENGINE_ROW_MEMORY_H_
#define RANKHOUSE_ENGINE_ROW_MEMORY_H_

#include <cstdint>
#include <limits>
#include <memory>

#include "engine/asked_pages.h"
#include "engine/files.h"
#include "rankhouse/kernels.h"

namespace rankhouse::engine {

enum class MemoryKind {
  kMap,  // the mapped file: rows are read from the disk when they are first touched, and may leave memory again
  kPin   // a copy in memory of our own, in huge pages where the system grants them
};

// Immutable; any thread may read it.
class RowMemory {
 public:
  // Takes the bytes [begin, begin + bytes) of a file, rows of `stride` bytes each. Throws Error RH_OUT_OF_MEMORY or
  // RH_CORRUPT.
  RowMemory(const OpenFile& file, int64_t begin, int64_t bytes, int64_t stride, MemoryKind kind);
  ~RowMemory();
  RowMemory(const RowMemory&) = delete;
  RowMemory& operator=(const RowMemory&) = delete;

  // Enters what the page cache holds of a mapped file into the page tables, so that the first lookups do not, where the
  // system can (since Linux 5.14). Waits for nothing from the disk, but has it begin to read what is missing of a small
  // file.
  void EnterPages(const OpenFile& file) const;

  const char* rows() const { return rows_; }
  int64_t bytes() const { return bytes_; }

  // What lookups have yet to ask for of a mapped file; NULL: nothing, it is a copy.
  AskedPages* asked() const { return asked_.get(); }

  // The number of row 0 in the table that MemoryTable describes.
  int64_t first_row() const { return reinterpret_cast<intptr_t>(rows_) / stride_ - 1; }

 private:
  void Reserve();
  void Map(const OpenFile& file, int64_t begin);
  void Copy(const OpenFile& file, int64_t begin);

  const int64_t bytes_;
  const int64_t stride_;
  char* rows_;
  int64_t mapped_from_ = -1;  // where in the file; -1: it is a copy
  std::unique_ptr<AskedPages> asked_;
};

// The table of all rows of a type and width in this process' memory.
inline rh_table MemoryTable(int32_t type, int64_t dim) {
  rh_table table = {};
  const int64_t stride = rh_row_bytes(type, dim);
  table.rows = reinterpret_cast<const void*>(stride);
  table.num_rows = std::numeric_limits<intptr_t>::max() / stride - 1;
  table.dim = dim;
  table.type = type;
  table.out_of_range = RH_ZERO;
  return table;
}

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_ROW_MEMORY_H_

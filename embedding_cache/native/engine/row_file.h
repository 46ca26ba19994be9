// The files of tables that are open: each once, whatever number of versions name it.
#ifndef RANKHOUSE_ENGINE_ROW_FILE_H_
#define RANKHOUSE_ENGINE_ROW_FILE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/files.h"
#include "engine/manifest.h"
#include "engine/row_memory.h"
#include "format/tensor_file.h"

namespace rankhouse::engine {

// What has been done since the engine was created.
struct FileCounters {
  std::atomic<int64_t> files_opened{0};
  std::atomic<int64_t> bytes_verified{0};
  std::atomic<int64_t> index_entries{0};  // written by RowIndex; those of merged layers again
};

// A segment or a delta. Any thread may read it; what is not const is called by one at a time.
class RowFile {
 public:
  // `number` is the file's among all that the engine has opened. Throws Error.
  RowFile(const std::string& path, const FileRecord& record, int64_t number, MemoryKind kind);

  const std::string& path() const { return file_.path(); }
  int64_t number() const { return number_; }
  const RowMemory& memory() const { return *memory_; }

  // Compares the file's content with its name, once. Throws Error RH_CORRUPT.
  void Verify(FileCounters* counters);

  // RowMemory::EnterPages, once.
  void EnterPages();

  // Checks what it says of itself against what a manifest says: the table's base file, or its delta, of this number.
  // Throws Error RH_CORRUPT.
  void CheckSegment(const TableRecord& table, const SegmentRecord& record) const;
  void CheckDelta(const TableRecord& table, int64_t delta) const;

  // Reads a tensor of int64.
  std::vector<int64_t> ReadIds(const char* name) const;

 private:
  void Expect(const TableRecord& table, const std::map<std::string, std::string>& metadata,
              const std::map<std::string, std::vector<int64_t>>& shapes) const;

  const OpenFile file_;
  const FileRecord record_;
  const int64_t number_;
  const format::TensorFile tensors_;
  std::unique_ptr<const RowMemory> memory_;
  bool verified_ = false;
  bool entered_ = false;
};

// The files that are open. Any thread may call it.
class RowFiles {
 public:
  explicit RowFiles(MemoryKind kind) : kind_(kind) {}

  // Opens a store's file, or gives it if it is open. Throws Error RH_CORRUPT.
  std::shared_ptr<RowFile> Open(const std::string& store, const FileRecord& record);

  FileCounters* counters() { return &counters_; }

  // The bytes of rows in files that are open.
  int64_t bytes();

 private:
  std::shared_ptr<RowFile> Find(const std::string& sha256);

  const MemoryKind kind_;
  FileCounters counters_;
  std::mutex opening_;                                   // files are opened one after the other; taken before mutex_
  int64_t next_number_ = 0;                              // guarded by opening_
  std::mutex mutex_;                                     // guards files_; never held while a file is read
  std::map<std::string, std::weak_ptr<RowFile>> files_;  // by SHA-256
};

// Where a shared file lies in a store.
std::string SharedPath(const std::string& store, const FileRecord& record);

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_ROW_FILE_H_

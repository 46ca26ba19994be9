// A shared file of versions (FORMAT.md, "Segment" and "Delta") as it lies in Redis: FORMAT.md, "In Redis".
#ifndef RANKHOUSE_REDIS_STORED_FILE_H_
#define RANKHOUSE_REDIS_STORED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/row_store.h"
#include "redis/cluster.h"
#include "redis/exchange.h"

namespace rankhouse::redis {

// Where a file's rows are in it, and in Redis.
struct FileLayout {
  std::string sha256;  // of the file: 64 lower-case hexadecimal digits
  int64_t bytes = 0;   // of the file
  int64_t rows_begin = 0;
  int64_t row_bytes = 0;
  int64_t num_rows = 0;
  int64_t rows_per_block = 0;

  // The layout that a file is given when it is pushed. Throws Error (RH_INVALID_ARGUMENT) where the rows leave the
  // file.
  static FileLayout Of(const std::string& sha256, int64_t bytes, int64_t rows_begin, int64_t row_bytes,
                       int64_t num_rows);

  // Whether the rows lie in the file, and a block of them fits into a value of Redis.
  bool IsPossible() const;

  // The JSON under DescriptionKey, always the same for the same file, and back. Throws Error RH_CORRUPT.
  std::string Describe() const;
  static FileLayout Parse(const std::string& description, const std::string& sha256);

  // A piece is the value of one key: a block of rows, or a part of the bytes around them.
  int64_t num_blocks() const { return num_rows / rows_per_block + (num_rows % rows_per_block != 0); }
  int64_t num_pieces() const;
  std::string KeyOf(int64_t piece) const;  // blocks first
  std::string DescriptionKey() const;

  // The bytes [begin, end) of the file that a piece holds. A part that spans the rows leaves them out: it has two
  // ranges, either of which may be empty.
  struct Range {
    int64_t begin, end;
    int64_t size() const { return end - begin; }
  };
  struct PieceRanges {
    Range first, second;
    int64_t size() const { return first.size() + second.size(); }
  };
  PieceRanges RangesOf(int64_t piece) const;
};

// A pushed file. Any thread may call it.
class StoredFile : public engine::StoredRows {
 public:
  // Reads the file's description. `cluster` must outlive this. Throws TierError if the file is not there, Error
  // RH_CORRUPT if its description is none.
  StoredFile(Cluster* cluster, const std::string& sha256, Clock::time_point deadline);

  const FileLayout& layout() const { return layout_; }
  int64_t rows_begin() const override { return layout_.rows_begin; }
  std::string ReadAround(Clock::time_point deadline) override;

 private:
  Cluster* const cluster_;
  FileLayout layout_;
};

// Reads rows of pushed files, all of one cluster: every node is asked for its rows once. Rows of a file that follow
// each other closely are one command, so give them in their order. Throws TierError if rows do not come by the
// deadline, or are not there: never others in their place.
void ReadRows(Cluster* cluster, const std::vector<engine::RowRequest>& requests, Clock::time_point deadline);

// Throws TierError: a key that was pushed is not there.
[[noreturn]] void ThrowMissing(const FileLayout& layout, int64_t piece, const Source& source);

}  // namespace rankhouse::redis

#endif  // RANKHOUSE_REDIS_STORED_FILE_H_

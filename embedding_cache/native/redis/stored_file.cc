#include "redis/stored_file.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <vector>

#include "core/status.h"
#include "format/json.h"
#include "redis/errors.h"
#include "redis/slots.h"

namespace rankhouse::redis {
namespace {

constexpr int64_t kFormatVersion = 1;

// What a key holds at most, unless one row is larger. With Redis' own 10 bytes it fits a page class of its allocator
// (jemalloc: 64 KiB); exactly 64 KiB would take 80.
constexpr int64_t kPieceBytes = (64 << 10) - 32;

// The most that Redis keeps under a key.
constexpr int64_t kMostPieceBytes = int64_t{512} << 20;

// Bytes of rows that nobody asked for, which are cheaper to send along than a command of their own.
constexpr int64_t kGapBytes = 256;

// A number as text, in memory of its own.
class Digits {
 public:
  explicit Digits(int64_t number) : size_(std::to_chars(text_, text_ + sizeof(text_), number).ptr - text_) {}
  operator std::string_view() const { return {text_, static_cast<size_t>(size_)}; }

 private:
  char text_[24];
  int64_t size_;
};

// Rows that one command reads: some of a request, in one block.
struct Span {
  const engine::RowRequest* request;
  int64_t first, count;  // positions in the request
  int64_t block;
  int64_t row_begin, row_end;  // rows of the file
};

const FileLayout& LayoutOf(const engine::RowRequest& request) {
  return static_cast<const StoredFile*>(request.file)->layout();
}

void AppendSpans(const engine::RowRequest& request, std::vector<Span>* spans) {
  const FileLayout& layout = LayoutOf(request);
  const int64_t gap = kGapBytes / layout.row_bytes;
  const size_t begin = spans->size();
  for (int64_t i = 0; i < request.n; ++i) {
    const int64_t row = request.rows[i];
    Require(row >= 0 && row < layout.num_rows, "redis: file ", layout.sha256, " has ", layout.num_rows,
            " rows; there is no row ", row);
    const int64_t block = row / layout.rows_per_block;
    if (spans->size() > begin) {
      Span& last = spans->back();
      if (last.block == block && row >= last.row_begin && row <= last.row_end + gap) {
        last.row_end = std::max(last.row_end, row + 1);
        ++last.count;
        continue;
      }
    }
    spans->push_back({&request, i, 1, block, row, row + 1});
  }
}

// A file's keys have a beginning in common and no braces, so their slots differ by their ends alone.
void AppendCommands(const std::vector<Span>& spans, Commands* commands) {
  const engine::RowRequest* request = nullptr;
  std::string key;
  size_t prefix = 0;
  uint16_t prefix_crc = 0;
  for (const Span& span : spans) {
    const FileLayout& layout = LayoutOf(*span.request);
    if (span.request != request) {
      request = span.request;
      key = layout.DescriptionKey() + ":";
      prefix = key.size();
      prefix_crc = Crc16(key);
    }
    const Digits block(span.block);
    key.resize(prefix);
    key += block;
    const int64_t begin = (span.row_begin - span.block * layout.rows_per_block) * layout.row_bytes;
    const int64_t end = begin + (span.row_end - span.row_begin) * layout.row_bytes;
    commands->AddTo(Crc16(block, prefix_crc) % kNumSlots, {"GETRANGE", key, Digits(begin), Digits(end - 1)});
  }
}

}  // namespace

FileLayout FileLayout::Of(const std::string& sha256, int64_t bytes, int64_t rows_begin, int64_t row_bytes,
                          int64_t num_rows) {
  const FileLayout layout = {sha256,    bytes,    rows_begin,
                             row_bytes, num_rows, std::max<int64_t>(1, row_bytes > 0 ? kPieceBytes / row_bytes : 0)};
  Require(sha256.size() == 64, "redis: ", sha256, " is no SHA-256 in hexadecimal digits");
  Require(layout.IsPossible(), "redis: file ", sha256, " of ", bytes, " bytes cannot have ", num_rows, " rows of ",
          row_bytes, " bytes from byte ", rows_begin, " on");
  return layout;
}

bool FileLayout::IsPossible() const {
  return row_bytes > 0 && rows_per_block > 0 && rows_begin >= 0 && num_rows >= 0 && rows_begin <= bytes &&
         num_rows <= (bytes - rows_begin) / row_bytes &&
         rows_per_block <= std::max<int64_t>(1, kMostPieceBytes / row_bytes);
}

std::string FileLayout::Describe() const {
  const format::Json document = {{"format", "rankhouse.redis_file"},
                                 {"format_version", kFormatVersion},
                                 {"sha256", sha256},
                                 {"bytes", bytes},
                                 {"rows_begin", rows_begin},
                                 {"row_bytes", row_bytes},
                                 {"num_rows", num_rows},
                                 {"rows_per_block", rows_per_block}};
  return document.dump();
}

FileLayout FileLayout::Parse(const std::string& description, const std::string& sha256) {
  const std::string where = StrCat("redis: the description of file ", sha256);
  const format::Json document = format::ParseObject(where, description);
  format::CheckFormat(where, document, "redis_file");
  format::CheckKeys(
      where, document,
      {"format", "format_version", "sha256", "bytes", "rows_begin", "row_bytes", "num_rows", "rows_per_block"});
  const auto number = [&](const char* key) { return format::IntegerMember(where, document, key); };
  FileLayout layout = {format::StringMember(where, document, "sha256"),
                       number("bytes"),
                       number("rows_begin"),
                       number("row_bytes"),
                       number("num_rows"),
                       number("rows_per_block")};
  format::RequireIntact(layout.sha256 == sha256, where, "is of ", layout.sha256);
  format::RequireIntact(layout.IsPossible(), where, "has rows that leave the file, or blocks of an impossible size");
  return layout;
}

int64_t FileLayout::num_pieces() const {
  const int64_t around = bytes - num_rows * row_bytes;
  return num_blocks() + (around + kPieceBytes - 1) / kPieceBytes;
}

std::string FileLayout::DescriptionKey() const { return "rh:" + sha256.substr(0, 32); }

std::string FileLayout::KeyOf(int64_t piece) const {
  const bool is_block = piece < num_blocks();
  return StrCat(DescriptionKey(), is_block ? ":" : ":around:", is_block ? piece : piece - num_blocks());
}

FileLayout::PieceRanges FileLayout::RangesOf(int64_t piece) const {
  const int64_t blocks = num_blocks(), rows_end = rows_begin + num_rows * row_bytes;
  if (piece < blocks) {
    const int64_t begin = rows_begin + piece * rows_per_block * row_bytes;
    return {{begin, std::min(begin + rows_per_block * row_bytes, rows_end)}, {0, 0}};
  }
  // Positions in what is around the rows, and where these lie in the file.
  const int64_t begin = (piece - blocks) * kPieceBytes;
  const int64_t end = std::min(begin + kPieceBytes, bytes - num_rows * row_bytes);
  const int64_t behind = rows_end - rows_begin;
  return {{std::min(begin, rows_begin), std::min(end, rows_begin)},
          {std::max(begin, rows_begin) + behind, std::max(end, rows_begin) + behind}};
}

void ThrowMissing(const FileLayout& layout, int64_t piece, const Source& source) {
  const bool is_block = piece < layout.num_blocks();
  const int64_t first = piece * layout.rows_per_block;
  throw TierError(
      StrCat("redis: ", source.node->address().Text(), " does not have ", layout.KeyOf(piece), ", ",
             is_block ? StrCat("rows ", first, " to ", std::min(first + layout.rows_per_block, layout.num_rows) - 1)
                      : std::string("the bytes around the rows"),
             " of file ", layout.sha256,
             ": it was evicted, or its time ended; push the version again, and see Redis' maxmemory-policy"));
}

StoredFile::StoredFile(Cluster* cluster, const std::string& sha256, Clock::time_point deadline) : cluster_(cluster) {
  layout_.sha256 = sha256;
  Commands commands;
  commands.Add({"GET", layout_.DescriptionKey()});
  Exchange(cluster, commands, Access::kRead, deadline, [&](int32_t, const Reply& reply, const Source& source) {
    if (reply.kind == Reply::Kind::kText) {
      layout_ = FileLayout::Parse(reply.text, sha256);
      return true;
    }
    if (source.is_replica) return false;
    throw TierError(StrCat("redis: ", source.node->address().Text(), " does not have file ", sha256, " (key ",
                           layout_.DescriptionKey(), "): it was not pushed, or its time ended; push the version"));
  });
}

void ReadRows(Cluster* cluster, const std::vector<engine::RowRequest>& requests, Clock::time_point deadline) {
  std::vector<Span> spans;
  for (const engine::RowRequest& request : requests) AppendSpans(request, &spans);
  Commands commands;
  AppendCommands(spans, &commands);
  Exchange(cluster, commands, Access::kRead, deadline, [&](int32_t command, const Reply& reply, const Source& source) {
    const Span& span = spans[command];
    const engine::RowRequest& request = *span.request;
    const FileLayout& layout = LayoutOf(request);
    if (reply.text.size() != static_cast<size_t>((span.row_end - span.row_begin) * layout.row_bytes)) {
      if (source.is_replica) return false;
      ThrowMissing(layout, span.block, source);
    }
    for (int64_t i = span.first; i < span.first + span.count; ++i) {
      const char* row = reply.text.data() + (request.rows[i] - span.row_begin) * layout.row_bytes;
      std::memcpy(request.out + i * layout.row_bytes, row, layout.row_bytes);
      request.arrived[i] = true;
    }
    return true;
  });
}

std::string StoredFile::ReadAround(Clock::time_point deadline) {
  const int64_t first = layout_.num_blocks();
  std::vector<std::string> parts(layout_.num_pieces() - first);
  Commands commands;
  for (size_t i = 0; i < parts.size(); ++i) commands.Add({"GET", layout_.KeyOf(first + i)});
  Exchange(cluster_, commands, Access::kRead, deadline, [&](int32_t command, const Reply& reply, const Source& source) {
    if (reply.text.size() != static_cast<size_t>(layout_.RangesOf(first + command).size())) {
      if (source.is_replica) return false;
      ThrowMissing(layout_, first + command, source);
    }
    parts[command] = reply.text;
    return true;
  });
  std::string around;
  for (const std::string& part : parts) around += part;
  return around;
}

}  // namespace rankhouse::redis

#include "engine/row_file.h"

#include <utility>

#include "core/status.h"
#include "engine/row_source.h"
#include "format/json.h"
#include "rankhouse/engine.h"

namespace rankhouse::engine {
namespace {

constexpr int64_t kRowAlignment = 4096;

std::string Described(const std::map<std::string, std::string>& metadata) {
  std::string text;
  for (const auto& [key, value] : metadata) text += StrCat(text.empty() ? "" : ", ", key, " '", value, "'");
  return text;
}

std::string Described(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t extent : shape) text += StrCat(text.empty() ? "[" : ", ", extent);
  return text + "]";
}

const char* CodeOf(int32_t type) {
  constexpr const char* kCodes[] = {"F32", "F16", "BF16", "U8"};  // in the order of rh_row_type
  return kCodes[type];
}

// int8 rows end with scale and offset.
int64_t ColumnsOf(const TableRecord& table) { return table.dim + (table.type == RH_INT8_ROWWISE ? 8 : 0); }

std::unique_ptr<const RowMemory> MemoryOf(const OpenFile& file, const format::TensorFile& tensors, MemoryKind kind) {
  const format::Tensor& rows = tensors.tensor("rows");
  format::RequireIntact(rows.shape.size() == 2 && rows.shape[1] > 0, file.path(), "has no rows; export it again");
  format::RequireIntact(rows.begin % kRowAlignment == 0 || rows.bytes == 0, file.path(),
                        "its rows do not begin on a multiple of ", kRowAlignment, " bytes");
  format::RequireIntact(rows.shape[0] < int64_t{1} << kRowBits, file.path(), "has ", rows.shape[0],
                        " rows: expected less than 2^", kRowBits);
  const int64_t stride = rows.shape[0] == 0 ? 1 : rows.bytes / rows.shape[0];
  return std::make_unique<const RowMemory>(file, rows.begin, rows.bytes, stride, kind);
}

// Its size is compared first, as what is wrong with a file that was cut short is mostly that.
const std::string& Checked(const OpenFile& file, const FileRecord& record) {
  file.Check(record, /*verify=*/false);
  return file.path();
}

}  // namespace

RowFile::RowFile(const std::string& path, const FileRecord& record, int64_t number, MemoryKind kind)
    : file_(path),
      record_(record),
      number_(number),
      tensors_(Checked(file_, record)),
      memory_(MemoryOf(file_, tensors_, kind)) {}

void RowFile::Verify(FileCounters* counters) {
  if (verified_) return;
  file_.Check(record_, /*verify=*/true);
  counters->bytes_verified += record_.bytes;
  verified_ = true;
}

void RowFile::EnterPages() {
  if (!entered_) memory_->EnterPages(file_);
  entered_ = true;
}

void RowFile::CheckSegment(const TableRecord& table, const SegmentRecord& record) const {
  std::map<std::string, std::string> metadata = {{"format", "rankhouse.segment"},
                                                 {"format_version", "1"},
                                                 {"table", table.name},
                                                 {"row_begin", std::to_string(record.row_begin)}};
  if (table.type != RH_FLOAT32) metadata["row_type"] = table.dtype;
  Expect(table, metadata, {{"rows", {record.num_rows, ColumnsOf(table)}}});
}

void RowFile::CheckDelta(const TableRecord& table, int64_t delta) const {
  const DeltaRecord& record = table.deltas[delta];
  const int64_t num_segments = static_cast<int64_t>(table.segments.size());
  Expect(
      table,
      {{"format", "rankhouse.delta"},
       {"format_version", "1"},
       {"table", table.name},
       {"row_type", table.dtype},
       {"chain", table.ChainBefore(num_segments + delta)}},
      {{"rows", {record.num_rows, ColumnsOf(table)}}, {"ids", {record.num_rows}}, {"removed", {record.num_removed}}});
}

void RowFile::Expect(const TableRecord& table, const std::map<std::string, std::string>& metadata,
                     const std::map<std::string, std::vector<int64_t>>& shapes) const {
  if (tensors_.metadata() != metadata) {
    throw Error(RH_CORRUPT, StrCat(path(), ": does not belong to what is before it in table '", table.name,
                                   "': expected ", Described(metadata), "; found ", Described(tensors_.metadata()),
                                   "; a file is missing, doubled or out of order: export the version again"));
  }
  for (const auto& [name, shape] : shapes) {
    const format::Tensor& found = tensors_.tensor(name);
    const char* dtype = name == "rows" ? CodeOf(table.type) : "I64";
    format::RequireIntact(found.shape == shape && found.dtype == dtype, path(), "table '", table.name, "' expected ",
                          name, " of ", dtype, " ", Described(shape), ", found ", found.dtype, " ",
                          Described(found.shape), "; export the version again");
  }
}

std::vector<int64_t> RowFile::ReadIds(const char* name) const {
  const format::Tensor& tensor = tensors_.tensor(name);
  std::vector<int64_t> ids(tensor.bytes / sizeof(int64_t));
  file_.Read(tensor.begin, tensor.bytes, ids.data());
  return ids;
}

std::shared_ptr<RowFile> RowFiles::Open(const std::string& store, const FileRecord& record) {
  const std::lock_guard<std::mutex> opening(opening_);
  if (std::shared_ptr<RowFile> file = Find(record.sha256)) return file;
  // Numbers are not given again, as a cache may have rows of files that are closed.
  if (next_number_ == kMostFiles) throw Error(RH_INTERNAL, "this engine has opened 2^24 files: make a new one");
  const auto file = std::make_shared<RowFile>(SharedPath(store, record), record, next_number_, kind_);
  ++next_number_;
  const std::lock_guard<std::mutex> lock(mutex_);
  files_[record.sha256] = file;
  ++counters_.files_opened;
  return file;
}

std::shared_ptr<RowFile> RowFiles::Find(const std::string& sha256) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = files_.find(sha256);
  return known != files_.end() ? known->second.lock() : nullptr;
}

int64_t RowFiles::bytes() {
  const std::lock_guard<std::mutex> lock(mutex_);
  int64_t bytes = 0;
  for (auto known = files_.begin(); known != files_.end();) {
    const std::shared_ptr<RowFile> file = known->second.lock();
    if (file != nullptr) bytes += file->memory().bytes();
    known = file != nullptr ? std::next(known) : files_.erase(known);
  }
  return bytes;
}

std::string SharedPath(const std::string& store, const FileRecord& record) {
  return StrCat(store, "/segments/", record.sha256, ".safetensors");
}

}  // namespace rankhouse::engine

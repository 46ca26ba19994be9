#include "cache/hot_rows_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "format/json.h"
#include "format/tensor_file.h"

namespace rankhouse::cache {
namespace {

using format::Json;
using format::RequireIntact;

constexpr char kFormat[] = "rankhouse.hot_rows";
constexpr char kVersion[] = "1";

std::string IdsOf(const std::string& table) { return table + "/ids"; }
std::string CountsOf(const std::string& table) { return table + "/counts"; }

[[noreturn]] void Fail(const char* what, const std::string& path) {
  throw Error(RH_INTERNAL, StrCat(what, " ", path, " failed: ", std::strerror(errno)));
}

// A file that is written beside another and takes its place when all is on the disk.
class Replacement {
 public:
  explicit Replacement(const std::string& path)
      // A name of its own: engines of several processes, and of several hosts, may share the folder.
      : path_(path), temporary_(path + ".XXXXXX"), file_(mkostemp(temporary_.data(), O_CLOEXEC)) {
    if (file_ < 0) Fail("creating", temporary_);
  }
  ~Replacement() {
    if (file_ < 0) return;
    close(file_);
    unlink(temporary_.c_str());
  }
  Replacement(const Replacement&) = delete;
  Replacement& operator=(const Replacement&) = delete;

  void Write(const void* data, int64_t bytes) {
    for (const char* at = static_cast<const char*>(data); bytes > 0;) {
      const ssize_t written = write(file_, at, static_cast<size_t>(bytes));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) Fail("writing", temporary_);
      at += written;
      bytes -= written;
    }
  }

  void Commit() {
    if (fchmod(file_, 0644) != 0 || fsync(file_) != 0) Fail("flushing", temporary_);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) Fail("renaming to", path_);
    close(file_);
    file_ = -1;
  }

 private:
  const std::string path_;
  std::string temporary_;
  int file_;
};

void AddTensor(Json* header, const std::string& name, size_t size, int64_t* end) {
  const int64_t begin = *end;
  *end += static_cast<int64_t>(size * sizeof(int64_t));
  (*header)[name] = {{"dtype", "I64"}, {"shape", {size}}, {"data_offsets", {begin, *end}}};
}

std::string HeaderOf(const HotRowsByTable& tables) {
  Json header;
  Json names = Json::array();
  int64_t end = 0;
  for (const auto& [table, rows] : tables) {
    names.push_back(table);
    AddTensor(&header, IdsOf(table), rows.size(), &end);
    AddTensor(&header, CountsOf(table), rows.size(), &end);
  }
  header["__metadata__"] = {{"format", kFormat}, {"format_version", kVersion}, {"tables", names.dump()}};
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the tensors are aligned
  return text;
}

std::vector<HotRow> ReadTable(const format::TensorFile& file, const std::string& table) {
  const auto ids = file.array<int64_t>(IdsOf(table), "I64");
  const auto counts = file.array<int64_t>(CountsOf(table), "I64");
  RequireIntact(ids.size() == counts.size(), file.path(), "table ", table, " has ", ids.size(), " ids and ",
                counts.size(), " counts");
  std::vector<HotRow> rows;
  rows.reserve(static_cast<size_t>(ids.size()));
  for (int64_t i = 0; i < ids.size(); ++i) {
    RequireIntact(counts[i] >= 1 && (i == 0 || counts[i] <= counts[i - 1]), file.path(), "count ", i, " of table ",
                  table, " is ", counts[i], ": expected 1 or more, hottest first");
    rows.push_back({ids[i], counts[i]});
  }
  return rows;
}

std::string MetadataOf(const format::TensorFile& file, const std::string& key) {
  const auto found = file.metadata().find(key);
  RequireIntact(found != file.metadata().end(), file.path(), "it has no metadata ", key,
                ": expected a file of hot rows (", kFormat, ")");
  return found->second;
}

}  // namespace

void WriteHotRows(const std::string& path, const HotRowsByTable& tables) {
  const std::string header = HeaderOf(tables);
  const uint64_t header_bytes = header.size();
  Replacement file(path);
  file.Write(&header_bytes, sizeof(header_bytes));
  file.Write(header.data(), static_cast<int64_t>(header.size()));
  std::vector<int64_t> values;
  for (const auto& [table, rows] : tables) {
    values.clear();
    for (const HotRow& row : rows) values.push_back(row.id);
    for (const HotRow& row : rows) values.push_back(row.count);
    file.Write(values.data(), static_cast<int64_t>(values.size() * sizeof(int64_t)));
  }
  file.Commit();
}

HotRowsByTable ReadHotRows(const std::string& path) {
  const format::TensorFile file(path);
  const std::string format = MetadataOf(file, "format");
  const std::string version = MetadataOf(file, "format_version");
  RequireIntact(format == kFormat && version == kVersion, path, "it is ", format, " of version ", version,
                ": expected ", kFormat, " of version ", kVersion);
  const Json names = Json::parse(MetadataOf(file, "tables"), nullptr, /*allow_exceptions=*/false);
  RequireIntact(names.is_array(), path, "its metadata tables is no list of names");
  HotRowsByTable tables;
  for (const Json& name : names) {
    RequireIntact(name.is_string(), path, "its metadata tables is no list of names");
    tables[name.get<std::string>()] = ReadTable(file, name.get<std::string>());
  }
  return tables;
}

}  // namespace rankhouse::cache

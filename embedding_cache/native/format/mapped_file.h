// A file, mapped into memory to be read.
#ifndef RANKHOUSE_FORMAT_MAPPED_FILE_H_
#define RANKHOUSE_FORMAT_MAPPED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace rankhouse::format {

// Any thread may read it. It must stay as it is while it is mapped, as all files of versions do.
class MappedFile {
 public:
  // Throws Error: RH_CORRUPT where the file is missing or cannot be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  const std::string& identity() const { return identity_; }  // FileIdentity of what is mapped
  const std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  std::string path_;
  std::string identity_;
  std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

// A text that two paths have in common only where they lead to one file that is as it was; "" where there is none. A
// file that is mapped keeps its own to itself, even when it is removed.
std::string FileIdentity(const std::string& path);

}  // namespace rankhouse::format

#endif  // RANKHOUSE_FORMAT_MAPPED_FILE_H_

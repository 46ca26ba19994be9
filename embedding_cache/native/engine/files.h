// Files as they lie on the disk: read, measured, and compared with what a manifest says of them.
#ifndef RANKHOUSE_ENGINE_FILES_H_
#define RANKHOUSE_ENGINE_FILES_H_

#include <cstdint>
#include <string>

namespace rankhouse::engine {

// What a manifest remembers of a file.
struct FileRecord {
  int64_t bytes;
  std::string sha256;  // 64 lower-case hexadecimal digits

  bool operator==(const FileRecord& other) const { return bytes == other.bytes && sha256 == other.sha256; }
};

bool IsSha256(const std::string& text);

// The SHA-256 of some bytes, as hexadecimal digits.
std::string Sha256Of(const std::string& bytes);

// A file that is open for reading. It throws Error RH_CORRUPT, naming the path.
class OpenFile {
 public:
  explicit OpenFile(std::string path);
  ~OpenFile();
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return descriptor_; }
  int64_t bytes() const { return bytes_; }

  // Reads [offset, offset + bytes) into `to`.
  void Read(int64_t offset, int64_t bytes, void* to) const;
  std::string ReadAll() const;

  // Compares it with its record; with its content's SHA-256 if `verify`.
  void Check(const FileRecord& record, bool verify) const;

 private:
  const std::string path_;
  int descriptor_;
  int64_t bytes_;
};

}  // namespace rankhouse::engine

#endif  // RANKHOUSE_ENGINE_FILES_H_

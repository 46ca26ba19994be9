// Stands in for native/format/mapped_file.cc: files that are memory of exactly their size, so that a sanitizer sees
// every byte that is read outside of them.
#include "memory_files.h"

#include <cstdlib>
#include <cstring>

#include "core/status.h"
#include "format/mapped_file.h"
#include "rankhouse/engine.h"

std::map<std::string, std::string>& MemoryFiles() {
  static std::map<std::string, std::string> files;
  return files;
}

namespace rankhouse::format {

MappedFile::MappedFile(const std::string& path) : path_(path), identity_(FileIdentity(path)) {
  const auto found = MemoryFiles().find(path);
  if (found == MemoryFiles().end()) throw Error(RH_CORRUPT, path + ": is missing");
  size_ = static_cast<int64_t>(found->second.size());
  data_ = static_cast<std::byte*>(std::malloc(found->second.size()));
  std::memcpy(data_, found->second.data(), found->second.size());
}

MappedFile::~MappedFile() { std::free(data_); }

std::string FileIdentity(const std::string&) {
  static int64_t num_asked = 0;  // Each time another file.
  return std::to_string(++num_asked);
}

}  // namespace rankhouse::format

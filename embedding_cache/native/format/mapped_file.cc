#include "format/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/status.h"
#include "rankhouse/engine.h"

namespace rankhouse::format {
namespace {

class Descriptor {
 public:
  explicit Descriptor(const char* path) : number_(open(path, O_RDONLY | O_CLOEXEC)) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  const int number_;
};

[[noreturn]] void Refuse(const std::string& path) {
  const int error = errno;
  if (error == ENOENT) {
    throw Error(RH_CORRUPT, StrCat(path, ": is missing; restore the file from another copy or write it again"));
  }
  throw Error(RH_CORRUPT, StrCat(path, ": cannot be read (", std::strerror(error), ")"));
}

std::string IdentityOf(const struct stat& status) {
  return StrCat(status.st_dev, ":", status.st_ino, ":", status.st_size, ":", status.st_mtim.tv_sec, ".",
                status.st_mtim.tv_nsec, ":");
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  const Descriptor file(path.c_str());
  struct stat status;
  if (file.number() < 0 || fstat(file.number(), &status) != 0) Refuse(path);
  if (!S_ISREG(status.st_mode)) throw Error(RH_CORRUPT, StrCat(path, ": cannot be read (it is no file)"));
  identity_ = IdentityOf(status);
  if (status.st_size == 0) return;  // An empty stretch cannot be mapped.
  void* data = mmap(nullptr, status.st_size, PROT_READ, MAP_SHARED, file.number(), 0);
  if (data == MAP_FAILED) Refuse(path);
  data_ = static_cast<std::byte*>(data);
  size_ = status.st_size;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

std::string FileIdentity(const std::string& path) {
  struct stat status;
  return stat(path.c_str(), &status) == 0 ? IdentityOf(status) : "";
}

}  // namespace rankhouse::format

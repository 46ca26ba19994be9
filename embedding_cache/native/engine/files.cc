#include "engine/files.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <utility>

#include "core/status.h"
#include "rankhouse/engine.h"

namespace rankhouse::engine {
namespace {

constexpr char kRepair[] = "; restore the file from another copy or write it again";
constexpr int64_t kReadBytes = 1 << 20;

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new(), EVP_MD_CTX_free) {
    Check(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr));
  }

  void Add(const void* bytes, size_t size) { Check(EVP_DigestUpdate(context_.get(), bytes, size)); }

  std::string Hex() {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int size = 0;
    Check(EVP_DigestFinal_ex(context_.get(), digest, &size));
    std::string hex;
    for (unsigned int i = 0; i < size; ++i) {
      hex += "0123456789abcdef"[digest[i] >> 4];
      hex += "0123456789abcdef"[digest[i] & 15];
    }
    return hex;
  }

 private:
  static void Check(bool done) {
    if (!done) throw Error(RH_INTERNAL, "OpenSSL cannot compute a SHA-256");
  }

  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

}  // namespace

bool IsSha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string Sha256Of(const std::string& bytes) {
  Sha256 sha256;
  sha256.Add(bytes.data(), bytes.size());
  return sha256.Hex();
}

OpenFile::OpenFile(std::string path) : path_(std::move(path)), descriptor_(open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
  if (descriptor_ < 0) {
    const std::string reason = errno == ENOENT ? "is missing" : StrCat("cannot be read (", std::strerror(errno), ")");
    throw Error(RH_CORRUPT, StrCat(path_, ": ", reason, kRepair));
  }
  struct stat found;
  if (fstat(descriptor_, &found) != 0 || !S_ISREG(found.st_mode)) {
    close(descriptor_);
    throw Error(RH_CORRUPT, StrCat(path_, ": is no file", kRepair));
  }
  bytes_ = found.st_size;
}

OpenFile::~OpenFile() { close(descriptor_); }

void OpenFile::Read(int64_t offset, int64_t bytes, void* to) const {
  char* next = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t count = pread(descriptor_, next, bytes, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw Error(RH_CORRUPT, StrCat(path_, ": cannot be read (", std::strerror(errno), ")", kRepair));
    if (count == 0) throw Error(RH_CORRUPT, StrCat(path_, ": was truncated at byte ", offset, kRepair));
    next += count;
    offset += count;
    bytes -= count;
  }
}

std::string OpenFile::ReadAll() const {
  std::string content(bytes_, '\0');
  Read(0, bytes_, content.data());
  return content;
}

void OpenFile::Check(const FileRecord& record, bool verify) const {
  if (bytes_ != record.bytes) {
    throw Error(RH_CORRUPT, StrCat(path_, ": was ", bytes_ < record.bytes ? "truncated" : "altered", ": expected ",
                                   record.bytes, " bytes, found ", bytes_, kRepair));
  }
  if (!verify) return;
  Sha256 sha256;
  const std::unique_ptr<char[]> block(new char[kReadBytes]);
  for (int64_t offset = 0; offset < bytes_; offset += kReadBytes) {
    const int64_t count = std::min(kReadBytes, bytes_ - offset);
    Read(offset, count, block.get());
    sha256.Add(block.get(), count);
  }
  const std::string found = sha256.Hex();
  if (found == record.sha256) return;
  throw Error(RH_CORRUPT, StrCat(path_, ": its content was altered: expected the SHA-256 ", record.sha256, ", found ",
                                 found, kRepair));
}

}  // namespace rankhouse::engine

#include "redis/resolver.h"

#include <sys/eventfd.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

#include "core/status.h"
#include "redis/errors.h"

namespace rankhouse::redis {
namespace {

// Connections are made in bursts; more would keep a host that has moved from being found.
constexpr std::chrono::seconds kKept{1};

}  // namespace

std::shared_ptr<const Resolution> Resolution::Of(const Address& address) {
  auto numeric = std::make_shared<Resolution>();
  numeric->Ask(address, AI_NUMERICHOST);
  if (numeric->fault_ == 0) return numeric;

  static std::mutex mutex;  // guards what follows
  static std::map<std::string, std::shared_ptr<Resolution>> asked;
  static pid_t process = getpid();
  const std::lock_guard<std::mutex> lock(mutex);
  // In a process that was forked off nobody answers what its parent had asked.
  if (process != getpid()) asked.clear();
  process = getpid();
  for (auto each = asked.begin(); each != asked.end();) each = each->second->IsOld() ? asked.erase(each) : ++each;
  const auto known = asked.find(address.Text());
  if (known != asked.end()) return known->second;
  return asked.emplace(address.Text(), Begin(address)).first->second;
}

std::shared_ptr<Resolution> Resolution::Begin(const Address& address) {
  auto resolution = std::make_shared<Resolution>();
  resolution->fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (resolution->fd_ < 0) throw NodeError(StrCat("its name cannot be asked for (", std::strerror(errno), ")"));
  try {
    std::thread([resolution, address] {
      resolution->Ask(address, 0);
      // Nobody reads it, so there is always room.
      eventfd_write(resolution->fd_, 1);
    }).detach();
  } catch (const std::system_error& error) {
    throw NodeError(StrCat("its name cannot be asked for (", error.what(), ")"));
  }
  return resolution;
}

Resolution::~Resolution() {
  if (found_ != nullptr) freeaddrinfo(found_);
  if (fd_ >= 0) close(fd_);
}

bool Resolution::IsOld() const { return is_done() && std::chrono::steady_clock::now() - done_at_ > kKept; }

void Resolution::Ask(const Address& address, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  fault_ = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found_);
  done_at_ = std::chrono::steady_clock::now();
  is_done_.store(true, std::memory_order_release);
}

const addrinfo* Resolution::addresses() const {
  if (fault_ != 0) throw NodeError(StrCat("its name cannot be resolved (", gai_strerror(fault_), ")"));
  return found_;
}

}  // namespace rankhouse::redis

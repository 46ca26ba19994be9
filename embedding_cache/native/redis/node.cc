#include "redis/node.h"

#include <algorithm>

#include "core/status.h"

namespace rankhouse::redis {

std::unique_ptr<Connection> Node::Take(bool is_replica) {
  while (true) {
    std::unique_ptr<Connection> connection;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto fits = [&](const auto& idle) { return idle->is_replica() == is_replica; };
      // The one that was used last: the others may be closed by the server when load falls.
      const auto found = std::find_if(idle_.rbegin(), idle_.rend(), fits);
      if (found != idle_.rend()) {
        connection = std::move(*found);
        idle_.erase(std::next(found).base());
      }
    }
    if (connection == nullptr) return std::make_unique<Connection>(address_, is_replica, options_, tls_);
    if (connection->IsReusable()) return connection;
  }
}

void Node::Give(std::unique_ptr<Connection> connection) {
  if (!connection->IsReusable()) return;
  std::lock_guard<std::mutex> lock(mutex_);
  if (idle_.size() < static_cast<size_t>(options_.connections)) idle_.push_back(std::move(connection));
}

bool Node::Admits() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (num_failures_ < options_.breaker_failures) return true;
  const Clock::time_point now = Clock::now();
  if (now < closed_until_) return false;
  closed_until_ = now + options_.breaker_for;  // Others wait for the outcome.
  return true;
}

void Node::Succeeded() {
  std::lock_guard<std::mutex> lock(mutex_);
  num_failures_ = 0;
}

void Node::Failed(const std::string& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  last_reason_ = reason;
  if (++num_failures_ < options_.breaker_failures) return;
  if (num_failures_ == options_.breaker_failures) ++num_times_opened_;
  closed_until_ = Clock::now() + options_.breaker_for;
  idle_.clear();  // They would be found broken one by one.
}

std::string Node::WhyRefused() const {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(closed_until_ - Clock::now()).count();
  return StrCat("failed ", num_failures_, " times in a row, the last time: ", last_reason_, "; it is tried again in ",
                std::max<int64_t>(left, 0), " ms");
}

int64_t Node::num_times_opened() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return num_times_opened_;
}

}  // namespace rankhouse::redis

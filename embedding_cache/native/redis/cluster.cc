#include "redis/cluster.h"

#include <poll.h>

#include <algorithm>
#include <set>

#include "redis/errors.h"

namespace rankhouse::redis {
namespace {

// A map in doubt is read again, but not more often than this: while slots move, each MOVED tells of one.
constexpr std::chrono::milliseconds kRefreshEvery{500};
// Of one node's bytes so many parts are taken before others have a turn and the deadline is looked at.
constexpr int kMostParts = 64;

bool StartsWith(const std::string& text, std::string_view prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

Address AddressOf(const Reply& node, const Node& speaker) {
  const int64_t port = node.elements.size() < 2 ? 0 : node.elements[1].integer;
  if (port < 1 || port > 65535) throw NodeError("gave CLUSTER SLOTS that has a node without address");
  const std::string& host = node.elements[0].text;
  return {host.empty() || host == "?" ? speaker.address().host : host, static_cast<int>(port)};
}

int MillisecondsUntil(Clock::time_point time) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace

// CLUSTER SLOTS asked of one node.
class Cluster::Question {
 public:
  explicit Question(NodePtr node) : node_(std::move(node)) {
    std::string command;
    AppendCommand(&command, {"CLUSTER", "SLOTS"});
    Try([&] {
      connection_ = node_->Take(/*is_replica=*/false);
      connection_->Send(command, 1);
    });
  }

  // Moves on without waiting. True: reply() is there.
  bool Step() {
    Try([&] {
      connection_->Transmit();
      int part = 0;
      while (reply_ == nullptr && part < kMostParts && connection_->Receive()) {
        reply_ = connection_->Next();
        ++part;
      }
      has_more_ = part == kMostParts;
      connection_->Transmit();
    });
    return reply_ != nullptr;
  }

  const NodePtr& node() const { return node_; }
  bool is_over() const { return connection_ == nullptr; }
  bool has_more() const { return has_more_; }  // which poll may not know
  bool is_lasting() const { return is_lasting_; }
  const Reply& reply() const { return *reply_; }
  // Why there is no reply.
  std::string fault() const {
    if (is_over()) return fault_;
    return node_->address().Text() +
           (connection_->is_resolving() ? " has a name that was not resolved in time" : " was silent");
  }
  pollfd Poll() const { return {connection_->fd(), connection_->events(), 0}; }

  // The node is of no use.
  void Refuse(const std::string& fault, bool is_lasting = false) {
    fault_ = node_->address().Text() + " " + fault;
    is_lasting_ = is_lasting;
    connection_.reset();
    reply_ = nullptr;
  }

  void Finish() {
    node_->Succeeded();
    node_->Give(std::move(connection_));
  }

 private:
  template <typename Body>
  void Try(Body body) {
    try {
      body();
    } catch (const NodeError& error) {
      Refuse(error.what(), error.is_lasting());
    }
  }

  NodePtr node_;
  std::unique_ptr<Connection> connection_;
  const Reply* reply_ = nullptr;
  std::string fault_ = "";
  bool is_lasting_ = false;
  bool has_more_ = false;
};

Cluster::Cluster(Options options)
    : options_(std::move(options)), tls_(options_.tls ? std::make_unique<TlsContext>(options_) : nullptr) {}

NodePtr Cluster::NodeAt(const Address& address) {
  std::lock_guard<std::mutex> lock(mutex_);
  NodePtr& node = nodes_[address.Text()];
  if (node == nullptr) node = std::make_shared<Node>(address, options_, tls_.get());
  return node;
}

std::vector<NodePtr> Cluster::Candidates() {
  std::vector<NodePtr> found;
  for (const Address& address : options_.entries) found.push_back(NodeAt(address));
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [name, node] : nodes_) {
    if (std::find(found.begin(), found.end(), node) == found.end()) found.push_back(node);
  }
  return found;
}

std::shared_ptr<const SlotMap> Cluster::current() {
  std::lock_guard<std::mutex> lock(mutex_);
  return map_;
}

std::shared_ptr<const SlotMap> Cluster::Map(Clock::time_point deadline) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const bool is_due = is_doubted_ && Clock::now() - read_at_ >= kRefreshEvery;
    if (map_ != nullptr && !is_due) return map_;
    read_at_ = Clock::now();  // Other threads go on with the old one meanwhile.
  }
  try {
    return Refresh(deadline);
  } catch (const TierError&) {
    if (auto old = current()) return old;
    throw;
  }
}

void Cluster::Doubt() {
  std::lock_guard<std::mutex> lock(mutex_);
  is_doubted_ = true;
}

std::shared_ptr<const SlotMap> Cluster::Refresh(Clock::time_point deadline) {
  ++counters_.refreshes;
  std::vector<Question> questions;
  for (NodePtr& node : Candidates()) questions.emplace_back(std::move(node));
  std::vector<pollfd> polled;
  while (true) {
    polled.clear();
    bool has_more = false;
    for (Question& question : questions) {
      if (question.is_over()) continue;
      if (question.Step()) {
        try {
          auto map = Adopt(question.reply(), question.node());
          question.Finish();
          return map;
        } catch (const NodeError& error) {
          question.Refuse(error.what(), error.is_lasting());
        }
      }
      if (!question.is_over()) polled.push_back(question.Poll());
      has_more |= question.has_more();
    }
    if (polled.empty() || Clock::now() >= deadline) break;
    poll(polled.data(), polled.size(), has_more ? 0 : MillisecondsUntil(deadline));
  }
  std::string reasons;
  for (const Question& question : questions) reasons += StrCat(reasons.empty() ? "" : "; ", question.fault());
  throw TierError("redis: no node says where rows lie: " + reasons);
}

std::shared_ptr<const SlotMap> Cluster::Adopt(const Reply& reply, const NodePtr& speaker) {
  auto map = std::make_shared<SlotMap>();
  map->shard_of.fill(SlotMap::kNobody);
  if (reply.IsError()) {
    if (!StartsWith(reply.text, "ERR This instance has cluster support disabled")) {
      const bool is_lasting = StartsWith(reply.text, "NOPERM") || StartsWith(reply.text, "NOAUTH");
      throw NodeError("answers CLUSTER SLOTS with " + reply.text, is_lasting);
    }
    map->shards.push_back({speaker, {}});
    map->shard_of.fill(0);
  } else {
    for (const Reply& range : reply.elements) {
      if (range.elements.size() < 3) throw NodeError("gave CLUSTER SLOTS that has a range without nodes");
      Shard shard{NodeAt(AddressOf(range.elements[2], *speaker)), {}};
      for (size_t i = 3; i < range.elements.size(); ++i) {
        shard.replicas.push_back(NodeAt(AddressOf(range.elements[i], *speaker)));
      }
      const int64_t first = range.elements[0].integer, last = range.elements[1].integer;
      if (first < 0 || last >= kNumSlots || first > last) throw NodeError("gave CLUSTER SLOTS that has no such slots");
      std::fill(map->shard_of.begin() + first, map->shard_of.begin() + last + 1, map->shards.size());
      map->shards.push_back(std::move(shard));
    }
    if (map->shards.empty()) throw NodeError("knows of no node that has slots");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  map_ = map;
  is_doubted_ = false;
  read_at_ = Clock::now();
  ForgetOthers();
  return map;
}

// Forgets the nodes that neither the map nor the options name. `mutex_` is held.
void Cluster::ForgetOthers() {
  std::set<std::string> named;
  for (const Address& address : options_.entries) named.insert(address.Text());
  for (const Shard& shard : map_->shards) {
    named.insert(shard.master->address().Text());
    for (const NodePtr& replica : shard.replicas) named.insert(replica->address().Text());
  }
  for (auto each = nodes_.begin(); each != nodes_.end();) {
    if (named.count(each->first) > 0) {
      ++each;
    } else {
      num_opened_by_forgotten_ += each->second->num_times_opened();
      each = nodes_.erase(each);
    }
  }
}

NodePtr Cluster::Moved(uint16_t slot, const Address& address) {
  NodePtr master = NodeAt(address);
  ++counters_.moved;
  std::lock_guard<std::mutex> lock(mutex_);
  is_doubted_ = true;
  if (map_ == nullptr) return master;
  const Shard* known = map_->Of(slot);
  if (known != nullptr && known->master == master) return master;
  auto map = std::make_shared<SlotMap>(*map_);
  const auto has_it = [&](const Shard& shard) { return shard.master == master; };
  auto shard = std::find_if(map->shards.begin(), map->shards.end(), has_it);
  if (shard == map->shards.end()) shard = map->shards.insert(shard, Shard{master, {}});
  map->shard_of[slot] = static_cast<int32_t>(shard - map->shards.begin());
  map_ = map;
  return master;
}

int64_t Cluster::num_breakers_opened() {
  std::lock_guard<std::mutex> lock(mutex_);
  int64_t count = num_opened_by_forgotten_;
  for (const auto& [name, node] : nodes_) count += node->num_times_opened();
  return count;
}

int64_t Cluster::num_nodes() {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(nodes_.size());
}

}  // namespace rankhouse::redis

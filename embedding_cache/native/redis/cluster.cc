#include "redis/cluster.h"

#include <poll.h>

#include <algorithm>

#include "redis/errors.h"

namespace rankhouse::redis {
namespace {

// A map in doubt is read again, but not more often than this: while slots move, each MOVED tells of one.
constexpr std::chrono::milliseconds kRefreshEvery{500};

bool StartsWith(const std::string& text, std::string_view prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

Address AddressOf(const Reply& node, Node* speaker) {
  if (node.elements.size() < 2) throw NodeError("gave CLUSTER SLOTS that has a node without address");
  Address address;
  const std::string& host = node.elements[0].text;
  address.host = host.empty() || host == "?" ? speaker->address().host : host;
  address.port = static_cast<int>(node.elements[1].integer);
  return address;
}

int MillisecondsUntil(Clock::time_point time) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace

// CLUSTER SLOTS asked of one node.
class Cluster::Question {
 public:
  explicit Question(Node* node) : node_(node) {
    std::string command;
    AppendCommand(&command, {"CLUSTER", "SLOTS"});
    Try([&] {
      connection_ = node->Take(/*is_replica=*/false);
      connection_->Send(command, 1);
    });
  }

  // Moves on without waiting. True: reply() is there.
  bool Step() {
    Try([&] {
      connection_->Transmit();
      while (reply_ == nullptr && connection_->Receive()) reply_ = connection_->Next();
      connection_->Transmit();
    });
    return reply_ != nullptr;
  }

  Node* node() const { return node_; }
  bool is_over() const { return connection_ == nullptr; }
  bool is_lasting() const { return is_lasting_; }
  const Reply& reply() const { return *reply_; }
  const std::string& fault() const { return fault_; }
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

  Node* node_;
  std::unique_ptr<Connection> connection_;
  const Reply* reply_ = nullptr;
  std::string fault_ = "";
  bool is_lasting_ = false;
};

Cluster::Cluster(Options options)
    : options_(std::move(options)), tls_(options_.tls ? std::make_unique<TlsContext>(options_) : nullptr) {}

Node* Cluster::NodeAt(const Address& address) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::unique_ptr<Node>& node = nodes_[address.Text()];
  if (node == nullptr) node = std::make_unique<Node>(address, options_, tls_.get());
  return node.get();
}

std::vector<Node*> Cluster::Candidates() {
  std::vector<Node*> found;
  for (const Address& address : options_.entries) found.push_back(NodeAt(address));
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [name, node] : nodes_) {
    if (std::find(found.begin(), found.end(), node.get()) == found.end()) found.push_back(node.get());
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
  for (Node* node : Candidates()) questions.emplace_back(node);
  std::vector<pollfd> polled;
  while (true) {
    polled.clear();
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
    }
    if (polled.empty() || Clock::now() >= deadline) break;
    poll(polled.data(), polled.size(), MillisecondsUntil(deadline));
  }
  std::string reasons;
  for (const Question& question : questions) {
    reasons += StrCat(reasons.empty() ? "" : "; ",
                      question.is_over() ? question.fault() : question.node()->address().Text() + " was silent");
  }
  throw TierError("redis: no node says where rows lie: " + reasons);
}

std::shared_ptr<const SlotMap> Cluster::Adopt(const Reply& reply, Node* speaker) {
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
      Shard shard{NodeAt(AddressOf(range.elements[2], speaker)), {}};
      for (size_t i = 3; i < range.elements.size(); ++i) {
        shard.replicas.push_back(NodeAt(AddressOf(range.elements[i], speaker)));
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
  return map;
}

Node* Cluster::Moved(uint16_t slot, const Address& address) {
  Node* master = NodeAt(address);
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
  int64_t count = 0;
  for (const auto& [name, node] : nodes_) count += node->num_times_opened();
  return count;
}

}  // namespace rankhouse::redis

#include "redis/exchange.h"

#include <poll.h>

#include <algorithm>
#include <deque>
#include <memory>

#include "redis/errors.h"

namespace rankhouse::redis {
namespace {

// Commands are written ahead of the socket up to so many bytes, so that a push does not lie in memory twice.
constexpr size_t kUnsentBytes = 256 << 10;
// More mean that the nodes contradict each other.
constexpr int kMostRedirections = 16;
// A node that has more to say lets the others have a turn after so many parts.
constexpr int kMostParts = 64;
// Without hedging, a node that was silent for so long at the end of a call has failed it.
constexpr std::chrono::milliseconds kSilence{10};
// What no node could do is tried again after this time, which doubles.
constexpr std::chrono::milliseconds kFirstPause{10}, kLongestPause{200};

bool StartsWith(const std::string& text, std::string_view prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

// Where "MOVED 3999 10.0.0.7:6379", or ASK, sends a command.
Address RedirectionOf(const std::string& text, const Node& speaker) {
  try {
    const size_t space = text.rfind(' '), colon = text.rfind(':');
    const bool has_slot = space != text.find(' '), has_port = colon != std::string::npos && colon + 1 < text.size();
    if (has_slot && has_port && colon > space) {
      return ParseAddress(std::string_view(text).substr(space + 1), speaker.address().host);
    }
  } catch (const Error&) {
    // What would be a wrong option is a wrong answer here.
  }
  throw NodeError(StrCat("answers '", text.substr(0, 100), "', which names no slot and node to go to"));
}

// A command on its way to one node.
struct Item {
  static constexpr int32_t kAsking = -1;  // not one of the list: the ASKING before the next

  int32_t command;
  bool is_asked;  // to be sent with ASKING
};

// What goes to one node through one connection.
struct Lane {
  NodePtr node;
  bool is_replica;
  std::unique_ptr<Connection> connection;  // NULL: the node failed in this exchange
  std::deque<Item> waiting, sent;
  Clock::time_point moved_on_at;  // when it last brought something, or was given something to do
  bool has_answered = false, is_hedged = false;

  bool is_busy() const { return connection != nullptr && !(waiting.empty() && sent.empty()); }
};

class Run {
 public:
  Run(Cluster* cluster, const Commands& commands, Access access, Clock::time_point deadline,
      const ReplyHandler& handler)
      : cluster_(*cluster),
        commands_(commands),
        is_read_(access == Access::kRead),
        deadline_(deadline),
        handler_(handler),
        states_(commands.size()),
        num_left_(commands.size()) {}

  void ToTheEnd() {
    map_ = cluster_.Map(deadline_);
    cluster_.counters().commands += commands_.size();
    for (int32_t command = 0; command < commands_.size(); ++command) Assign(command);
    while (true) {
      has_more_ = false;
      // Lanes may be added meanwhile.
      for (size_t i = 0; i < lanes_.size(); ++i) Step(lanes_[i].get());
      if (num_left_ == 0) break;
      const Clock::time_point now = Clock::now();
      if (now >= deadline_) GiveUp();
      if (now >= wake_at_) Wake();
      HedgeWhere(now);
      Wait();
    }
    Finish();
  }

 private:
  struct State {
    bool is_done = false;
    uint8_t num_lanes = 0;  // that have it, and did not fail
    uint8_t num_redirections = 0;
  };

  // Gives a command to the node that is to do it now.
  void Assign(int32_t command) {
    const Shard* shard = map_->Of(commands_.slot(command));
    if (shard == nullptr) return Later(command, StrCat("no node has slot ", commands_.slot(command)));
    if (!is_read_) return Offer(shard->master, false, command) ? void() : Later(command, "");
    if (Offer(shard->master, false, command)) return;
    for (const NodePtr& replica : shard->replicas) {
      if (Offer(replica, true, command)) return;
    }
    if (!HasFailedHere(*shard)) {
      std::string message = StrCat("redis: ", shard->master->address().Text(), " ", shard->master->WhyRefused());
      for (const NodePtr& replica : shard->replicas) message += StrCat(", and its replica ", replica->address().Text());
      throw TierError(message);
    }
    Later(command, "");
  }

  // Adds a command to a node's lane, if the node may be used. A write tries whatever its breaker says.
  bool Offer(const NodePtr& node, bool is_replica, int32_t command, bool is_asked = false) {
    Lane* lane = LaneOf(node, is_replica);
    if (lane == nullptr || lane->connection == nullptr) return false;
    if (!lane->is_busy()) lane->moved_on_at = Clock::now();
    lane->waiting.push_back({command, is_asked});
    has_more_ = true;
    ++states_[command].num_lanes;
    return true;
  }

  // Returns the lane of a node; NULL if its breaker is open.
  Lane* LaneOf(const NodePtr& node, bool is_replica) {
    for (const auto& lane : lanes_) {
      if (lane->node == node && lane->is_replica == is_replica) return lane.get();
    }
    if (std::find(refused_.begin(), refused_.end(), node) != refused_.end()) return nullptr;
    if (is_read_ && !node->Admits()) {
      refused_.push_back(node);
      return nullptr;
    }
    auto lane = std::make_unique<Lane>();
    lane->node = node;
    lane->is_replica = is_replica;
    lanes_.push_back(std::move(lane));
    Lane* added = lanes_.back().get();
    try {
      added->connection = node->Take(is_replica);
    } catch (const NodeError& error) {
      Broke(added, error);
    }
    return added;
  }

  bool HasFailedHere(const Shard& shard) const {
    return std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) {
      const bool is_one = lane->node == shard.master ||
                          std::find(shard.replicas.begin(), shard.replicas.end(), lane->node) != shard.replicas.end();
      return is_one && lane->connection == nullptr;
    });
  }

  // Keeps a command until the map was read again.
  void Later(int32_t command, const std::string& reason) {
    if (!reason.empty()) last_reason_ = reason;
    parked_.push_back(command);
    if (wake_at_ != Clock::time_point::max()) return;
    wake_at_ = Clock::now() + pause_;
    pause_ = std::min(2 * pause_, kLongestPause);
  }

  void Wake() {
    wake_at_ = Clock::time_point::max();
    // Nodes that failed are tried again.
    const auto has_failed = [](const auto& lane) { return lane->connection == nullptr; };
    lanes_.erase(std::remove_if(lanes_.begin(), lanes_.end(), has_failed), lanes_.end());
    refused_.clear();
    try {
      // A paused node must not take all the time that is left.
      map_ = cluster_.Refresh(std::min(deadline_, Clock::now() + 2 * kLongestPause));
    } catch (const TierError& error) {
      // Where only the time is over, what a node said before tells more.
      if (last_reason_.empty() || Clock::now() < deadline_) last_reason_ = error.what();
    }
    std::vector<int32_t> parked;
    parked.swap(parked_);
    for (const int32_t command : parked) Assign(command);
  }

  // Sends and receives what goes without waiting.
  void Step(Lane* lane) {
    if (!lane->is_busy()) return;
    try {
      Fill(lane);
      lane->connection->Transmit();
      for (int part = 0; lane->connection->Receive(); ++part) {
        while (const Reply* reply = lane->connection->Next()) Answered(lane, *reply);
        Fill(lane);
        lane->connection->Transmit();
        if (part == kMostParts) {
          has_more_ = true;
          return;
        }
      }
    } catch (const NodeError& error) {
      Broke(lane, error);
    }
  }

  void Fill(Lane* lane) {
    static const std::string asking = [] {
      std::string bytes;
      AppendCommand(&bytes, {"ASKING"});
      return bytes;
    }();
    const size_t most = static_cast<size_t>(cluster_.options().batch);
    while (!lane->waiting.empty() && lane->sent.size() < most && lane->connection->num_unsent() < kUnsentBytes) {
      const Item item = lane->waiting.front();
      lane->waiting.pop_front();
      if (states_[item.command].is_done) {
        --states_[item.command].num_lanes;
        continue;
      }
      if (item.is_asked) {
        lane->connection->Send(asking, 1);
        lane->sent.push_back({Item::kAsking, false});
      }
      lane->connection->Send(commands_.bytes(item.command), 1);
      lane->sent.push_back(item);
    }
  }

  void Answered(Lane* lane, const Reply& reply) {
    lane->moved_on_at = Clock::now();
    const Item item = lane->sent.front();
    if (item.command != Item::kAsking) {
      State& state = states_[item.command];
      if (!state.is_done && reply.IsError()) {
        Refused(lane, item.command, reply.text);
      } else if (!state.is_done) {
        if (handler_(item.command, reply, {lane->node.get(), lane->is_replica})) {
          state.is_done = true;
          --num_left_;
        } else {
          AskMaster(item.command);
        }
      }
      --state.num_lanes;
    }
    lane->has_answered = true;
    lane->sent.pop_front();
  }

  // A replica does not have it.
  void AskMaster(int32_t command) {
    const Shard* shard = map_->Of(commands_.slot(command));
    if (shard == nullptr || !Offer(shard->master, false, command)) {
      Later(command, "a replica does not have the key, and its master does not answer");
    }
  }

  // The node answered a command by an error.
  void Refused(Lane* lane, int32_t command, const std::string& text) {
    const bool is_moved = StartsWith(text, "MOVED"), is_asked = StartsWith(text, "ASK");
    if (is_moved || is_asked) return Redirect(lane, command, text, is_asked);
    const std::string answer = StrCat(lane->node->address().Text(), " answers ", text);
    if (StartsWith(text, "TRYAGAIN")) return Later(command, answer);
    for (const char* state : {"LOADING", "MASTERDOWN", "CLUSTERDOWN", "READONLY", "BUSY "}) {
      if (StartsWith(text, state)) throw NodeError("answers " + text);
    }
    throw TierError("redis: " + answer);
  }

  void Redirect(Lane* lane, int32_t command, const std::string& text, bool is_asked) {
    if (++states_[command].num_redirections > kMostRedirections) {
      throw TierError(StrCat("redis: slot ", commands_.slot(command), " is sent from node to node, lastly by ",
                             lane->node->address().Text(), " (", text, "): see CLUSTER SLOTS of the nodes"));
    }
    const Address to = RedirectionOf(text, *lane->node);
    NodePtr node;
    if (is_asked) {
      ++cluster_.counters().asked;
      node = cluster_.NodeAt(to);
    } else {
      node = cluster_.Moved(commands_.slot(command), to);
      map_ = cluster_.current();
    }
    if (!Offer(node, false, command, is_asked)) {
      Later(command, StrCat(lane->node->address().Text(), " answers ", text, ", and that node does not answer"));
    }
  }

  // A node failed: others do what it has left.
  void Broke(Lane* lane, const NodeError& error) {
    const std::string reason = StrCat(lane->node->address().Text(), " ", error.what());
    if (error.is_lasting()) throw TierError("redis: " + reason);
    Failed(lane, error.what());
    lane->connection.reset();
    last_reason_ = reason;
    std::deque<Item> left;
    left.swap(lane->sent);
    left.insert(left.end(), lane->waiting.begin(), lane->waiting.end());
    lane->waiting.clear();
    for (const Item& item : left) {
      if (item.command == Item::kAsking) continue;
      State& state = states_[item.command];
      if (--state.num_lanes == 0 && !state.is_done) Assign(item.command);
    }
  }

  void Failed(Lane* lane, const std::string& reason) {
    ++cluster_.counters().failures;
    lane->node->Failed(reason);
    cluster_.Doubt();
  }

  bool IsSilent(const Lane& lane, Clock::time_point now) const {
    const auto hedge = cluster_.options().hedge;
    return now - lane.moved_on_at >= (hedge.count() == 0 ? kSilence : hedge);
  }

  // Gives to replicas what masters have been silent about for too long.
  void HedgeWhere(Clock::time_point now) {
    if (!is_read_ || cluster_.options().hedge.count() == 0) return;
    for (size_t i = 0; i < lanes_.size(); ++i) {
      Lane* lane = lanes_[i].get();
      if (lane->is_replica || lane->is_hedged || !lane->is_busy() || !IsSilent(*lane, now)) continue;
      lane->is_hedged = true;
      std::vector<int32_t> open;
      for (const auto* items : {&lane->sent, &lane->waiting}) {
        for (const Item& item : *items) {
          if (item.command != Item::kAsking && !states_[item.command].is_done) open.push_back(item.command);
        }
      }
      for (const int32_t command : open) Hedge(command);
    }
  }

  void Hedge(int32_t command) {
    const Shard* shard = map_->Of(commands_.slot(command));
    if (shard == nullptr) return;
    for (const NodePtr& replica : shard->replicas) {
      if (!Offer(replica, true, command)) continue;
      ++cluster_.counters().hedges;
      return;
    }
  }

  // Waits until something has come, or is due.
  void Wait() {
    polled_.clear();
    Clock::time_point until = std::min(deadline_, wake_at_);
    for (const auto& lane : lanes_) {
      if (!lane->is_busy()) continue;
      polled_.push_back({lane->connection->fd(), lane->connection->events(), 0});
      const bool may_hedge = is_read_ && !lane->is_replica && !lane->is_hedged && cluster_.options().hedge.count() > 0;
      if (may_hedge) until = std::min(until, lane->moved_on_at + cluster_.options().hedge);
    }
    const auto left = has_more_ ? 0 : std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    poll(polled_.data(), polled_.size(), static_cast<int>(std::clamp<int64_t>(left, 0, 60'000)));
  }

  [[noreturn]] void GiveUp() {
    std::string silent;
    for (const auto& lane : lanes_) {
      if (!lane->is_busy()) continue;
      const bool is_resolving = lane->connection->is_resolving();
      if (!lane->has_answered || IsSilent(*lane, Clock::now())) {
        Failed(lane.get(), is_resolving ? "its name was not resolved by the deadline" : "no answer by the deadline");
      }
      silent += StrCat(silent.empty() ? "" : " and ", lane->node->address().Text(),
                       is_resolving ? ", whose name was not resolved" : "");
    }
    throw TierError(StrCat("redis: ", num_left_, " of ", commands_.size(), " answers did not come by the deadline",
                           silent.empty() ? "" : ": no answer from " + silent,
                           last_reason_.empty() ? "" : "; last failure: " + last_reason_));
  }

  // Gives the connections back. Where a hedge was faster, its lane's replies are still to come.
  void Finish() {
    const Clock::time_point now = Clock::now();
    for (const auto& lane : lanes_) {
      if (lane->connection == nullptr) continue;
      if (!lane->sent.empty() && IsSilent(*lane, now)) {
        Failed(lane.get(), "no answer, while another node had it");
      } else if (lane->has_answered) {
        lane->node->Succeeded();
      }
      lane->connection->Abandon();
      lane->node->Give(std::move(lane->connection));
    }
  }

  Cluster& cluster_;
  const Commands& commands_;
  const bool is_read_;
  const Clock::time_point deadline_;
  const ReplyHandler& handler_;
  std::shared_ptr<const SlotMap> map_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<NodePtr> refused_;  // nodes whose breaker is open
  std::vector<State> states_;
  int32_t num_left_;
  std::vector<int32_t> parked_;
  Clock::time_point wake_at_ = Clock::time_point::max();
  std::chrono::milliseconds pause_ = kFirstPause;
  std::string last_reason_;
  std::vector<pollfd> polled_;
  bool has_more_ = false;  // A lane has more to read or to send, which poll may not know.
};

}  // namespace

void Commands::AddTo(uint16_t slot, std::initializer_list<std::string_view> arguments) {
  AppendCommand(&bytes_, arguments);
  ends_.push_back(bytes_.size());
  slots_.push_back(slot);
}

void Exchange(Cluster* cluster, const Commands& commands, Access access, Clock::time_point deadline,
              const ReplyHandler& handler) {
  if (commands.size() > 0) Run(cluster, commands, access, deadline, handler).ToTheEnd();
}

}  // namespace rankhouse::redis

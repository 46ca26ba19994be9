// A Redis Cluster as its nodes describe it, or one plain server.
#ifndef RANKHOUSE_REDIS_CLUSTER_H_
#define RANKHOUSE_REDIS_CLUSTER_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "redis/node.h"
#include "redis/options.h"
#include "redis/slots.h"

namespace rankhouse::redis {

// The nodes that hold a range of slots.
struct Shard {
  NodePtr master;
  std::vector<NodePtr> replicas;
};

// Which shard has which slot. Immutable.
struct SlotMap {
  static constexpr int32_t kNobody = -1;

  std::vector<Shard> shards;
  std::array<int32_t, kNumSlots> shard_of;

  const Shard* Of(uint16_t slot) const { return shard_of[slot] == kNobody ? nullptr : &shards[shard_of[slot]]; }
};

// What calls did so far.
struct Counters {
  std::atomic<int64_t> commands{0};
  std::atomic<int64_t> hedges{0};     // commands sent to a replica too because the master was silent
  std::atomic<int64_t> moved{0};      // answers MOVED
  std::atomic<int64_t> asked{0};      // answers ASK
  std::atomic<int64_t> failures{0};   // nodes that failed a call
  std::atomic<int64_t> refreshes{0};  // times that the map was read
};

// Any thread may use it.
class Cluster {
 public:
  // Connects to nothing yet. Throws Error (RH_INVALID_ARGUMENT) if a certificate cannot be read.
  explicit Cluster(Options options);

  const Options& options() const { return options_; }
  Counters& counters() { return counters_; }

  // Returns the map, reading it first if there is none, or if there has been doubt for a while. Throws TierError if
  // there is none.
  std::shared_ptr<const SlotMap> Map(Clock::time_point deadline);

  // Returns the map as it is; NULL if there is none.
  std::shared_ptr<const SlotMap> current();

  // The map may be outdated: it is read again soon.
  void Doubt();

  // Reads the map from whichever node answers first: all those known and all entries are asked. Throws TierError.
  std::shared_ptr<const SlotMap> Refresh(Clock::time_point deadline);

  // Takes note of an answer MOVED. Returns the slot's master.
  NodePtr Moved(uint16_t slot, const Address& address);

  // Returns the node of an address: the same one until a map is read in which it no longer is.
  NodePtr NodeAt(const Address& address);

  // How often a breaker opened.
  int64_t num_breakers_opened();

  // How many nodes are known: those of the map, the entries, and those that were named since the map was read.
  int64_t num_nodes();

 private:
  class Question;

  std::vector<NodePtr> Candidates();
  std::shared_ptr<const SlotMap> Adopt(const Reply& reply, const NodePtr& speaker);
  void ForgetOthers();

  const Options options_;
  const std::unique_ptr<TlsContext> tls_;
  Counters counters_;

  std::mutex mutex_;                      // guards all below
  std::map<std::string, NodePtr> nodes_;  // by address
  int64_t num_opened_by_forgotten_ = 0;   // breakers of nodes that are gone
  std::shared_ptr<const SlotMap> map_;
  bool is_doubted_ = false;
  Clock::time_point read_at_{};
};

}  // namespace rankhouse::redis

#endif  // RANKHOUSE_REDIS_CLUSTER_H_

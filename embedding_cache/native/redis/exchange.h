// Commands for any slots, sent to their nodes all at once, and their replies.
#ifndef RANKHOUSE_REDIS_EXCHANGE_H_
#define RANKHOUSE_REDIS_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "redis/cluster.h"
#include "redis/resp.h"

namespace rankhouse::redis {

// A list of commands, each of one slot.
class Commands {
 public:
  // Adds a command of a key, which is its second argument.
  void Add(std::initializer_list<std::string_view> arguments) { AddTo(SlotOf(*(arguments.begin() + 1)), arguments); }

  // Adds a command for the node that has the slot.
  void AddTo(uint16_t slot, std::initializer_list<std::string_view> arguments);

  int32_t size() const { return static_cast<int32_t>(slots_.size()); }
  uint16_t slot(int32_t command) const { return slots_[command]; }
  std::string_view bytes(int32_t command) const {
    const size_t begin = command == 0 ? 0 : ends_[command - 1];
    return std::string_view(bytes_).substr(begin, ends_[command] - begin);
  }

 private:
  std::string bytes_;
  std::vector<size_t> ends_;
  std::vector<uint16_t> slots_;
};

enum class Access {
  kRead,   // of what never changes: a replica's answer is as good as its master's
  kWrite,  // goes to masters alone, and waits for one that is being replaced; must be harmless when done twice
};

// Where a reply came from.
struct Source {
  const Node* node;
  bool is_replica;
};

// Takes the reply to a command. Returns false if a replica does not have yet what the command asks for: the master is
// asked then, whose reply it must take. What it throws ends the exchange.
using ReplyHandler = std::function<bool(int32_t command, const Reply& reply, const Source& source)>;

// Sends all commands and hands each reply over once, in any order; commands to one node are done in the order of the
// list unless a redirection or a failure parts them. Follows MOVED and ASK; goes on with replicas where a master fails
// or, after `hedge`, is silent. Throws TierError if that did not succeed by the deadline, or cannot.
void Exchange(Cluster* cluster, const Commands& commands, Access access, Clock::time_point deadline,
              const ReplyHandler& handler);

}  // namespace rankhouse::redis

#endif  // RANKHOUSE_REDIS_EXCHANGE_H_

// What can go wrong between us and Redis.
//
// engine::TierError   the answer did not come; names the node or the key, and what to do
// NodeError           one node failed, and another may answer; never leaves this folder
#ifndef RANKHOUSE_REDIS_ERRORS_H_
#define RANKHOUSE_REDIS_ERRORS_H_

#include <stdexcept>
#include <string>

#include "engine/row_store.h"

namespace rankhouse::redis {

using engine::TierError;

class NodeError : public std::runtime_error {
 public:
  // is_lasting: asking again, or another node, is no use: credentials and certificates.
  explicit NodeError(const std::string& message, bool is_lasting = false)
      : std::runtime_error(message), is_lasting_(is_lasting) {}
  bool is_lasting() const { return is_lasting_; }

 private:
  bool is_lasting_;
};

}  // namespace rankhouse::redis

#endif  // RANKHOUSE_REDIS_ERRORS_H_

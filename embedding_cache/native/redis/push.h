// Brings files and versions into Redis: FORMAT.md, "In Redis".
#ifndef RANKHOUSE_REDIS_PUSH_H_
#define RANKHOUSE_REDIS_PUSH_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "format/mapped_file.h"
#include "redis/cluster.h"
#include "redis/exchange.h"
#include "redis/stored_file.h"

namespace rankhouse::redis {

// One thread at a time. What is in Redis already is not sent again, so a push that broke is just done again; and
// nothing is removed, overwritten by other content, or left to expire sooner than before. Methods throw TierError.
class Push {
 public:
  // expires_at_ms: when the keys expire, in milliseconds since 1970; 0: never. Keys that stay longer already, stay.
  // patience: how long a step of some MiB may take, such as the election of a new master.
  Push(Cluster* cluster, int64_t expires_at_ms, std::chrono::milliseconds patience);

  // Called with the bytes of a file that have been done since the last call; false: stop.
  using Progress = std::function<bool(int64_t num_bytes)>;

  // Sends what Redis lacks of a file, reads all of it back and compares it. Returns the bytes sent. Throws Error
  // (RH_CORRUPT) if the file cannot be read.
  int64_t File(const std::string& path, const FileLayout& layout, const Progress& progress);

  // Waits until the replicas have what their masters have, then writes the version's key: the version is there now.
  void Commit(const std::string& name, const std::string& document);

 private:
  void KeepLonger(const std::string& key, Commands* commands) const;
  void Set(const std::string& key, std::string_view value, bool only_if_new, Commands* commands) const;
  std::vector<int64_t> Missing(const FileLayout& layout, int64_t begin, int64_t end);
  void Write(const format::MappedFile& file, const FileLayout& layout, const std::vector<int64_t>& pieces);
  std::vector<int64_t> Different(const format::MappedFile& file, const FileLayout& layout, int64_t begin, int64_t end);
  void Keep(const std::string& key, const std::string& value);
  void AwaitReplicas();
  void Send(const Commands& commands, const std::function<void(int32_t, const Reply&)>& handler);

  Cluster* const cluster_;
  const std::string expires_at_ms_;  // empty: never
  const std::chrono::milliseconds patience_;
};

// Returns the document of a pushed version. Throws TierError if it is not there.
std::string ReadVersion(Cluster* cluster, const std::string& name, Clock::time_point deadline);

}  // namespace rankhouse::redis

#endif  // RANKHOUSE_REDIS_PUSH_H_

#include "redis/push.h"

#include <algorithm>

#include "core/status.h"
#include "format/json.h"
#include "redis/errors.h"

namespace rankhouse::redis {
namespace {

// Some MiB: enough to keep all nodes at work, and little to lose.
constexpr int64_t kPiecesAtOnce = 128;

std::string_view At(const format::MappedFile& file, FileLayout::Range range) {
  return {reinterpret_cast<const char*>(file.data()) + range.begin, static_cast<size_t>(range.size())};
}

std::string VersionKey(const std::string& name) { return "rh:version:" + name; }

}  // namespace

Push::Push(Cluster* cluster, int64_t expires_at_ms, std::chrono::milliseconds patience)
    : cluster_(cluster), expires_at_ms_(expires_at_ms == 0 ? "" : std::to_string(expires_at_ms)), patience_(patience) {}

void Push::Send(const Commands& commands, const std::function<void(int32_t, const Reply&)>& handler) {
  Exchange(cluster_, commands, Access::kWrite, Clock::now() + patience_,
           [&](int32_t command, const Reply& reply, const Source&) {
             handler(command, reply);
             return true;
           });
}

void Push::KeepLonger(const std::string& key, Commands* commands) const {
  if (expires_at_ms_.empty()) {
    commands->Add({"PERSIST", key});
  } else {
    commands->Add({"PEXPIREAT", key, expires_at_ms_, "GT"});
  }
}

void Push::Set(const std::string& key, std::string_view value, bool only_if_new, Commands* commands) const {
  if (only_if_new) {
    if (expires_at_ms_.empty()) return commands->Add({"SET", key, value, "NX"});
    return commands->Add({"SET", key, value, "NX", "PXAT", expires_at_ms_});
  }
  if (expires_at_ms_.empty()) return commands->Add({"SET", key, value});
  commands->Add({"SET", key, value, "PXAT", expires_at_ms_});
}

std::vector<int64_t> Push::Missing(const FileLayout& layout, int64_t begin, int64_t end) {
  Commands commands;
  for (int64_t piece = begin; piece < end; ++piece) {
    const std::string key = layout.KeyOf(piece);
    KeepLonger(key, &commands);
    commands.Add({"STRLEN", key});
  }
  std::vector<int64_t> missing;
  Send(commands, [&](int32_t command, const Reply& reply) {
    const int64_t piece = begin + command / 2;
    if (command % 2 == 1 && reply.integer != layout.RangesOf(piece).size()) missing.push_back(piece);
  });
  return missing;
}

void Push::Write(const format::MappedFile& file, const FileLayout& layout, const std::vector<int64_t>& pieces) {
  Commands commands;
  for (const int64_t piece : pieces) {
    const FileLayout::PieceRanges ranges = layout.RangesOf(piece);
    if (ranges.second.size() == 0) {
      Set(layout.KeyOf(piece), At(file, ranges.first), /*only_if_new=*/false, &commands);
    } else {
      const std::string value = StrCat(At(file, ranges.first), At(file, ranges.second));
      Set(layout.KeyOf(piece), value, /*only_if_new=*/false, &commands);
    }
  }
  Send(commands, [](int32_t, const Reply&) {});
}

std::vector<int64_t> Push::Different(const format::MappedFile& file, const FileLayout& layout, int64_t begin,
                                     int64_t end) {
  Commands commands;
  for (int64_t piece = begin; piece < end; ++piece) commands.Add({"GET", layout.KeyOf(piece)});
  std::vector<int64_t> different;
  Send(commands, [&](int32_t command, const Reply& reply) {
    const FileLayout::PieceRanges ranges = layout.RangesOf(begin + command);
    const std::string_view found = reply.text, first = At(file, ranges.first), second = At(file, ranges.second);
    const bool is_same = found.size() == first.size() + second.size() && found.substr(0, first.size()) == first &&
                         found.substr(first.size()) == second;
    if (!is_same) different.push_back(begin + command);
  });
  return different;
}

int64_t Push::File(const std::string& path, const FileLayout& layout, const Progress& progress) {
  const format::MappedFile file(path);
  format::RequireIntact(file.size() == layout.bytes, path, "has ", file.size(), " bytes, expected ", layout.bytes);
  int64_t num_sent = 0;
  for (int64_t begin = 0; begin < layout.num_pieces(); begin += kPiecesAtOnce) {
    const int64_t end = std::min(begin + kPiecesAtOnce, layout.num_pieces());
    std::vector<int64_t> open = Missing(layout, begin, end);
    // Once more for pieces that hold something else, such as what an operator wrote.
    for (int attempt = 0; attempt < 2; ++attempt) {
      Write(file, layout, open);
      for (const int64_t piece : open) num_sent += layout.RangesOf(piece).size();
      open = Different(file, layout, begin, end);
      if (open.empty()) break;
    }
    if (!open.empty()) {
      throw TierError(StrCat("redis: ", layout.KeyOf(open[0]),
                             " does not hold what was written there: it is evicted at "
                             "once, or another writer uses the key; see Redis' maxmemory and maxmemory-policy"));
    }
    int64_t num_done = 0;
    for (int64_t piece = begin; piece < end; ++piece) num_done += layout.RangesOf(piece).size();
    if (!progress(num_done)) throw TierError("redis: the push was stopped; do it again to go on");
  }
  Keep(layout.DescriptionKey(), layout.Describe());
  return num_sent;
}

void Push::Keep(const std::string& key, const std::string& value) {
  Commands commands;
  Set(key, value, /*only_if_new=*/true, &commands);
  KeepLonger(key, &commands);
  commands.Add({"GET", key});
  Send(commands, [&](int32_t command, const Reply& reply) {
    if (command == 2 && reply.text != value) {
      throw TierError(StrCat("redis: ", key, " holds '", reply.text.substr(0, 400),
                             "', which another release wrote; "
                             "expected '",
                             value, "': delete the key, or wait until it expires"));
    }
  });
}

void Push::AwaitReplicas() {
  const auto map = cluster_->Refresh(Clock::now() + patience_);
  // A little less, so that the answer still comes.
  const std::string timeout = std::to_string(std::max<int64_t>(patience_.count() * 9 / 10, 1));
  std::vector<bool> is_seen(map->shards.size());
  std::vector<const Shard*> shards;
  Commands commands;
  for (int slot = 0; slot < kNumSlots; ++slot) {
    const Shard* shard = map->Of(static_cast<uint16_t>(slot));
    if (shard == nullptr || shard->replicas.empty() || is_seen[map->shard_of[slot]]) continue;
    is_seen[map->shard_of[slot]] = true;
    shards.push_back(shard);
    // WAIT is for what the same connection did before: PING stands for all that the master had done by then.
    commands.AddTo(static_cast<uint16_t>(slot), {"PING"});
    commands.AddTo(static_cast<uint16_t>(slot), {"WAIT", std::to_string(shard->replicas.size()), timeout});
  }
  Send(commands, [&](int32_t command, const Reply& reply) {
    const Shard& shard = *shards[command / 2];
    if (command % 2 == 0 || reply.integer >= static_cast<int64_t>(shard.replicas.size())) return;
    throw TierError(StrCat("redis: ", reply.integer, " of ", shard.replicas.size(), " replicas of ",
                           shard.master->address().Text(), " have what was pushed, after ", timeout,
                           " ms; push again when they have caught up"));
  });
}

void Push::Commit(const std::string& name, const std::string& document) {
  AwaitReplicas();
  Keep(VersionKey(name), document);
}

std::string ReadVersion(Cluster* cluster, const std::string& name, Clock::time_point deadline) {
  Commands commands;
  commands.Add({"GET", VersionKey(name)});
  std::string document;
  Exchange(cluster, commands, Access::kRead, deadline, [&](int32_t, const Reply& reply, const Source& source) {
    if (reply.kind != Reply::Kind::kText && source.is_replica) return false;
    if (reply.kind != Reply::Kind::kText) {
      throw TierError(StrCat("redis: ", source.node->address().Text(), " does not have version ", name, " (key ",
                             VersionKey(name), "): it was not pushed to its end, or its time ended; push it"));
    }
    document = reply.text;
    return true;
  });
  return document;
}

}  // namespace rankhouse::redis

// The C interface of the Redis tier.
#include <cstring>
#include <memory>
#include <string>

#include "core/status.h"
#include "format/json.h"
#include "rankhouse/redis.h"
#include "redis/cluster.h"
#include "redis/options.h"
#include "redis/push.h"
#include "redis/stored_file.h"

using rankhouse::Guard;
using rankhouse::Require;
using rankhouse::StrCat;
using rankhouse::redis::Clock;
using rankhouse::redis::Cluster;
using rankhouse::redis::FileLayout;
using rankhouse::redis::Options;
using rankhouse::redis::Push;
using rankhouse::redis::ReadRows;
using rankhouse::redis::StoredFile;

struct rh_redis {
  Cluster cluster;
};

struct rh_redis_file {
  Cluster& cluster;
  StoredFile file;
};

namespace {

constexpr int64_t kPatienceMs = 30'000;

Clock::time_point DeadlineOf(const Cluster& cluster, int64_t deadline_ms) {
  return Clock::now() + (deadline_ms > 0 ? std::chrono::milliseconds(deadline_ms) : cluster.options().deadline);
}

Push PushOf(rh_redis* redis, const rh_redis_push* push) {
  Require(redis != nullptr && push != nullptr, "redis: redis and push must not be NULL");
  const int64_t patience_ms = push->patience_ms > 0 ? push->patience_ms : kPatienceMs;
  return Push(&redis->cluster, push->expires_at_ms, std::chrono::milliseconds(patience_ms));
}

}  // namespace

int rh_redis_create(const char* options, rh_redis** redis) {
  return Guard([&] {
    Require(options != nullptr && redis != nullptr, "redis: options and redis must not be NULL");
    *redis = new rh_redis{Cluster(Options::Parse(options))};
  });
}

void rh_redis_destroy(rh_redis* redis) { delete redis; }

int rh_redis_counters(rh_redis* redis, char* text, int64_t capacity, int64_t* size) {
  return Guard([&] {
    Require(redis != nullptr && size != nullptr, "redis: redis and size must not be NULL");
    const auto& counters = redis->cluster.counters();
    const rankhouse::format::Json document = {{"commands", counters.commands.load()},
                                              {"hedges", counters.hedges.load()},
                                              {"moved", counters.moved.load()},
                                              {"asked", counters.asked.load()},
                                              {"failures", counters.failures.load()},
                                              {"refreshes", counters.refreshes.load()},
                                              {"breakers_opened", redis->cluster.num_breakers_opened()},
                                              {"nodes", redis->cluster.num_nodes()}};
    const std::string written = document.dump();
    *size = static_cast<int64_t>(written.size()) + 1;
    if (capacity >= *size) std::memcpy(text, written.c_str(), *size);
  });
}

int rh_redis_push_file(rh_redis* redis, const char* path, const rh_redis_layout* layout, const rh_redis_push* push,
                       int64_t* num_sent) {
  return Guard([&] {
    Require(path != nullptr && layout != nullptr && layout->sha256 != nullptr && num_sent != nullptr,
            "redis: path, layout, its sha256 and num_sent must not be NULL");
    const FileLayout given =
        FileLayout::Of(layout->sha256, layout->bytes, layout->rows_begin, layout->row_bytes, layout->num_rows);
    *num_sent = PushOf(redis, push).File(path, given, [&](int64_t num_bytes) {
      return push->progress == nullptr || push->progress(push->context, num_bytes) == 0;
    });
  });
}

int rh_redis_push_version(rh_redis* redis, const char* name, const char* document, const rh_redis_push* push) {
  return Guard([&] {
    Require(name != nullptr && document != nullptr, "redis: name and document must not be NULL");
    PushOf(redis, push).Commit(name, document);
  });
}

int rh_redis_file_open(rh_redis* redis, const char* sha256, int64_t deadline_ms, rh_redis_file** file) {
  return Guard([&] {
    Require(redis != nullptr && sha256 != nullptr && file != nullptr, "redis: redis, sha256 and file must not be NULL");
    *file =
        new rh_redis_file{redis->cluster, StoredFile(&redis->cluster, sha256, DeadlineOf(redis->cluster, deadline_ms))};
  });
}

void rh_redis_file_close(rh_redis_file* file) { delete file; }

int rh_redis_file_read(rh_redis_file* file, const int64_t* rows, int64_t n, void* out, int64_t deadline_ms) {
  return Guard([&] {
    Require(file != nullptr && n >= 0 && (n == 0 || (rows != nullptr && out != nullptr)),
            "redis: file, rows and out must not be NULL, and n not negative");
    const std::unique_ptr<bool[]> arrived(new bool[n]());
    ReadRows(&file->cluster, {{&file->file, rows, n, static_cast<std::byte*>(out), arrived.get()}},
             DeadlineOf(file->cluster, deadline_ms));
  });
}

int rh_redis_file_around(rh_redis_file* file, void* out, int64_t capacity, int64_t deadline_ms) {
  return Guard([&] {
    Require(file != nullptr && out != nullptr, "redis: file and out must not be NULL");
    const std::string around = file->file.ReadAround(DeadlineOf(file->cluster, deadline_ms));
    Require(capacity >= static_cast<int64_t>(around.size()), "redis: the file has ", around.size(),
            " bytes around its rows, out only ", capacity);
    std::memcpy(out, around.data(), around.size());
  });
}

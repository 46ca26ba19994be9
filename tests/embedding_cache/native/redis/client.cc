// The client of Redis as its users call it: files pushed and read by several threads while connections break, nodes
// that say anything at all, and names that nobody resolves.
//
//   client read OPTIONS FILE SECONDS   pushes a file to a server, then reads it by several threads for so long
//   client refuse OPTIONS COUNT        opens a file so many times where no node has it, or none that makes sense
//   client names PORT                  opens a file by names of which some are never resolved; PORT: of a server
#include <dlfcn.h>
#include <netdb.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rankhouse/engine.h"
#include "rankhouse/redis.h"

namespace {

constexpr char kSha256[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
constexpr int64_t kRowBytes = 24, kRowsBegin = 100, kBehind = 7;  // of the file that is pushed
constexpr int kThreads = 4;

void Expect(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "not so: %s; last error: %s\n", what, rh_last_error());
  std::abort();
}

// A name server that does not answer: whoever asks for a name of .silent waits until it is told to speak.
std::mutex silent_mutex;
std::condition_variable silent_condition;
bool speaks = false;
std::atomic<int> num_asked{0};

struct Destroy {
  void operator()(rh_redis* redis) const { rh_redis_destroy(redis); }
};
using Client = std::unique_ptr<rh_redis, Destroy>;

Client Connect(const std::string& options) {
  rh_redis* redis = nullptr;
  Expect(rh_redis_create(options.c_str(), &redis) == RH_OK, "a client");
  return Client(redis);
}

struct Close {
  void operator()(rh_redis_file* file) const { rh_redis_file_close(file); }
};
using File = std::unique_ptr<rh_redis_file, Close>;

File Open(rh_redis* redis, int* status) {
  rh_redis_file* file = nullptr;
  *status = rh_redis_file_open(redis, kSha256, 0, &file);
  return File(file);
}

void ReadRows(rh_redis_file* file, const std::string& bytes, int64_t num_rows, uint64_t seed,
              std::chrono::steady_clock::time_point end) {
  std::mt19937_64 random(seed);
  while (std::chrono::steady_clock::now() < end) {
    std::vector<int64_t> rows(1 + random() % 500);
    for (int64_t& row : rows) row = static_cast<int64_t>(random() % num_rows);
    std::vector<char> found(rows.size() * kRowBytes);
    Expect(rh_redis_file_read(file, rows.data(), static_cast<int64_t>(rows.size()), found.data(), 0) == RH_OK, "rows");
    for (size_t i = 0; i < rows.size(); ++i) {
      const char* right = bytes.data() + kRowsBegin + rows[i] * kRowBytes;
      Expect(std::memcmp(found.data() + i * kRowBytes, right, kRowBytes) == 0, "the rows that were pushed");
    }
  }
}

void Read(const std::string& options, const std::string& path, int seconds) {
  std::ifstream stream(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(stream), {});
  const int64_t size = static_cast<int64_t>(bytes.size()), num_rows = (size - kRowsBegin - kBehind) / kRowBytes;
  const Client client = Connect(options);
  const rh_redis_layout layout = {kSha256, size, kRowsBegin, kRowBytes, num_rows};
  rh_redis_push push = {};
  int64_t num_sent = 0;
  Expect(rh_redis_push_file(client.get(), path.c_str(), &layout, &push, &num_sent) == RH_OK, "pushed");
  Expect(num_sent == size, "all of it was sent");
  int status = RH_OK;
  const File file = Open(client.get(), &status);
  Expect(status == RH_OK, "opened");
  std::string around(size - num_rows * kRowBytes, '\0');
  Expect(rh_redis_file_around(file.get(), around.data(), static_cast<int64_t>(around.size()), 0) == RH_OK, "around");
  Expect(around == bytes.substr(0, kRowsBegin) + bytes.substr(size - kBehind), "what was pushed around the rows");
  const int64_t beyond = num_rows;
  char row[kRowBytes];
  Expect(rh_redis_file_read(file.get(), &beyond, 1, row, 0) == RH_INVALID_ARGUMENT, "no row");
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < kThreads; ++seed) {
    threads.emplace_back([&, seed] { ReadRows(file.get(), bytes, num_rows, seed, end); });
  }
  for (std::thread& thread : threads) thread.join();
}

void Refuse(const std::string& options, int count) {
  std::vector<std::thread> threads;
  std::atomic<int> left{count};
  const Client shared = Connect(options);
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([&] {
      while (left-- > 0) {
        int status = RH_OK;
        // One of two that has seen nothing yet.
        if (left % 2 == 0) {
          const Client own = Connect(options);
          Open(own.get(), &status);
        } else {
          Open(shared.get(), &status);
        }
        Expect(status == RH_TIER_FAILED || status == RH_CORRUPT, "a failed tier, or a file that is none");
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int64_t size = 0;
  std::vector<char> counters(1000);
  Expect(rh_redis_counters(shared.get(), counters.data(), 1000, &size) == RH_OK && size <= 1000, "counters");
  std::printf("%s\n", counters.data());
}

void ResolveNames(const std::string& port) {
  const auto options = [&](const std::string& hosts, int deadline_ms) {
    return "{\"url\": \"redis://" + hosts + "\", \"deadline_ms\": " + std::to_string(deadline_ms) + "}";
  };
  int status = RH_OK;
  for (int tries = 0; tries < 3; ++tries) {
    const Client client = Connect(options("one.silent:1,two.silent:1,localhost:" + port, 20'000));
    Open(client.get(), &status);
    Expect(status == RH_TIER_FAILED && std::strstr(rh_last_error(), "does not have file") != nullptr,
           "the entry that has an address answers");
  }
  for (int tries = 0; tries < 3; ++tries) {
    const Client client = Connect(options("one.silent:1", 50));
    Open(client.get(), &status);
    Expect(status == RH_TIER_FAILED && std::strstr(rh_last_error(), "one.silent:1 has a name that was not resolved"),
           "the deadline ends the wait for a name");
  }
  // Each by a thread of its own, which may begin late.
  for (int waits = 0; waits < 6000 && num_asked < 2; ++waits)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  Expect(num_asked == 2, "each name is asked for once, while it is waited for");
  const std::unique_lock<std::mutex> lock(silent_mutex);
  speaks = true;
  silent_condition.notify_all();
}

}  // namespace

// In place of the system's, which it calls for all other names.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
  using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto of_the_system = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const std::string name = host;
  const bool is_silent = name.size() > 7 && name.compare(name.size() - 7, 7, ".silent") == 0;
  if (!is_silent || (hints->ai_flags & AI_NUMERICHOST) != 0) return of_the_system(host, service, hints, found);
  ++num_asked;
  std::unique_lock<std::mutex> lock(silent_mutex);
  silent_condition.wait(lock, [] { return speaks; });
  return EAI_NONAME;
}

int main(int argc, char** argv) {
  const std::string task = argc > 2 ? argv[1] : "";
  Expect(rh_redis_create(nullptr, nullptr) == RH_INVALID_ARGUMENT, "NULL is refused");
  if (task == "read" && argc == 5) {
    Read(argv[2], argv[3], std::atoi(argv[4]));
  } else if (task == "refuse" && argc == 4) {
    Refuse(argv[2], std::atoi(argv[3]));
  } else if (task == "names") {
    ResolveNames(argv[2]);
  } else {
    Expect(false, "a task and its arguments");
  }
  return 0;
}

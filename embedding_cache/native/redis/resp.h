// Redis' protocol (RESP2): commands as they are sent, and replies as hiredis' reader finds them.
#ifndef RANKHOUSE_REDIS_RESP_H_
#define RANKHOUSE_REDIS_RESP_H_

#include <hiredis/read.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace rankhouse::redis {

// Appends a command to bytes that are to be sent. It does what redisFormatCommandArgv does, without allocating.
void AppendCommand(std::string* bytes, std::initializer_list<std::string_view> arguments);

struct Reply {
  enum class Kind { kText, kStatus, kError, kInteger, kNil, kArray };

  Kind kind = Kind::kNil;
  int64_t integer = 0;
  std::string text;
  std::vector<Reply> elements;

  bool IsError() const { return kind == Kind::kError; }
};

// Cuts bytes into replies. One thread at a time.
//
// What a peer claims is not believed: a reply has at most kMostElements elements in all, more than twice those of
// CLUSTER SLOTS where each slot is a range of its own, and at most kMostBytes between two elements, many times a piece
// of a file. Memory is only taken up to there.
class ReplyReader {
 public:
  static constexpr size_t kMostElements = size_t{1} << 20;
  static constexpr size_t kMostBytes = size_t{64} << 20;

  ReplyReader();
  ReplyReader(const ReplyReader&) = delete;
  ReplyReader& operator=(const ReplyReader&) = delete;

  // Takes bytes as they came, cut anywhere. The reader moves what is left of them after each KiB of replies, so parts
  // of some KiB are best. Throws std::bad_alloc.
  void Feed(const char* bytes, size_t size);

  // Returns the next reply, valid until the next call, or NULL if more bytes are needed. Throws std::runtime_error on
  // what is not the protocol.
  const Reply* Next();

  // Whether all bytes were replies that have been given.
  bool is_empty() const { return reader_->pos == reader_->len; }

 private:
  struct Deleter {
    void operator()(redisReader* reader) const { redisReaderFree(reader); }
  };

  static ReplyReader* ReaderOf(const redisReadTask* task) { return static_cast<ReplyReader*>(task->privdata); }
  static Reply* New(const redisReadTask* task);
  static void* CreateText(const redisReadTask* task, char* text, size_t size);
  template <typename Count>  // int, or size_t from hiredis 1.0 on
  static void* CreateArray(const redisReadTask* task, Count count);
  static void* CreateInteger(const redisReadTask* task, long long value);
  static void* CreateNil(const redisReadTask* task);

  redisReplyObjectFunctions functions_{};
  std::unique_ptr<redisReader, Deleter> reader_;
  Reply root_;               // Reused, so that a reply of a row needs no memory.
  size_t num_elements_ = 0;  // of root_ and all in it
};

}  // namespace rankhouse::redis

#endif  // RANKHOUSE_REDIS_RESP_H_

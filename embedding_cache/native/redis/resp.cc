#include "redis/resp.h"

#include <hiredis/hiredis.h>

#include <new>
#include <stdexcept>

namespace rankhouse::redis {

void AppendCommand(std::string* bytes, std::initializer_list<std::string_view> arguments) {
  *bytes += '*';
  *bytes += std::to_string(arguments.size());
  *bytes += "\r\n";
  for (const std::string_view argument : arguments) {
    *bytes += '$';
    *bytes += std::to_string(argument.size());
    *bytes += "\r\n";
    *bytes += argument;
    *bytes += "\r\n";
  }
}

ReplyReader::ReplyReader() {
  functions_.createString = CreateText;
  functions_.createArray = CreateArray;
  functions_.createInteger = CreateInteger;
  functions_.createNil = CreateNil;
#if HIREDIS_MAJOR >= 1
  // RESP3, which nobody asked for. Without these the reader would give small numbers as addresses of replies.
  functions_.createDouble = [](const redisReadTask*, double, char*, size_t) -> void* { return nullptr; };
  functions_.createBool = [](const redisReadTask*, int) -> void* { return nullptr; };
#endif
  functions_.freeObject = [](void*) {};  // All replies lie in root_.
  reader_.reset(redisReaderCreateWithFunctions(&functions_));
  if (reader_ == nullptr) throw std::bad_alloc();
  reader_->privdata = this;
}

void ReplyReader::Feed(const char* bytes, size_t size) {
  if (redisReaderFeed(reader_.get(), bytes, size) != REDIS_OK) throw std::bad_alloc();
}

const Reply* ReplyReader::Next() {
  void* reply = nullptr;
  if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK) {
    if (num_elements_ > kMostElements) {
      throw std::runtime_error("gave a reply of " + std::to_string(num_elements_) + " elements; expected at most " +
                               std::to_string(kMostElements));
    }
    throw std::runtime_error(std::string("does not speak Redis' protocol (") + reader_->errstr + ")");
  }
  if (reply == nullptr && reader_->len - reader_->pos > kMostBytes) {
    throw std::runtime_error("gave a reply of more than " + std::to_string(kMostBytes) + " bytes");
  }
  return static_cast<const Reply*>(reply);
}

Reply* ReplyReader::New(const redisReadTask* task) {
  if (task->parent != nullptr) return &static_cast<Reply*>(task->parent->obj)->elements[task->idx];
  Reply* root = &ReaderOf(task)->root_;
  ReaderOf(task)->num_elements_ = 0;
  root->elements.clear();
  root->text.clear();  // of the reply before
  return root;
}

void* ReplyReader::CreateText(const redisReadTask* task, char* text, size_t size) {
  Reply* reply = New(task);
  reply->kind = task->type == REDIS_REPLY_ERROR    ? Reply::Kind::kError
                : task->type == REDIS_REPLY_STATUS ? Reply::Kind::kStatus
                                                   : Reply::Kind::kText;
  reply->text.assign(text, size);
  return reply;
}

template <typename Count>
void* ReplyReader::CreateArray(const redisReadTask* task, Count count) {
  Reply* reply = New(task);
  ReplyReader* reader = ReaderOf(task);
  reader->num_elements_ += static_cast<size_t>(count);
  if (reader->num_elements_ > kMostElements) return nullptr;  // an error of the reader's
  reply->kind = Reply::Kind::kArray;
  reply->elements.resize(static_cast<size_t>(count));
  return reply;
}

void* ReplyReader::CreateInteger(const redisReadTask* task, long long value) {
  Reply* reply = New(task);
  reply->kind = Reply::Kind::kInteger;
  reply->integer = value;
  return reply;
}

void* ReplyReader::CreateNil(const redisReadTask* task) {
  Reply* reply = New(task);
  reply->kind = Reply::Kind::kNil;
  return reply;
}

}  // namespace rankhouse::redis

#include "metrics_text.h"

#include <cstdlib>
#include <sstream>

#include "failure.h"

namespace rankhouse::triton {
namespace {

// Reads one line from its beginning to its end.
class Line {
 public:
  explicit Line(const std::string& line) : line_(line) {}

  // Takes what stands before the first of these characters, or the end.
  std::string Until(const char* ends) {
    const size_t end = std::min(line_.find_first_of(ends, at_), line_.size());
    std::string part = line_.substr(at_, end - at_);
    at_ = end;
    return part;
  }

  bool Skip(char expected) {
    const bool is_there = at_ < line_.size() && line_[at_] == expected;
    at_ += is_there ? 1 : 0;
    return is_there;
  }

  std::string Quoted() {
    Expect('"');
    std::string value;
    while (!Skip('"')) {
      Require(at_ < line_.size(), "metrics: a label's value does not end: ", line_);
      char next = line_[at_++];
      if (next == '\\' && at_ < line_.size()) next = line_[at_++] == 'n' ? '\n' : line_[at_ - 1];
      value += next;
    }
    return value;
  }

  void Expect(char expected) { Require(Skip(expected), "metrics: expected ", expected, " at ", at_, " of: ", line_); }

  double Number() {
    while (Skip(' ')) continue;
    const char* begin = line_.c_str() + at_;
    char* end = nullptr;
    const double value = std::strtod(begin, &end);
    Require(end != begin, "metrics: expected a number at ", at_, " of: ", line_);
    return value;
  }

 private:
  const std::string& line_;
  size_t at_ = 0;
};

Sample ParseSample(const std::string& text) {
  Line line(text);
  Sample sample;
  sample.name = line.Until("{ ");
  if (line.Skip('{')) {
    while (!line.Skip('}')) {
      std::string label = line.Until("=");
      line.Expect('=');
      sample.labels.emplace_back(std::move(label), line.Quoted());
      line.Skip(',');
    }
  }
  sample.value = line.Number();
  return sample;
}

}  // namespace

MetricsText ParseMetrics(const std::string& text) {
  MetricsText metrics;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, kind, name;
    if (line.empty()) continue;
    if (line[0] != '#') {
      metrics.samples.push_back(ParseSample(line));
      continue;
    }
    words >> hash >> kind >> name >> std::ws;
    std::string rest;
    std::getline(words, rest);
    if (kind == "TYPE") metrics.types[name] = rest;
    if (kind == "HELP") metrics.helps[name] = rest;
  }
  return metrics;
}

}  // namespace rankhouse::triton

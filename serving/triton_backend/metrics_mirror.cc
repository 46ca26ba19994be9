#include "metrics_mirror.h"

#include <chrono>
#include <vector>

#include "failure.h"

namespace rankhouse::triton {
namespace {

constexpr auto kInterval = std::chrono::seconds(1);

std::string KeyOf(const Sample& sample) {
  std::string key = sample.name;
  for (const auto& [label, value] : sample.labels) key += '\0' + label + '\0' + value;
  return key;
}

// The name under which # TYPE and # HELP speak of a sample.
std::string DescribedName(const MetricsText& metrics, const std::string& name) {
  for (const char* suffix : {"_bucket", "_sum", "_count"}) {
    const size_t length = std::string(suffix).size();
    if (name.size() <= length || name.compare(name.size() - length, length, suffix) != 0) continue;
    const std::string base = name.substr(0, name.size() - length);
    const auto type = metrics.types.find(base);
    if (type != metrics.types.end() && type->second == "histogram") return base;
  }
  return name;
}

}  // namespace

MetricsMirror::MetricsMirror(rh_engine* engine) : engine_(engine), thread_([this] { Run(); }) {}

MetricsMirror::~MetricsMirror() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
  }
  ending_.notify_all();
  thread_.join();
  RemoveAllBut({});
  for (const auto& [name, family] : families_) Log(TRITONSERVER_MetricFamilyDelete(family.family));
}

void MetricsMirror::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ending_.wait_for(lock, kInterval, [this] { return is_ending_; })) {
    try {
      Copy();
    } catch (const Failure& failure) {
      LogOnce(failure);
      if (failure.code() == TRITONSERVER_ERROR_UNSUPPORTED) return;  // the server was built without metrics
    } catch (const std::exception& error) {
      LogOnce(error);
    }
  }
}

void MetricsMirror::LogOnce(const std::exception& error) {
  if (logged_ != error.what()) Log(error);
  logged_ = error.what();
}

void MetricsMirror::Copy() {
  int64_t size = 0;
  CheckEngine(rh_engine_metrics(engine_, text_.data(), static_cast<int64_t>(text_.size()), &size));
  // Between two calls a version may have been opened.
  for (int tries = 0; tries < 10 && size > static_cast<int64_t>(text_.size()); ++tries) {
    text_.resize(size + size / 2);
    CheckEngine(rh_engine_metrics(engine_, text_.data(), static_cast<int64_t>(text_.size()), &size));
  }
  const MetricsText metrics = ParseMetrics(text_.c_str());
  std::set<std::string> keys;
  for (const Sample& sample : metrics.samples) Set(metrics, sample, *keys.insert(KeyOf(sample)).first);
  RemoveAllBut(keys);
}

void MetricsMirror::Set(const MetricsText& metrics, const Sample& sample, const std::string& key) {
  auto found = metrics_.find(key);
  if (found == metrics_.end()) {
    const Family& family = FamilyOf(metrics, sample.name);
    std::vector<const TRITONSERVER_Parameter*> labels;
    for (const auto& [label, value] : sample.labels) {
      labels.push_back(TRITONSERVER_ParameterNew(label.c_str(), TRITONSERVER_PARAMETER_STRING, value.c_str()));
    }
    TRITONSERVER_Metric* metric = nullptr;
    TRITONSERVER_Error* error = TRITONSERVER_MetricNew(&metric, family.family, labels.data(), labels.size());
    for (const TRITONSERVER_Parameter* label : labels) {
      TRITONSERVER_ParameterDelete(const_cast<TRITONSERVER_Parameter*>(label));
    }
    Check(error);
    found = metrics_.emplace(key, Metric{metric, family.is_counter, 0.0}).first;
  }
  Metric& metric = found->second;
  if (metric.is_counter) {
    if (sample.value > metric.value) Check(TRITONSERVER_MetricIncrement(metric.metric, sample.value - metric.value));
  } else {
    Check(TRITONSERVER_MetricSet(metric.metric, sample.value));
  }
  metric.value = sample.value;
}

const MetricsMirror::Family& MetricsMirror::FamilyOf(const MetricsText& metrics, const std::string& name) {
  const auto found = families_.find(name);
  if (found != families_.end()) return found->second;
  const std::string described = DescribedName(metrics, name);
  const auto type = metrics.types.find(described), help = metrics.helps.find(described);
  const bool is_counter = type != metrics.types.end() && type->second != "gauge";
  TRITONSERVER_MetricFamily* family = nullptr;
  Check(TRITONSERVER_MetricFamilyNew(&family,
                                     is_counter ? TRITONSERVER_METRIC_KIND_COUNTER : TRITONSERVER_METRIC_KIND_GAUGE,
                                     name.c_str(), help == metrics.helps.end() ? "" : help->second.c_str()));
  return families_.emplace(name, Family{family, is_counter}).first->second;
}

void MetricsMirror::RemoveAllBut(const std::set<std::string>& keys) {
  for (auto one = metrics_.begin(); one != metrics_.end();) {
    if (keys.count(one->first) > 0) {
      ++one;
    } else {
      Log(TRITONSERVER_MetricDelete(one->second.metric));
      one = metrics_.erase(one);
    }
  }
}

}  // namespace rankhouse::triton

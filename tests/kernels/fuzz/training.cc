// The backward against sums in float64; the optimizers apart and fused with it; the gradient of weights.
#include <cmath>
#include <map>

#include "lookup_case.h"

namespace fuzz {
namespace {

struct Gradient {
  std::vector<Guarded<int64_t>> ids;
  std::vector<Guarded<float>> rows;
  std::vector<rh_sparse_gradient> buffers;

  Gradient(Random* random, const LookupCase& batch) {
    std::vector<int64_t> capacity(batch.tables.size());
    CHECK(rh_gradient_capacity(&batch.lookup, capacity.data()) == RH_OK);
    for (size_t t = 0; t < batch.tables.size(); ++t) {
      ids.emplace_back(random, capacity[t]);
      rows.emplace_back(random, capacity[t] * batch.tables[t].dim);
      buffers.push_back({ids.back().OrNull(), rows.back().OrNull(), capacity[t], -1});
    }
  }
};

struct Sums {
  std::vector<double> sum, size;
};

// The gradient of each row of a table, by id.
std::map<int64_t, Sums> ExpectedGradient(const LookupCase& batch, const FeatureArrays& grad, int32_t t) {
  std::map<int64_t, Sums> expected;
  const rh_table& table = batch.tables[t];
  for (int64_t f = 0; f < batch.num_features(); ++f) {
    if (batch.feature_tables[f] != t) continue;
    for (int64_t b = 0; b < batch.batch_size; ++b) {
      const double divisor = batch.DivisorOf(f, b);
      const int64_t first = batch.FirstId(f, b);
      for (int64_t n = first; n < batch.LastId(f, b); ++n) {
        const int64_t row = batch.RowOf(table, batch.ids[n]);
        if (row < 0) continue;
        Sums& sums = expected[row];
        sums.sum.resize(table.dim);
        sums.size.resize(table.dim);
        const float* from = grad.rows[f].data + b * grad.rows[f].stride;
        double weight = divisor == 0 ? 0 : batch.WeightOf(n) / divisor;
        if (batch.combiners[f] == RH_NONE) {
          weight = 1;
          from = batch.has_offsets() ? grad.rows[f].data + (n - batch.FirstId(f, 0)) * grad.rows[f].stride
                                     : from + (n - first) * table.dim;
        }
        for (int64_t d = 0; d < table.dim; ++d) {
          sums.sum[d] += weight * from[d];
          sums.size[d] += std::abs(weight * from[d]);
        }
      }
    }
  }
  return expected;
}

void CheckGradient(const LookupCase& batch, const FeatureArrays& grad, const Gradient& gradient) {
  for (size_t t = 0; t < batch.tables.size(); ++t) {
    const auto expected = ExpectedGradient(batch, grad, static_cast<int32_t>(t));
    CHECK(gradient.buffers[t].num_rows == static_cast<int64_t>(expected.size()));
    int64_t u = 0;
    for (const auto& [id, sums] : expected) {
      CHECK(gradient.ids[t][u] == id);
      const int64_t dim = batch.tables[t].dim;
      for (int64_t d = 0; d < dim; ++d) {
        CHECK(std::abs(gradient.rows[t][u * dim + d] - sums.sum[d]) <= 1e-5 * sums.size[d]);
      }
      ++u;
    }
  }
}

rh_optimizer RandomOptimizer(Random* random) {
  rh_optimizer optimizer = {};
  optimizer.rule = static_cast<int32_t>(random->Between(RH_SGD, RH_ADAMAX));
  if (optimizer.rule == RH_MOMENTUM || optimizer.rule == RH_ADAM) {
    optimizer.kind = static_cast<int32_t>(random->Between(RH_LAZY, RH_EXACT));
  }
  optimizer.nesterov = optimizer.rule == RH_MOMENTUM && random->Chance(50);
  optimizer.learning_rate = 0.1f;
  optimizer.epsilon = 1e-6f;
  optimizer.momentum = 0.9f;
  optimizer.beta_1 = 0.9f;
  optimizer.beta_2 = 0.99f;
  optimizer.rho = 0.9f;
  optimizer.l1 = random->Chance(50) ? 0.01f : 0.0f;
  optimizer.l2 = random->Chance(50) ? 0.01f : 0.0f;
  optimizer.learning_rate_power = -0.5f;
  optimizer.gradient_scale = random->Chance(50) ? 0.5f : 0.0f;
  if (optimizer.kind == RH_LAZY && random->Chance(40)) {
    optimizer.weight_decay = 0.01f;
    optimizer.decoupled = random->Chance(50);
  }
  optimizer.step = random->Between(2, 9);
  return optimizer;
}

// Everything that training changes.
struct Trained {
  int32_t type;
  Guarded<float> rows, slots[2];
  Guarded<uint16_t> narrow_rows;  // those that are not float32
  Guarded<int32_t> last_steps;

  Trained(Random* random, const rh_table& table)
      : type(static_cast<int32_t>(random->Between(RH_FLOAT32, RH_BFLOAT16))),
        rows(random, table.num_rows * table.dim),
        narrow_rows(random, rows.size()) {
    for (float& value : rows) value = random->Number();
    if (type != RH_FLOAT32 && rows.size() > 0) {
      CHECK(rh_quantize_rows(rows.data(), table.num_rows, table.dim, type, 0, narrow_rows.data(), nullptr) == RH_OK);
    }
    for (Guarded<float>& slot : slots) {
      slot = Guarded<float>(random, rows.size());
      for (float& value : slot) value = random->Positive();
    }
    last_steps = Guarded<int32_t>(random, table.num_rows);
  }
  Trained(const Trained& other)
      : type(other.type),
        rows(other.rows.Copy()),
        slots{other.slots[0].Copy(), other.slots[1].Copy()},
        narrow_rows(other.narrow_rows.Copy()),
        last_steps(other.last_steps.Copy()) {}

  rh_trained_table View(const rh_table& table) {
    void* const data = type == RH_FLOAT32 ? static_cast<void*>(rows.OrNull()) : narrow_rows.OrNull();
    return {data, {slots[0].OrNull(), slots[1].OrNull()}, last_steps.OrNull(), table.num_rows, table.dim, type};
  }
  void Record() const {
    rows.Record();
    narrow_rows.Record();
    for (const Guarded<float>& slot : slots) slot.Record();
    last_steps.Record();
  }
  bool operator==(const Trained& other) const {
    return rows == other.rows && narrow_rows == other.narrow_rows && slots[0] == other.slots[0] &&
           slots[1] == other.slots[1] && last_steps == other.last_steps;
  }
};

void CheckUpdates(Random* random, const LookupCase& batch, const FeatureArrays& grad, const Gradient& gradient) {
  const size_t num_tables = batch.tables.size();
  std::vector<rh_optimizer> optimizers;
  std::vector<Trained> apart, fused;
  std::vector<rh_update> updates, catch_ups;
  std::vector<rh_trained_table> fused_tables;
  apart.reserve(num_tables);  // views point into them
  fused.reserve(num_tables);
  optimizers.reserve(2 * num_tables);
  for (const rh_table& table : batch.tables) {
    optimizers.push_back(RandomOptimizer(random));
    apart.emplace_back(random, table);
  }
  const RandomExecutor executor(random), other(random);
  for (size_t t = 0; t < num_tables; ++t) {
    const rh_trained_table view = apart[t].View(batch.tables[t]);
    optimizers.push_back(optimizers[t]);
    optimizers.back().step = optimizers[t].step - 1;
    catch_ups.push_back({view, &optimizers.back(), nullptr, nullptr, nullptr, 0});
    const rh_sparse_gradient& buffer = gradient.buffers[t];
    updates.push_back({view, &optimizers[t], buffer.ids, buffer.rows, nullptr, buffer.num_rows});
  }
  const int32_t count = static_cast<int32_t>(num_tables);
  CHECK(rh_catch_up(catch_ups.data(), count, executor.get()) == RH_OK);
  for (const Trained& trained : apart) fused.emplace_back(trained);
  for (size_t t = 0; t < num_tables; ++t) fused_tables.push_back(fused[t].View(batch.tables[t]));
  CHECK(rh_apply(updates.data(), count, executor.get()) == RH_OK);
  CHECK(rh_pooled_lookup_update(&batch.lookup, grad.rows.data(), optimizers.data(), fused_tables.data(), other.get()) ==
        RH_OK);
  for (size_t t = 0; t < num_tables; ++t) {
    CHECK(apart[t] == fused[t]);
    apart[t].Record();
  }

  // Ids that are no rows, or do not increase, change nothing.
  for (size_t t = 0; t < num_tables; ++t) {
    if (gradient.buffers[t].num_rows == 0) continue;
    Guarded<int64_t> ids = gradient.ids[t].Copy();
    ids[random->Between(0, gradient.buffers[t].num_rows - 1)] = random->OneOf<int64_t>({-1, INT64_MIN, INT64_MAX});
    rh_update update = updates[t];
    update.ids = ids.data();
    const Trained before(apart[t]);
    const int status = rh_apply(&update, 1, executor.get());
    CHECK(status == RH_OUT_OF_RANGE || status == RH_INVALID_ARGUMENT);
    CHECK(apart[t] == before);
  }
}

// The sums' formula, and that threads change no bit of the others'.
void CheckWeightGradient(Random* random, const LookupCase& batch, const FeatureArrays& grad) {
  Guarded<float> weight_grad(random, batch.ids.size()), again(batch.ids.size());
  const int status = rh_pooled_lookup_weight_gradient(&batch.lookup, grad.rows.data(), weight_grad.OrNull(),
                                                      RandomExecutor(random).get());
  if (batch.lookup.weights == nullptr && batch.ids.size() > 0) {
    CHECK(status == RH_INVALID_ARGUMENT);
    return;
  }
  if (batch.ids.size() == 0) return;
  CHECK(status == RH_OK);
  CHECK(rh_pooled_lookup_weight_gradient(&batch.lookup, grad.rows.data(), again.OrNull(),
                                         RandomExecutor(random).get()) == RH_OK);
  CHECK(weight_grad == again);
  weight_grad.Record();
  for (int64_t f = 0; f < batch.num_features(); ++f) {
    const rh_table& table = batch.tables[batch.feature_tables[f]];
    for (int64_t b = 0; b < batch.batch_size; ++b) {
      for (int64_t n = batch.FirstId(f, b); n < batch.LastId(f, b); ++n) {
        if (batch.combiners[f] == RH_NONE) CHECK(weight_grad[n] == 0);
        if (batch.combiners[f] != RH_SUM) continue;
        const int64_t row = batch.RowOf(table, batch.ids[n]);
        const float* at = grad.rows[f].data + b * grad.rows[f].stride;
        double expected = 0, size = 0;
        for (int64_t d = 0; row >= 0 && d < table.dim; ++d) {
          const double product =
              static_cast<double>(at[d]) * batch.float_rows[batch.feature_tables[f]][row * table.dim + d];
          expected += product;
          size += std::abs(product);
        }
        CHECK(std::abs(weight_grad[n] - expected) <= 1e-5 * size);
      }
    }
  }
}

void CheckNorm(const LookupCase& batch, const Gradient& gradient, Random* random) {
  std::vector<int64_t> dims;
  double expected = 0;
  for (size_t t = 0; t < batch.tables.size(); ++t) {
    dims.push_back(batch.tables[t].dim);
    for (int64_t i = 0; i < gradient.buffers[t].num_rows * dims[t]; ++i) {
      expected += static_cast<double>(gradient.rows[t][i]) * gradient.rows[t][i];
    }
  }
  double one = -1, other = -2;
  const int32_t count = static_cast<int32_t>(dims.size());
  CHECK(rh_squared_norm(gradient.buffers.data(), dims.data(), count, &one, RandomExecutor(random).get()) == RH_OK);
  CHECK(rh_squared_norm(gradient.buffers.data(), dims.data(), count, &other, RandomExecutor(random).get()) == RH_OK);
  CHECK(one == other && std::abs(one - expected) <= 1e-9 * expected);
  Record(&one, sizeof(one));
}

}  // namespace

void FuzzTraining(Random* random) {
  LookupCase batch(random, /*trainable=*/true);
  const FeatureArrays grad(random, batch);
  Gradient gradient(random, batch), again(random, batch);
  const int status =
      rh_pooled_lookup_gradient(&batch.lookup, grad.rows.data(), gradient.buffers.data(), RandomExecutor(random).get());
  CHECK(status == (batch.HasFault() ? RH_OUT_OF_RANGE : RH_OK));
  CHECK(rh_pooled_lookup_gradient(&batch.lookup, grad.rows.data(), again.buffers.data(),
                                  RandomExecutor(random).get()) == status);
  if (status != RH_OK) return;
  for (size_t t = 0; t < batch.tables.size(); ++t) {
    CHECK(gradient.rows[t] == again.rows[t]);
    gradient.rows[t].Record();
  }
  CheckGradient(batch, grad, gradient);
  CheckUpdates(random, batch, grad, gradient);
  CheckNorm(batch, gradient, random);
  CheckWeightGradient(random, batch, grad);
}

}  // namespace fuzz

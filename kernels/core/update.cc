#include "core/update.h"

#include <cmath>
#include <limits>

#include "core/status.h"

namespace rankhouse {
namespace {

struct Setting {
  const char* name;
  float value;
};

void RequireAtLeast0(const Setting& setting, int32_t table) {
  Require(setting.value >= 0.0f && std::isfinite(setting.value), "the optimizer of table ", table, " has ",
          setting.name, " ", setting.value, ": expected a number of at least 0");
}

void RequireAbove0(const Setting& setting, int32_t table) {
  Require(setting.value > 0.0f && std::isfinite(setting.value), "the optimizer of table ", table, " has ", setting.name,
          " ", setting.value, ": expected a number above 0");
}

void RequireShare(const Setting& setting, int32_t table) {
  Require(setting.value >= 0.0f && setting.value < 1.0f, "the optimizer of table ", table, " has ", setting.name, " ",
          setting.value, ": expected a number of at least 0 and below 1");
}

void CheckKind(const rh_optimizer& optimizer, int32_t table, int64_t first_step) {
  const int32_t rule = optimizer.rule;
  Require(optimizer.kind >= RH_LAZY && optimizer.kind <= RH_EXACT, "the optimizer of table ", table, " has kind ",
          optimizer.kind, ": expected 0 (lazy), 1 (dense) or 2 (exact)");
  Require(optimizer.kind == RH_LAZY || rule == RH_MOMENTUM || rule == RH_ADAM, "the optimizer of table ", table,
          " has kind ", optimizer.kind, ", which only momentum and Adam have: set 0 (lazy)");
  const bool counts = rule == RH_ADAM || rule == RH_ADAMAX || optimizer.kind == RH_EXACT;
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  Require(!counts || optimizer.step >= first_step, "the optimizer of table ", table, " has step ", optimizer.step,
          ": expected at least ", first_step, " (the first step is 1)");
  Require(optimizer.kind != RH_EXACT || optimizer.step <= kMost, "the optimizer of table ", table, " has step ",
          optimizer.step, ": the exact kind counts to ", kMost, "; use the lazy or the dense one");
  if (rule != RH_ADAM || optimizer.kind == RH_LAZY) return;
  Require(optimizer.epsilon > 0.0f, "the optimizer of table ", table,
          " has epsilon 0: rows without a gradient would become NaN in the dense and exact kinds; set one above 0");
  // Else moves without a gradient grow for a while, and there is no bound on how many must be looked at.
  Require(optimizer.kind == RH_DENSE || optimizer.beta_1 * optimizer.beta_1 < optimizer.beta_2,
          "the optimizer of table ", table, " has beta_1 ", optimizer.beta_1, " and beta_2 ", optimizer.beta_2,
          ": the exact kind needs beta_1^2 < beta_2; change them, or use the lazy or the dense kind");
}

// The settings that the rule takes.
void CheckRule(const rh_optimizer& optimizer, int32_t table) {
  switch (optimizer.rule) {
    case RH_MOMENTUM:
      return RequireShare({"momentum", optimizer.momentum}, table);
    case RH_ADAM:
    case RH_ADAMAX:
      RequireShare({"beta_1", optimizer.beta_1}, table);
      return RequireShare({"beta_2", optimizer.beta_2}, table);
    case RH_RMSPROP:
    case RH_ADADELTA:
      return RequireShare({"rho", optimizer.rho}, table);
    case RH_FTRL:
      RequireAbove0({"learning_rate (by which FTRL divides)", optimizer.learning_rate}, table);
      RequireAtLeast0({"l1", optimizer.l1}, table);
      RequireAtLeast0({"l2", optimizer.l2}, table);
      RequireAtLeast0({"l2_shrinkage", optimizer.l2_shrinkage}, table);
      RequireAtLeast0({"beta", optimizer.beta}, table);
      Require(optimizer.learning_rate_power <= 0.0f && std::isfinite(optimizer.learning_rate_power),
              "the optimizer of table ", table, " has learning_rate_power ", optimizer.learning_rate_power,
              ": expected a number of at most 0, such as -0.5");
      return;
    default:
      return;
  }
}

void RequireIds(const rh_update& update, int32_t t) {
  Require(update.num_ids >= 0, "the update of table ", t, " has ", update.num_ids, " ids: expected at least 0");
}

void CheckUpdate(const rh_update& update, int32_t t, bool updated, int64_t first_step) {
  Require(update.optimizer != nullptr, "the update of table ", t, " has a NULL optimizer");
  CheckOptimizer(*update.optimizer, t, first_step);
  CheckTrainedTable(update.table, *update.optimizer, t, updated, first_step);
}

void CheckIncreasing(const rh_update& update, int32_t table) {
  const int64_t* ids = update.ids;
  const int64_t num_ids = update.num_ids;
  if (num_ids == 0) return;
  bool increasing = true;
  for (int64_t k = 1; k < num_ids; ++k) increasing &= ids[k - 1] < ids[k];
  if (increasing && ids[0] >= 0 && ids[num_ids - 1] < update.table.num_rows) return;
  int64_t previous = -1;
  for (int64_t k = 0; k < num_ids; ++k) {
    const int64_t id = ids[k];
    if (id <= previous || id >= update.table.num_rows) ThrowUpdateFault(update, table, k, id, previous);
    previous = id;
  }
}

// Rows whose last step is at most `most`.
void CheckLastSteps(const rh_update& update, int32_t table, int64_t most) {
  const int32_t* last_steps = update.table.last_steps;
  const int64_t num_rows = update.ids == nullptr ? update.table.num_rows : update.num_ids;
  for (int64_t k = 0; k < num_rows; ++k) {
    const int64_t row = update.ids == nullptr ? k : update.ids[k];
    if (last_steps[row] < 0 || last_steps[row] > most) ThrowLastStepFault(update, table, row, last_steps[row]);
  }
}

}  // namespace

void CheckOptimizer(const rh_optimizer& optimizer, int32_t table, int64_t first_step) {
  Require(rh_num_slots(optimizer.rule) >= 0, "the optimizer of table ", table, " has rule ", optimizer.rule,
          ": expected 0 to 8");
  RequireAtLeast0({"learning_rate", optimizer.learning_rate}, table);
  RequireAtLeast0({"epsilon", optimizer.epsilon}, table);
  RequireAtLeast0({"weight_decay", optimizer.weight_decay}, table);
  Require(std::isfinite(optimizer.gradient_scale), "the optimizer of table ", table, " has gradient_scale ",
          optimizer.gradient_scale, ": expected a finite number (a gradient may hold NaN or infinity)");
  CheckRule(optimizer, table);
  CheckKind(optimizer, table, first_step);
}

void CheckTrainedTable(const rh_trained_table& trained, const rh_optimizer& optimizer, int32_t table, bool updated,
                       int64_t first_step) {
  Require(trained.num_rows >= 0 && trained.dim >= 1, "table ", table, " that is trained has rows of shape [",
          trained.num_rows, ", ", trained.dim, "]: expected rows >= 0 and a width >= 1");
  Require(trained.type != RH_INT8_ROWWISE, "table ", table,
          " that is trained has rows of row-wise int8, which are looked up only: train float32, float16 or bfloat16 "
          "rows, and quantize what is served");
  Require(trained.type >= RH_FLOAT32 && trained.type <= RH_BFLOAT16, "table ", table, " that is trained has row type ",
          trained.type, ": expected 0 (float32), 1 (float16) or 2 (bfloat16)");
  Require(trained.type == RH_FLOAT32 || optimizer.step >= first_step, "the optimizer of table ", table, " has step ",
          optimizer.step, ": expected at least ", first_step,
          ", because float16 and bfloat16 rows are rounded by the number of the step (the first step is 1)");
  if (!updated || trained.num_rows == 0) return;
  Require(trained.rows != nullptr, "table ", table, " that is trained has NULL rows");
  for (int s = 0; s < rh_num_slots(optimizer.rule); ++s) {
    Require(trained.slots[s] != nullptr, "table ", table, " that is trained has a NULL slot ", s);
  }
  Require(optimizer.kind != RH_EXACT || trained.last_steps != nullptr, "table ", table,
          " that is trained has NULL last_steps: the exact kind needs one int32 for each row, 0 at first");
}

void CheckUpdates(const rh_update* updates, int32_t num_tables) {
  Require(num_tables >= 0, "num_tables is ", num_tables, ": expected >= 0");
  Require(num_tables == 0 || updates != nullptr, "updates is NULL");
  for (int32_t t = 0; t < num_tables; ++t) {
    const rh_update& update = updates[t];
    const bool dense = update.optimizer != nullptr && update.optimizer->kind == RH_DENSE && update.table.num_rows > 0;
    RequireIds(update, t);
    CheckUpdate(update, t, update.num_ids > 0 || dense, 1);
    Require(update.num_ids == 0 || (update.ids != nullptr && update.gradient != nullptr), "the update of table ", t,
            " has NULL ids or gradient");
  }
}

void CheckCatchUps(const rh_update* updates, int32_t num_tables) {
  Require(num_tables >= 0, "num_tables is ", num_tables, ": expected >= 0");
  Require(num_tables == 0 || updates != nullptr, "updates is NULL");
  for (int32_t t = 0; t < num_tables; ++t) {
    const rh_update& update = updates[t];
    if (update.ids != nullptr) RequireIds(update, t);
    CheckUpdate(update, t, update.ids != nullptr ? update.num_ids > 0 : update.table.num_rows > 0, 0);
  }
}

void ThrowUpdateFault(const rh_update& update, int32_t table, int64_t position, int64_t id, int64_t previous) {
  if (id < 0 || id >= update.table.num_rows) {
    throw Error(RH_OUT_OF_RANGE,
                StrCat("id ", id, " at position ", position, " of the gradient is out of range: table ", table, " has ",
                       update.table.num_rows, " rows"));
  }
  throw Error(RH_INVALID_ARGUMENT,
              StrCat("ids of the gradient of table ", table, " must increase, but ", id, " at position ", position,
                     " follows ", previous, ": combine duplicates first"));
}

void ThrowLastStepFault(const rh_update& update, int32_t table, int64_t row, int32_t last_step) {
  throw Error(RH_INVALID_ARGUMENT,
              StrCat("row ", row, " of table ", table, " is at step ", last_step, ", and this is step ",
                     update.optimizer->step, ": expected last_steps of at least 0 and below the step of an update"));
}

void CheckUpdateIds(const rh_update& update, int32_t table) {
  CheckIncreasing(update, table);
  if (update.optimizer->kind == RH_EXACT && update.num_ids > 0) {
    CheckLastSteps(update, table, update.optimizer->step - 1);
  }
}

void CheckCatchUpIds(const rh_update& update, int32_t table) {
  if (update.optimizer->kind != RH_EXACT) return;
  if (update.ids != nullptr) CheckIncreasing(update, table);
  CheckLastSteps(update, table, std::numeric_limits<int32_t>::max());
}

}  // namespace rankhouse

int rh_num_slots(int32_t rule) {
  static constexpr int kNumSlots[] = {0, 1, 1, 1, 2, 2, 1, 2, 2};
  return rule < RH_SGD || rule > RH_ADAMAX ? -1 : kNumSlots[rule];
}

// Active rollouts with their steps, verdicts and commands; finished ones folded below.

import { abort, commandButton, pause, promote, resume, skip } from "./actions.js";
import { badge, empty, h, keyed, show, versionName } from "./elements.js";
import { ago, clock, count, duration } from "./format.js";
import { outcomeBadge, verdictTable } from "./verdicts.js";

const STATUSES = {
  pending: ["plain", "waiting for replicas", "…"],
  progressing: ["info", "progressing", "▸"],
  paused: ["warn", "paused", "❙❙"],
  promoted: ["good", "promoted", "✓"],
  rolled_back: ["bad", "rolled back", "↩"],
};

/** Shows all rollouts. */
export function showRollouts(place, desk) {
  if (!place.firstElementChild) place.append(h("div", {}), h("div", { class: "active" }), h("div", {}));
  const [none, active, finished] = place.children;
  const all = desk.overview.rollouts;
  const isActive = ({ rollout }) => rollout.finished_at === null;
  const underWay = all.filter(isActive);
  show(none, [underWay.length, all.length, desk.overview.versions.length], ([isAny, wereAny, versions]) => {
    if (isAny) return null;
    if (wereAny) return empty("No rollout is under way.");
    const why = versions > 1 ? "" : " There is one version only; export another one to have something to roll out.";
    return empty("There has been no rollout yet: each new version went to all users at once, or waits.", why);
  });
  keyed(
    active,
    underWay,
    ({ rollout }) => rollout.id,
    makeCard,
    (card, detail) => fillCard(card, detail, desk),
  );
  show(
    finished,
    all.filter((each) => !isActive(each)),
    (ended) => (ended.length ? finishedList(ended) : null),
  );
}

function makeCard({ rollout }) {
  const part = (name) => h("div", { class: name });
  return h(
    "article",
    { class: "rollout", "aria-label": `Rollout ${rollout.id}` },
    h("div", { class: "rollout-head" }, part("what"), part("commands")),
    part("steps-place"),
    part("verdicts"),
  );
}

function fillCard(card, { rollout, points }, desk) {
  const [head, steps, verdicts] = card.children;
  const [what, commands] = head.children;
  show(what, [rollout.status, rollout.arms.map((arm) => [arm.version, arm.weight]), rollout.reason], () =>
    headOf(rollout),
  );
  const { id, status, step, arms, pause_cause: cause } = rollout;
  const mayMove = desk.canOperate;
  show(
    commands,
    [id, status, step, cause, mayMove, arms.map((arm) => [arm.version, arm.weight]), desk.overview.stable],
    () => (mayMove ? commandsOf(rollout, desk) : null),
  );
  show(steps, [status, step, rollout.waits_for, progressOf(rollout, desk.overview.at)], () =>
    stepsOf(rollout, desk.overview.at),
  );
  const requests = rollout.arms.map((arm) => requestsOf(desk.overview, rollout, arm));
  show(verdicts, [rollout.arms, requests, points.length, points.at(-1)?.at], () =>
    rollout.arms.map((arm, index) => armOf(rollout, arm, points, requests[index])),
  );
}

function headOf(rollout) {
  const names = rollout.arms.map((arm) => h("span", { class: "arm" }, versionName(arm.version), ` ${arm.weight} %`));
  return [
    h("h3", {}, h("span", { class: "id" }, rollout.id), statusBadge(rollout), names),
    h(
      "p",
      { class: "note" },
      rollout.is_rollback ? "rollback, " : "",
      `started by ${rollout.created_by} `,
      ago(rollout.created_at),
      rollout.reason ? [" · ", h("span", { class: "reason" }, rollout.reason)] : "",
    ),
  ];
}

function statusBadge({ status }) {
  const [kind, text, sign] = STATUSES[status] ?? ["plain", status, ""];
  return badge(kind, text, sign);
}

function commandsOf(rollout, desk) {
  const button = (name, label, action, kind) => commandButton(desk, `${rollout.id}-${name}`, label, action, kind);
  const hasBegun = rollout.status !== "pending" && rollout.started_at !== null;
  return [
    rollout.status === "paused"
      ? button("resume", "Resume", resume(rollout))
      : button("pause", "Pause", pause(rollout)),
    hasBegun ? button("skip", "Skip step", skip(rollout)) : null,
    hasBegun
      ? rollout.arms.map(({ version }) =>
          button(
            `promote-${version}`,
            rollout.arms.length > 1 ? `Promote ${version}` : "Promote",
            promote(rollout, version, desk.overview),
          ),
        )
      : null,
    button("abort", "Abort", abort(rollout, desk.overview), "danger"),
  ];
}

function stepsOf(rollout, at) {
  const passed = progressOf(rollout, at);
  const isOver = rollout.finished_at !== null;
  const items = rollout.spec.steps.map((step, index) => {
    const state =
      index < rollout.step || rollout.status === "promoted"
        ? "done"
        : index === rollout.step && !isOver
          ? "current"
          : "ahead";
    const share = state === "done" ? 100 : state === "current" ? passed : 0;
    return h(
      "li",
      { class: state, "aria-current": state === "current" ? "step" : null, vars: { "--passed": `${share}%` } },
      h("strong", {}, `${step.weight} %`),
      h("span", {}, endOf(step)),
    );
  });
  return [
    h("ol", { class: "steps" }, items),
    rollout.waits_for ? h("p", { class: "waits" }, sentence(rollout.waits_for)) : null,
  ];
}

/** How much of the step's time is over, in percent. */
function progressOf(rollout, at) {
  const step = rollout.spec.steps[rollout.step];
  const seconds = Math.max(Number(step.pause) || 0, step.analysis?.max ?? 0);
  if (rollout.status === "pending" || rollout.started_at === null || !seconds) return 0;
  const until = rollout.paused_at ?? at;
  return Math.min(Math.round((100 * (until - rollout.step_since)) / seconds), 100);
}

function endOf(step) {
  const parts = [];
  if (step.pause === "manual") parts.push("until resumed");
  else if (step.pause) parts.push(duration(Number(step.pause)));
  if (step.analysis) parts.push(`analysis ≤ ${duration(step.analysis.max)}`);
  return parts.join(" + ") || "at once";
}

function armOf(rollout, arm, points, requests) {
  const analysis = rollout.spec.analysis;
  if (!analysis)
    return empty(
      `Nothing is analysed; ${count(requests)} requests so far. `,
      `Only an operator can find that ${arm.version} is worse.`,
    );
  const { verdict } = arm;
  const needed = analysis.min_requests;
  const head = h(
    "div",
    { class: "verdict-head" },
    rollout.arms.length > 1 ? versionName(arm.version) : null,
    outcomeBadge(verdict?.outcome ?? "running"),
    h(
      "span",
      { class: "verdict-reason" },
      verdict?.reason || (verdict ? "" : "No verdict yet: the candidate has no requests."),
    ),
    h(
      "label",
      { class: "needed" },
      `${count(requests)} requests, ${count(needed)} needed`,
      h("progress", { max: needed, value: Math.min(requests, needed) }),
    ),
  );
  return h(
    "section",
    { class: "arm-verdict", "aria-label": `Analysis of ${arm.version}` },
    head,
    verdict ? verdictTable(arm.version, verdict, points) : null,
  );
}

function requestsOf(overview, rollout, { version }) {
  const arm = overview.arms.find(
    (each) => each.rollout === rollout.id && each.version === version && each.arm === "candidate",
  );
  return arm ? arm.num_answered + arm.num_failed + arm.num_refused : 0;
}

function finishedList(ended) {
  return [
    h("h3", { class: "finished-title" }, "Finished"),
    ended.map(({ rollout, points }) =>
      h(
        "details",
        { class: "finished", "data-key": rollout.id },
        h(
          "summary",
          {},
          h("span", { class: "id" }, rollout.id),
          statusBadge(rollout),
          rollout.arms.map((arm) => versionName(arm.version)),
          h(
            "span",
            { class: "note" },
            `${rollout.created_by}, ${clock(rollout.finished_at)}, `,
            `took ${duration(rollout.finished_at - rollout.created_at)}`,
          ),
          rollout.reason ? h("span", { class: "note reason" }, `· ${rollout.reason}`) : null,
        ),
        stepsOf(rollout, rollout.finished_at),
        rollout.arms.map((arm) =>
          arm.verdict ? verdictTable(arm.version, arm.verdict, points) : empty(`No verdict on ${arm.version}.`),
        ),
      ),
    ),
  ];
}

function sentence(text) {
  return `${text[0].toUpperCase()}${text.slice(1)}.`;
}

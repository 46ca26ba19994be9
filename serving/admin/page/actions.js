// The commands: what each will do, said before it is done.

import { h } from "./elements.js";
import { plural } from "./format.js";

/** A button that asks, and then sends. */
export function commandButton(desk, key, label, action, kind = "") {
  const onclick = () => desk.ask(action);
  return h("button", { type: "button", class: kind, "data-key": key, "data-command": true, onclick }, label);
}

const candidates = (rollout) => rollout.arms.map((arm) => arm.version).join(" and ");
const weight = (rollout) => rollout.arms.reduce((sum, arm) => sum + arm.weight, 0);

function move(rollout, name, title, confirm, effects, more = {}) {
  return { title: `${title} ${rollout.id}?`, confirm, effects, path: `rollouts/${rollout.id}/${name}`, ...more };
}

export function pause(rollout) {
  return move(rollout, "pause", "Pause", "Pause", [
    `${candidates(rollout)} keeps its ${weight(rollout)} % of the users, and no further step begins.`,
    "An analysis that fails still rolls it back.",
  ]);
}

export function resume(rollout) {
  const effects = [
    `The rollout of ${candidates(rollout)} goes on with step ${rollout.step + 1} of ${rollout.num_steps}.`,
  ];
  if (rollout.pause_cause === "failure") effects.push("Its analysis failed: resuming overrules that for this step.");
  if (rollout.pause_cause === "inconclusive")
    effects.push("Its analysis came to no outcome: this step goes on without.");
  return move(rollout, "resume", "Resume", "Resume", effects, { isDangerous: rollout.pause_cause === "failure" });
}

export function skip(rollout) {
  const isLast = rollout.step + 1 === rollout.num_steps;
  const next = isLast ? "" : `: ${rollout.spec.steps[rollout.step + 1].weight} % of the users`;
  const effect = isLast
    ? `It is the last step, so ${candidates(rollout)} becomes the stable version.`
    : `Step ${rollout.step + 2} begins at once${next}.`;
  const effects = [`Step ${rollout.step + 1} ends now, without the rest of its time and its analysis.`, effect];
  return move(rollout, "skip", "Skip a step of", "Skip the step", effects, { fields: { step: rollout.step } });
}

export function promote(rollout, version, overview) {
  return move(
    rollout,
    "promote",
    "Promote",
    `Promote ${version}`,
    [
      `${version} becomes the stable version for all users at once, without the steps that are left.`,
      `${overview.stable} is kept for a rollback.`,
      ...(rollout.arms.length > 1 ? ["The other candidates of this rollout are dropped."] : []),
    ],
    { fields: { version }, isDangerous: true },
  );
}

export function abort(rollout, overview) {
  return move(
    rollout,
    "abort",
    "Abort",
    "Abort the rollout",
    [
      `All users get ${overview.stable} at once.`,
      `${candidates(rollout)} and older versions are never admitted by refresh again.`,
      ...(overview.policy.admit === "direct" ? ["Refresh is held, until somebody resumes it."] : []),
    ],
    { isDangerous: true },
  );
}

export function rollBack(version, overview) {
  const view = overview.versions.find((each) => each.name === version.name) ?? version;
  const missing = view.replicas.filter((each) => each.state !== "loaded").map((each) => each.replica);
  const active = overview.rollouts
    .filter(({ rollout }) => rollout.finished_at === null)
    .map(({ rollout }) => rollout.id);
  return {
    title: `Roll back to ${version.name}?`,
    confirm: `Roll back to ${version.name}`,
    isDangerous: true,
    path: "rollback",
    fields: { version: version.name },
    effects: [
      missing.length
        ? `All users get it when it is loaded again on ${missing.join(", ")}.`
        : `All users get ${version.name} at once, as it is still loaded on ${plural(view.replicas.length, "replica")}.`,
      `${overview.stable} and older versions are never admitted by refresh again.`,
      ...(active.length ? [`These rollouts end: ${active.join(", ")}.`] : []),
      "Refresh is held, until somebody resumes it.",
    ],
  };
}

export function quarantine(version) {
  return {
    title: `Quarantine ${version.name}?`,
    confirm: "Quarantine",
    isDangerous: true,
    path: `versions/${version.name}/quarantine`,
    effects: [`${version.name} gets no traffic until it is released.`, "Rollouts of it are rolled back."],
  };
}

export function release(version) {
  return {
    title: `Release ${version.name}?`,
    confirm: "Release",
    path: `versions/${version.name}/release`,
    effects: [`${version.name} may be loaded and get traffic again. It was quarantined: ${version.reason}`],
  };
}

export function hold() {
  return {
    title: "Hold refresh?",
    confirm: "Hold refresh",
    path: "refresh/hold",
    effects: ["No new version is admitted until somebody resumes refresh.", "Rollouts that are under way go on."],
  };
}

export function resumeRefresh(overview) {
  const how = {
    direct: "The newest version becomes stable as soon as all replicas have loaded it.",
    rollout: "The newest version starts a rollout as soon as all replicas have loaded it.",
    manual: "New versions are loaded, and wait for an operator.",
  };
  return {
    title: "Resume refresh?",
    confirm: "Resume refresh",
    path: "refresh/resume",
    effects: [how[overview.policy.admit] ?? "New versions are admitted by the policy again."],
  };
}

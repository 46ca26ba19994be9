// All versions, newest first: where each comes from, where it is loaded, what keeps it out, what can be done with it.

import { commandButton, quarantine, release, rollBack } from "./actions.js";
import { badge, empty, h, show, versionName } from "./elements.js";
import { ago, bytes, count, number, plural } from "./format.js";
import { laneChart, laneCount, lanesOf } from "./lineage.js";

const SHOWN = 12;
const ROLES = {
  stable: ["good", "stable", "✓"],
  candidate: ["info", "candidate", "▸"],
  previous: ["plain", "earlier stable", "↶"],
  taken_back: ["warn", "taken back", "↩"],
  quarantined: ["bad", "quarantined", "✕"],
  failed: ["bad", "failed", "!"],
  preparing: ["plain", "preparing", "…"],
  loaded: ["plain", "loaded", "●"],
  stored: ["plain", "in the store", "○"],
};
const WAITING = ["loaded", "stored", "taken_back"];
let showsAll = false;

/** Shows the versions. */
export function showVersions(place, desk) {
  const { versions, stable, rollouts, replicas } = desk.overview;
  const isBusy = rollouts.some(({ rollout }) => rollout.finished_at === null);
  show(place, [versions, stable, isBusy, desk.canOperate, showsAll, replicas.length], () => {
    if (!versions.length) return empty("There is no version yet: ", h("code", {}, "rankhouse export"), " writes one.");
    const chosen = showsAll ? versions : versions.slice(0, SHOWN);
    const rows = lanesOf(chosen.map(linked));
    const numLanes = laneCount(rows);
    const more = versions.length - SHOWN;
    const onclick = () => {
      showsAll = !showsAll;
      showVersions(place, desk);
    };
    return [
      h(
        "ul",
        { class: "versions" },
        chosen.map((version, index) => item(version, laneChart(version.name, rows[index], numLanes), desk)),
      ),
      h(
        "p",
        { class: "note legend-line" },
        "■ whole export   ● delta on the version below   ┄ made from it, with the same rows",
      ),
      more > 0
        ? h(
            "button",
            { type: "button", class: "quiet", "data-key": "more-versions", onclick },
            showsAll ? "Show the newest only" : `Show ${plural(more, "older version")}`,
          )
        : null,
    ];
  });
}

function linked({ name, stored }) {
  const from = stored?.parent ?? stored?.made_from ?? null;
  return { name, from, isCopy: !stored?.parent && Boolean(stored?.made_from) };
}

function item(version, lanes, desk) {
  const { name, role, stored, weight, reason } = version;
  const [kind, text, sign] = ROLES[role] ?? ["plain", role, ""];
  return h(
    "li",
    { class: "version-row" },
    lanes,
    h(
      "div",
      { class: "version-body" },
      h(
        "div",
        { class: "version-what" },
        h(
          "div",
          {},
          versionName(name),
          badge(kind, text, sign),
          weight > 0 ? h("strong", { class: "weight" }, `${weight} % of users`) : null,
        ),
        h("p", { class: "note" }, madeOf(stored)),
        reason ? h("p", { class: role === "taken_back" ? "note reason" : "bad-text reason" }, reason) : null,
        stored?.problem ? h("p", { class: "bad-text" }, `Its manifest cannot be read: ${stored.problem}`) : null,
      ),
      h("div", { class: "version-where" }, whereLoaded(version)),
      desk.canOperate ? h("div", { class: "commands" }, commands(version, desk)) : null,
    ),
  );
}

function madeOf(stored) {
  if (!stored || stored.problem) return stored ? "" : "not in the version store";
  const from = {
    delta: `delta on ${stored.parent}`,
    compact: `compaction of ${stored.made_from}`,
    rollback: `repeats ${stored.made_from}`,
    export: "whole export",
    import: "import",
  };
  const isPart = stored.added_bytes < stored.num_bytes;
  const size = isPart
    ? `+${count(stored.added_rows)} rows, +${bytes(stored.added_bytes)} of ${bytes(stored.num_bytes)}`
    : `${count(stored.num_rows)} rows, ${bytes(stored.num_bytes)}`;
  const metrics = Object.entries(stored.metrics)
    .filter(([, value]) => typeof value === "number" && value > 0 && value <= 1)
    .slice(0, 2);
  return [
    `${from[stored.made_by] ?? stored.made_by} · `,
    ago(stored.created_at),
    ` · ${size}`,
    metrics.map(([metric, value]) => ` · ${metric} ${number(value)}`),
  ];
}

function whereLoaded({ replicas }) {
  const of = (state) => replicas.filter((each) => each.state === state);
  const loaded = of("loaded").length;
  const total = replicas.length;
  const lines = [
    total === 0
      ? "no replica lives"
      : loaded === 0
        ? "not loaded"
        : loaded === total
          ? `loaded on ${total === 1 ? "the replica" : `all ${total}`}`
          : `loaded on ${loaded} of ${total}`,
  ];
  const details = [...of("preparing"), ...of("failed")]
    .filter((each) => each.detail)
    .map((each) => h("li", {}, `${each.replica}: ${each.detail}`));
  return [h("p", {}, lines), details.length ? h("ul", { class: "plain-list note" }, details) : null];
}

function commands(version, desk) {
  const { overview } = desk;
  const { name, role } = version;
  const button = (what, label, action, kind = "small") => commandButton(desk, `${name}-${what}`, label, action, kind);
  const isNewer = overview.stable !== null && parseInt(name, 10) > parseInt(overview.stable, 10);
  const start = () => desk.start(name);
  return [
    role === "previous" ? button("rollback", "Roll back to it", rollBack(version, overview)) : null,
    isNewer && WAITING.includes(role) && !version.stored?.problem
      ? h(
          "button",
          { type: "button", class: "small", "data-key": `${name}-start`, "data-command": true, onclick: start },
          "Roll out",
        )
      : null,
    role === "quarantined" ? button("release", "Release", release(version)) : null,
    role === "candidate" || role === "failed" || WAITING.includes(role)
      ? button("quarantine", "Quarantine", quarantine(version), "small quiet")
      : null,
  ];
}

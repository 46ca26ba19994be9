// The tiles at the top: what serves whom, how well, how fresh, and whether anything new comes in.

import { commandButton, hold, resumeRefresh } from "./actions.js";
import { badge, colour, h, keyed, show, versionName } from "./elements.js";
import { ago, number, percent, plural } from "./format.js";

const TILES = [
  ["stable", "Stable version", stableOf, stable],
  ["users", "Users by version", ({ overview }) => shares(overview), users],
  ["requests", "Requests", (desk, rates) => rates.total(), requests],
  ["replicas", "Replicas", replicasOf, replicas],
  ["refresh", "Refresh", refreshOf, refresh],
];

/** Shows the tiles. */
export function showSummary(place, desk, rates) {
  keyed(
    place,
    TILES,
    ([name]) => name,
    makeTile,
    (tile, [, , read, view]) => {
      const value = read(desk, rates);
      show(tile.lastElementChild, value, (shown) => view(shown, desk));
    },
  );
}

function makeTile([, title]) {
  return h("section", { class: "tile" }, h("h2", {}, title), h("div", {}));
}

function stableOf({ overview }) {
  const stored = overview.versions.find((each) => each.name === overview.stable)?.stored;
  return { name: overview.stable, madeBy: stored?.made_by ?? "", at: stored?.created_at || null };
}

function stable({ name, madeBy, at }) {
  if (name === null)
    return [
      h("p", { class: "figure" }, "none"),
      h("p", { class: "note" }, "Requests are refused until a version is admitted."),
    ];
  return [
    h("p", { class: "figure name" }, versionName(name)),
    h("p", { class: "note" }, at === null ? "not in the version store" : [`${madeBy || "exported"}, `, ago(at)]),
  ];
}

function shares(overview) {
  const all = overview.versions.filter((each) => each.weight > 0).map((each) => [each.name, each.weight, each.role]);
  return { all, holdout: overview.holdout_percent };
}

function users({ all, holdout }) {
  if (!all.length) return h("p", { class: "note" }, "No version answers.");
  const rest = all.filter(([, , role]) => role !== "stable");
  const text = rest.length === 0 ? "100 % stable" : rest.map(([, weight, role]) => `${weight} % ${role}`).join(", ");
  const bar = all.map(([name, weight]) => h("span", { class: colour(name), vars: { "--share": `${weight}%` } }));
  return [
    h("p", { class: "figure" }, text),
    h(
      "div",
      { class: "share-bar", role: "img", "aria-label": all.map(([name, weight]) => `${name} ${weight} %`).join(", ") },
      bar,
    ),
    holdout ? h("p", { class: "note" }, `${holdout} % held out of rollouts`) : null,
  ];
}

function requests({ perSecond, failedShare, p99 }) {
  return [
    h("p", { class: "figure" }, perSecond === null ? "–" : `${number(perSecond)} /s`),
    h(
      "p",
      { class: "note" },
      `${percent(failedShare)} failed · p99 ${p99 === null ? "–" : `${number(p99 * 1000)} ms`}`,
    ),
  ];
}

function replicasOf({ overview }) {
  const { replicas, stable, revision } = overview;
  const behind = replicas.filter((each) => each.lags || (stable !== null && !each.loaded.includes(stable)));
  const draining = replicas.filter((each) => each.is_draining).length;
  return { total: replicas.length, behind: behind.length, draining, revision };
}

function replicas({ total, behind, draining, revision }) {
  if (!total)
    return [
      h("p", { class: "figure" }, badge("bad", "none lives", "!")),
      h("p", { class: "note" }, "No replica has said that it lives."),
    ];
  const state = behind ? badge("warn", `${behind} behind`, "!") : badge("good", "all follow", "✓");
  const more = draining ? `, ${plural(draining, "replica")} draining` : "";
  return [
    h("p", { class: "figure" }, String(total), " ", state),
    h("p", { class: "note" }, `state at revision ${revision}${more}`),
  ];
}

function refreshOf({ overview, canOperate }) {
  return { held: Boolean(overview.policy.held), admit: overview.policy.admit, canOperate };
}

function refresh({ held, admit, canOperate }, desk) {
  const how =
    { direct: "new versions become stable", rollout: "new versions are rolled out", manual: "new versions wait" }[
      admit
    ] ?? "";
  const action = held ? resumeRefresh(desk.overview) : hold();
  return [
    h("p", { class: "figure" }, held ? badge("warn", "held", "❙❙") : badge("good", "on", "✓")),
    h("p", { class: "note" }, held ? "nothing new is admitted" : how),
    canOperate ? commandButton(desk, "refresh", held ? "Resume refresh" : "Hold refresh", action, "small") : null,
  ];
}

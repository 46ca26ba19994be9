// What replicas say of themselves: whether they follow, what they hold, where rows come from, how fresh it is.

import { badge, empty, h, show, table, versionName } from "./elements.js";
import { ago, count, duration, percent, plural } from "./format.js";

const TIERS = [
  ["memory", "memory"],
  ["device", "GPU memory"],
  ["cache", "cache"],
  ["redis", "Redis"],
  ["degraded", "default rows"],
  ["unknown", "unknown ids"],
];

/** Shows a line for each replica. */
export function showReplicas(place, { replicas, at, stable }) {
  const lines = replicas.map((each) => ({ ...each, heard: at - each.seconds_ago, seconds_ago: null, details: null }));
  show(place, [lines.map((line) => ({ ...line, heard: Math.round(line.heard) })), stable], () =>
    lines.length
      ? table(
          "Replicas that live",
          ["Replica", "Heard", "State", "Versions"],
          lines.map((each) => row(each, stable)),
        )
      : empty("No replica has said that it lives: is a gateway running with this state store?"),
  );
}

function row(replica, stable) {
  const coming = Object.entries(replica.preparing).map(([name, stage]) => h("li", {}, versionName(name), ` ${stage}`));
  const failed = Object.entries(replica.failed).map(([name, why]) =>
    h("li", { class: "bad-text" }, versionName(name), ` ${why}`),
  );
  return {
    cells: [
      h(
        "div",
        { class: "name" },
        replica.replica,
        h("span", { class: "note" }, Object.values(replica.urls).join("  ")),
      ),
      ago(replica.heard),
      stateOf(replica, stable),
      [
        plural(replica.loaded.length, "version"),
        " loaded",
        coming.length || failed.length ? h("ul", { class: "plain-list" }, coming, failed) : null,
      ],
    ],
  };
}

function stateOf(replica, stable) {
  if (replica.is_draining) return badge("warn", "draining", "↓");
  if (stable !== null && !replica.loaded.includes(stable)) return badge("bad", "lacks the stable version", "!");
  return replica.lags
    ? badge("warn", `behind, at revision ${replica.routing_revision}`, "!")
    : badge("good", "follows", "✓");
}

/** Shows where the rows of embedding tables came from, all replicas together. */
export function showTiers(place, overview) {
  const totals = new Map();
  for (const { details } of overview.replicas) {
    for (const [version, counts] of Object.entries(details.tiers ?? {})) {
      const sum = totals.get(version) ?? {};
      for (const [tier] of TIERS) sum[tier] = (sum[tier] ?? 0) + (counts[tier] ?? 0);
      totals.set(version, sum);
    }
  }
  show(place, [...totals].sort().reverse(), (lines) =>
    lines.length
      ? table(
          "Ids looked up since Triton loaded the version",
          ["Version", "Ids", "Found in"],
          lines.map(([version, counts]) => tierRow(version, counts)),
        )
      : empty(
          "No replica tells of its embedding tiers: the gateway reads them where ",
          h("code", {}, "RANKHOUSE_TRITON_METRICS_URL"),
          " is set.",
        ),
  );
}

function tierRow(version, counts) {
  const total = TIERS.reduce((sum, [tier]) => sum + counts[tier], 0);
  const found = TIERS.filter(([tier]) => counts[tier] > 0);
  const text = found.map(([tier, title]) => `${title} ${percent(counts[tier] / total)}`).join(" · ");
  const bar = found.map(([tier]) =>
    h("span", { class: `tier-${tier}`, vars: { "--share": `${(100 * counts[tier]) / total}%` } }),
  );
  return {
    cells: [
      versionName(version),
      count(total),
      total ? [h("div", { class: "share-bar", "aria-hidden": "true" }, bar), h("span", { class: "note" }, text)] : "–",
    ],
  };
}

// What replicas say of freshness, in words.
const SAID = {
  last_since_export_seconds: "last new version, from export to loaded",
  last_since_event_seconds: "last new version, from its newest event to loaded",
  served_age_seconds: "age of what it serves",
};

/** Shows how old what is served is, and how long the last versions were under way. */
export function showFreshness(place, overview) {
  const stable = overview.versions.find((each) => each.name === overview.stable);
  const under = overview.events
    .filter((event) => (event.kind === "admitted" || event.kind === "promoted") && event.version)
    .map((event) => ({ event, stored: overview.versions.find((each) => each.name === event.version)?.stored }))
    .filter(({ stored }) => stored?.created_at)
    .filter(({ event }, index, all) => all.findLastIndex((each) => each.event.version === event.version) === index)
    .map(({ event, stored }) => ({
      version: event.version,
      kind: event.kind,
      seconds: Math.max(event.at - stored.created_at, 0),
    }))
    .slice(0, 5);
  const said = Object.entries(overview.freshness ?? {}).flatMap(([replica, values]) =>
    Object.entries(values)
      .filter(([, value]) => typeof value === "number")
      .map(([name, value]) => [replica, name, Math.round(value * 10) / 10]),
  );
  const value = {
    name: overview.stable,
    exported: stable?.stored?.created_at || null,
    event: eventTime(stable),
    under,
    said,
  };
  show(place, value, freshness);
}

function freshness({ name, exported, event, under, said }) {
  const lines = [];
  if (exported !== null) lines.push(["The stable version was exported", ago(exported)]);
  if (event !== null) lines.push(["Its newest training event happened", ago(event)]);
  for (const [replica, what, value] of said)
    lines.push([
      `${replica}: ${SAID[what] ?? what.replaceAll("_", " ").replace(/ seconds$/, "")}`,
      what.endsWith("seconds") ? duration(value) : String(value),
    ]);
  if (!lines.length && !under.length)
    return empty(name === null ? "No version is stable yet." : "The version store is not known here, so ages are not.");
  return [
    h(
      "dl",
      { class: "facts" },
      lines.map(([term, text]) => h("div", {}, h("dt", {}, term), h("dd", {}, text))),
    ),
    under.length
      ? table(
          "From export to stable",
          ["Version", "How", "Took"],
          under.map((each) => ({ cells: [versionName(each.version), each.kind, duration(each.seconds)] })),
        )
      : null,
  ];
}

function eventTime(version) {
  const value = version?.stored?.metrics?.event_time;
  const at = typeof value === "string" ? Date.parse(value) / 1000 : value;
  return Number.isFinite(at) ? at : null;
}

// What continues what: lanes beside a list of versions, newest first, as `git log --graph` draws commits.

import { colour, h, s } from "./elements.js";

const LANE = 16;
const MAX_LANES = 5;

/**
 * Gives each version its lane, the lanes that pass it, and how it is tied to what it was made from.
 *
 * @param versions {name, from, isCopy}, newest first; `from` is the version that it continues (a delta) or repeats (a
 *   compaction, a rollback), or null. A `from` that is not listed ends below the version.
 */
export function lanesOf(versions) {
  const listed = new Set(versions.map((each) => each.name));
  let waiting = []; // For each lane: which version it leads to, and whether by a copy; null where it is free.
  return versions.map(({ name, from, isCopy }) => {
    const arriving = waiting.flatMap((each, lane) => (each?.name === name ? [lane] : []));
    const lane = Math.min(arriving[0] ?? freeLane(waiting), MAX_LANES - 1);
    const above = waiting
      .map((each, index) => (each ? { lane: index, isCopy: each.isCopy, ends: arriving.includes(index) } : null))
      .filter(Boolean);
    waiting = waiting.map((each) => (each?.name === name ? null : each));
    const hasFrom = from !== null && from !== name && listed.has(from);
    if (hasFrom) waiting[lane] = { name: from, isCopy };
    const below = waiting.map((each, index) => (each ? { lane: index, isCopy: each.isCopy } : null)).filter(Boolean);
    return { lane, above, below, isRoot: from === null, isLoose: from !== null && !hasFrom, isCopy };
  });
}

function freeLane(waiting) {
  const free = [...waiting].findIndex((each) => !each);
  return free < 0 ? waiting.length : free;
}

/** The lanes beside one version. */
export function laneChart(name, row, numLanes) {
  const x = (lane) => LANE / 2 + Math.min(lane, MAX_LANES - 1) * LANE;
  const line = (from, y1, to, y2, isCopy) =>
    s("line", { class: isCopy ? "edge copy" : "edge", x1: x(from), y1, x2: x(to), y2 });
  const chart = s(
    "svg",
    { class: "lanes", "aria-hidden": "true" },
    row.above.flatMap((each) =>
      each.ends
        ? [
            line(each.lane, "0", each.lane, "50%", each.isCopy),
            each.lane === row.lane ? null : line(each.lane, "50%", row.lane, "50%", each.isCopy),
          ]
        : [line(each.lane, "0", each.lane, "50%", each.isCopy)],
    ),
    row.below.map((each) => line(each.lane, "50%", each.lane, "100%", each.isCopy)),
    row.isLoose ? s("line", { class: "edge loose", x1: x(row.lane), y1: "50%", x2: x(row.lane), y2: "100%" }) : null,
    row.isRoot
      ? s(
          "svg",
          { x: x(row.lane) - 6, y: "50%", overflow: "visible" },
          s("rect", { class: `node ${colour(name)}`, x: 0, y: -6, width: 12, height: 12, rx: 2 }),
        )
      : s("circle", { class: `node ${colour(name)}`, cx: x(row.lane), cy: "50%", r: 6 }),
  );
  return h("div", { class: "lanes-place", vars: { "--width": `${Math.min(numLanes, MAX_LANES) * LANE}px` } }, chart);
}

/** How many lanes there are. */
export function laneCount(rows) {
  return Math.max(1, ...rows.flatMap((row) => [row.lane, ...row.above.map((each) => each.lane)])) + 1;
}

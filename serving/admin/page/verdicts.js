// A candidate against the stable version: each metric's difference, its confidence interval and the limit.

import { badge, h, s, table } from "./elements.js";
import { clock, count, number, percent } from "./format.js";

const OUTCOMES = {
  pass: ["good", "pass", "✓"],
  fail: ["bad", "fail", "✕"],
  running: ["info", "running", "…"],
  inconclusive: ["warn", "inconclusive", "?"],
};
const TITLES = {
  error_rate: "Error rate",
  refusal_rate: "Refusal rate",
  latency_p50: "Latency p50",
  latency_p99: "Latency p99",
  degraded: "Degraded answers",
  missing_features: "Missing features",
  unknown_ids: "Unknown ids",
  score_psi: "Score shift (PSI)",
  score_ks: "Score shift (KS)",
  rank_correlation: "Rank correlation",
  top_k_overlap: "Top-k overlap",
  ctr: "CTR",
  auc: "AUC",
  calibration: "Calibration",
};
const SHARES = new Set([
  "error_rate",
  "refusal_rate",
  "degraded",
  "missing_features",
  "unknown_ids",
  "ctr",
  "top_k_overlap",
]);
// What is compared with the limit, and its value where both versions are equal.
const KINDS = {
  max_increase: { name: "increase", neutral: 0 },
  max_ratio: { name: "ratio", neutral: 1 },
  max_loss: { name: "loss", neutral: 0 },
  max_value: { name: "value", neutral: null },
  min_value: { name: "value", neutral: null },
};
const WIDTH = 200,
  HEIGHT = 30,
  CHART = 54;

/** A verdict's outcome. */
export function outcomeBadge(outcome) {
  const [kind, text, sign] = OUTCOMES[outcome] ?? ["plain", outcome, ""];
  return badge(kind, text, sign);
}

/** A line for each metric of a verdict. */
export function verdictTable(version, verdict, points) {
  const rows = verdict.metrics.map((metric) => ({
    cells: [
      h(
        "span",
        {},
        TITLES[metric.name] ?? metric.name,
        metric.dry_run ? h("span", { class: "note" }, " dry run") : null,
      ),
      value(metric, metric.stable),
      value(metric, metric.candidate),
      h("div", { class: "interval" }, intervalChart(metric), h("span", { class: "note" }, intervalText(metric))),
      history(metric, version, points),
      h(
        "div",
        { title: metric.reason },
        outcomeBadge(metric.outcome),
        metric.reason && metric.outcome !== "pass" ? h("span", { class: "note why" }, metric.reason) : null,
      ),
      count(metric.n),
    ],
  }));
  return h(
    "div",
    { class: "verdict-table" },
    table(
      "The band is the confidence interval, which holds at all times; hatched is beyond the limit",
      ["Metric", "Stable", "Candidate", "Compared with the limit", "Over time", "Outcome", "n"],
      rows,
    ),
  );
}

function value({ name }, given) {
  if (given === null || given === undefined) return "–";
  if (SHARES.has(name)) return percent(given);
  if (name.startsWith("latency")) return `${number(given * 1000)} ms`;
  return number(given);
}

function compared(metric, given) {
  if (given === null || given === undefined) return "∞";
  if (metric.limit_kind === "max_ratio") return `×${number(given)}`;
  if (metric.limit_kind === "max_loss") return percent(given);
  if (metric.limit_kind === "max_increase" && metric.name.startsWith("latency")) return `${number(given * 1000)} ms`;
  return SHARES.has(metric.name) ? percent(given) : value(metric, given);
}

function intervalText(metric) {
  const kind = KINDS[metric.limit_kind]?.name ?? "value";
  const limit = `${metric.limit_kind === "min_value" ? "≥" : "≤"} ${compared(metric, metric.limit)}`;
  if (metric.difference === null) return `limit: ${kind} ${limit}`;
  const low = metric.low === null ? "−∞" : compared(metric, metric.low);
  return `${kind} ${compared(metric, metric.difference)} [${low}, ${compared(metric, metric.high)}], limit ${limit}`;
}

function scaleOf(values, size) {
  const finite = values.filter((each) => Number.isFinite(each));
  const low = Math.min(...finite),
    high = Math.max(...finite);
  const room = (high - low || Math.abs(high) || 1) * 0.12;
  return (at) => ((at - (low - room)) / (high - low + 2 * room)) * size;
}

function intervalChart(metric) {
  const { low, high, difference, limit, limit_kind: kind } = metric;
  const neutral = KINDS[kind]?.neutral ?? null;
  const x = scaleOf(
    [low, high, difference, limit, neutral].filter((each) => each !== null),
    WIDTH,
  );
  const middle = HEIGHT / 2;
  const edge = x(limit);
  const beyond = kind === "min_value" ? { x: 0, width: edge } : { x: edge, width: WIDTH - edge };
  const left = low === null ? 0 : x(low),
    right = high === null ? WIDTH : x(high);
  return s(
    "svg",
    {
      class: "chart band-chart",
      preserveAspectRatio: "xMinYMid",
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      role: "img",
      "aria-label": intervalText(metric),
    },
    s("rect", { class: "beyond", y: 0, height: HEIGHT, ...beyond }),
    s("rect", { class: "hatched", y: 0, height: HEIGHT, ...beyond }),
    s("line", { class: "axis", x1: 0, x2: WIDTH, y1: middle, y2: middle }),
    neutral === null ? null : s("line", { class: "neutral", x1: x(neutral), x2: x(neutral), y1: 3, y2: HEIGHT - 3 }),
    difference === null
      ? null
      : s("rect", {
          class: `band ${metric.outcome}`,
          x: left,
          y: middle - 6,
          width: Math.max(right - left, 2),
          height: 12,
          rx: low === null || high === null ? 0 : 3,
        }),
    s("line", { class: "limit", x1: edge, x2: edge, y1: 0, y2: HEIGHT }),
    difference === null ? null : s("circle", { class: "estimate", cx: x(difference), cy: middle, r: 3.5 }),
  );
}

/** How the difference and its band moved: a new run of the analysis in each step. */
function history(metric, version, points) {
  const found = points
    .map((point) => ({ at: point.at, step: point.step, band: point.bands[version]?.[metric.name] }))
    .filter(({ band }) => band && band.difference !== null);
  if (found.length < 2) return h("span", { class: "note" }, "–");
  const neutral = KINDS[metric.limit_kind]?.neutral ?? null;
  const late = found.slice(Math.floor(found.length / 3));
  const heights = late.flatMap(({ band }) => [band.low, band.high, band.difference]).filter((each) => each !== null);
  const up = scaleOf([metric.limit, ...heights, ...(neutral === null ? [] : [neutral])], CHART);
  const y = (at) => CHART - up(at);
  const [first, last] = [found[0].at, found.at(-1).at];
  const x = (at) => ((at - first) / (last - first || 1)) * WIDTH;
  const edge = y(metric.limit);
  const beyond =
    metric.limit_kind === "min_value"
      ? { y: edge, height: Math.max(CHART - edge, 0) }
      : { y: 0, height: Math.max(edge, 0) };
  const title = TITLES[metric.name] ?? metric.name;
  const label = `${title} from ${clock(first)} to ${clock(last)}: now ${intervalText(metric)}`;
  return s(
    "svg",
    {
      class: "chart band-history",
      viewBox: `0 0 ${WIDTH} ${CHART}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    s("rect", { class: "beyond", x: 0, width: WIDTH, ...beyond }),
    s("rect", { class: "hatched", x: 0, width: WIDTH, ...beyond }),
    runs(found).map((run) => [
      s("path", { class: `band ${metric.outcome}`, d: bandPath(run, x, y) }),
      s("path", { class: "line", d: linePath(run.map(({ at, band }) => [x(at), y(band.difference)])) }),
    ]),
    runs(found)
      .slice(1)
      .map((run) => s("line", { class: "step-line", x1: x(run[0].at), x2: x(run[0].at), y1: 0, y2: CHART })),
    neutral === null ? null : s("line", { class: "neutral", x1: 0, x2: WIDTH, y1: y(neutral), y2: y(neutral) }),
    s("line", { class: "limit", x1: 0, x2: WIDTH, y1: edge, y2: edge }),
  );
}

function runs(found) {
  const all = [];
  for (const point of found) {
    if (all.at(-1)?.[0].step === point.step) all.at(-1).push(point);
    else all.push([point]);
  }
  return all;
}

function bandPath(run, x, y) {
  const far = 4 * CHART; // Beyond the picture, which is cut at its edges.
  const above = run.map(({ at, band }) => [x(at), band.high === null ? -far : y(band.high)]);
  const below = run.map(({ at, band }) => [x(at), band.low === null ? far : y(band.low)]).reverse();
  return `${linePath([...above, ...below])}Z`;
}

function linePath(corners) {
  return `M${corners.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join("L")}`;
}

// Which version answered whom over time: stacked areas with steps, as shares change at once and not by and by.

import { colour, empty, h, s, show, versionName } from "./elements.js";
import { clock, fullTime, now } from "./format.js";

const RANGES = [
  ["1 h", 3600],
  ["6 h", 6 * 3600],
  ["24 h", 86400],
  ["7 d", 7 * 86400],
  ["All", Infinity],
];
const WIDTH = 1000,
  HEIGHT = 180;
const MAX_POINTS = 600;

/** The chart, its range and its readout. */
export class Traffic {
  #place;
  #seconds = 6 * 3600;
  #points = [];
  #at = null; // The time that is read out; null: now.

  constructor(choices, place) {
    this.#place = place;
    for (const [label, seconds] of RANGES) {
      const onclick = () => {
        this.#seconds = seconds;
        this.#at = null;
        for (const each of choices.children) each.setAttribute("aria-pressed", String(each.textContent === label));
        this.#show();
      };
      choices.append(
        h("button", { type: "button", "aria-pressed": String(seconds === this.#seconds), onclick }, label),
      );
    }
    place.append(h("div", { class: "plot" }), h("p", { class: "readout" }), h("div", {}));
  }

  /** Takes what the gateway keeps, and what is seen here: the last share holds until now. */
  update(overview) {
    const seen = Object.fromEntries(
      overview.versions.filter((each) => each.weight > 0).map((each) => [each.name, each.weight]),
    );
    const known = overview.traffic.map(({ at, weights }) => ({ at, weights }));
    const last = known.at(-1) ?? this.#points.at(-1);
    if (Object.keys(seen).length && (!last || !isSame(last.weights, seen)))
      known.push({ at: overview.at, weights: seen });
    this.#points = known.slice(-MAX_POINTS);
    this.#show();
  }

  #show() {
    const [plot, readout, list] = this.#place.children;
    const end = now();
    const parts = this.#within(end);
    if (!parts.length) {
      show(plot, "none", () => empty("No version has answered anybody yet."));
      return;
    }
    const begin = parts[0].at;
    // Redrawn when something has moved by a pixel or so.
    show(
      plot,
      [
        parts.slice(1),
        this.#seconds,
        Math.round((end - begin) / ((end - begin) / WIDTH)),
        Math.round(end / Math.max((end - begin) / 400, 1)),
      ],
      () => this.#plot(parts, begin, end),
    );
    this.#readOut(readout, plot, parts, begin, end);
    show(list, parts, () => tableOf(parts));
  }

  /** The points of the range, the first of them at its begin. */
  #within(end) {
    const points = this.#points;
    if (!points.length) return [];
    const begin = Math.max(end - this.#seconds, Math.min(points[0].at, end - 60));
    const before = points.filter((point) => point.at <= begin).at(-1);
    const inside = points.filter((point) => point.at > begin && point.at <= end);
    return [{ at: begin, weights: before?.weights ?? {} }, ...inside];
  }

  #plot(parts, begin, end) {
    const x = (at) => ((at - begin) / (end - begin || 1)) * WIDTH;
    const names = [...new Set(parts.flatMap(({ weights }) => Object.keys(weights)))].sort();
    const label = `Shares of the users by version from ${fullTime(begin)} to now; the table below has the numbers`;
    const chart = s(
      "svg",
      {
        class: "chart traffic",
        viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
        preserveAspectRatio: "none",
        role: "img",
        "aria-label": label,
        tabindex: 0,
        "data-key": "traffic",
      },
      names.map((name) => s("path", { class: `area ${colour(name)}`, d: area(name, names, parts, x, end) })),
      [25, 50, 75].map((share) =>
        s("line", { class: "grid", x1: 0, x2: WIDTH, y1: (HEIGHT * share) / 100, y2: (HEIGHT * share) / 100 }),
      ),
      s("line", { class: "cursor", x1: WIDTH, x2: WIDTH, y1: 0, y2: HEIGHT }),
    );
    const move = (at) => {
      this.#at = at === null ? null : Math.min(Math.max(at, begin), end);
      this.#readOut(this.#place.children[1], this.#place.children[0], parts, begin, end);
    };
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      move(begin + ((event.clientX - box.left) / box.width) * (end - begin));
    });
    chart.addEventListener("pointerleave", () => move(null));
    chart.addEventListener("keydown", (event) => {
      const forward = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") move(null);
      if (!forward) return;
      event.preventDefault();
      const stops = [...parts.map((part) => part.at), end];
      const at = this.#at ?? end;
      move((forward > 0 ? stops.find((stop) => stop > at) : stops.findLast((stop) => stop < at)) ?? at);
    });
    const legend = h(
      "div",
      { class: "legend" },
      names.map((name) => versionName(name)),
    );
    return [
      h(
        "div",
        { class: "plot-body" },
        h(
          "div",
          { class: "y-axis", "aria-hidden": "true" },
          ["100 %", "75", "50", "25", "0"].map((text) => h("span", {}, text)),
        ),
        chart,
      ),
      h(
        "div",
        { class: "x-axis", "aria-hidden": "true" },
        [0, 1, 2, 3, 4].map((part) =>
          h("span", {}, part === 4 ? "now" : axisTime(begin + ((end - begin) * part) / 4, end - begin)),
        ),
      ),
      legend,
    ];
  }

  #readOut(readout, plot, parts, begin, end) {
    const at = this.#at;
    const part = parts.filter((each) => each.at <= (at ?? end)).at(-1) ?? parts[0];
    const cursor = plot.querySelector(".cursor");
    if (cursor) {
      const x = (((at ?? end) - begin) / (end - begin || 1)) * WIDTH;
      cursor.setAttribute("x1", x);
      cursor.setAttribute("x2", x);
    }
    const shares = Object.entries(part.weights).sort(([a], [b]) => a.localeCompare(b));
    show(readout, [at === null ? null : Math.round(at), shares], () => [
      h("strong", {}, at === null ? "Now" : clock(at)),
      shares.length
        ? shares.map(([name, weight]) => h("span", {}, versionName(name), ` ${weight} %`))
        : h("span", {}, "nothing answered"),
    ]);
  }
}

function area(name, names, parts, x, end) {
  const below = ({ weights }) =>
    names.slice(0, names.indexOf(name)).reduce((sum, other) => sum + (weights[other] ?? 0), 0);
  const y = (share) => HEIGHT * (1 - share / 100);
  const top = [],
    bottom = [];
  parts.forEach((part, index) => {
    const from = x(part.at).toFixed(2),
      to = x(parts[index + 1]?.at ?? end).toFixed(2);
    const low = below(part),
      high = low + (part.weights[name] ?? 0);
    top.push(`${from},${y(high)}`, `${to},${y(high)}`);
    bottom.push(`${from},${y(low)}`, `${to},${y(low)}`);
  });
  return `M${top.join("L")}L${bottom.reverse().join("L")}Z`;
}

function tableOf(parts) {
  const rows = parts
    .filter(({ weights }) => Object.keys(weights).length)
    .slice(-50)
    .reverse();
  const items = rows.map(({ at, weights }) =>
    h(
      "li",
      {},
      h("time", {}, fullTime(at)),
      Object.entries(weights).map(([name, weight]) => h("span", {}, `${name} ${weight} %`)),
    ),
  );
  return h(
    "details",
    { class: "as-table", "data-key": "traffic-table" },
    h("summary", {}, "As a list"),
    h("ol", {}, items),
  );
}

function axisTime(at, span) {
  const date = new Date(at * 1000);
  const day = { month: "short", day: "numeric" };
  const time = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (span < 1200) time.second = "2-digit"; // Else neighbours would show the same minute.
  if (span > 3 * 86400) return date.toLocaleDateString([], day);
  return span > 43200
    ? `${date.toLocaleDateString([], day)} ${date.toLocaleTimeString([], time)}`
    : date.toLocaleTimeString([], time);
}

function isSame(one, other) {
  const names = Object.keys(one);
  return names.length === Object.keys(other).length && names.every((name) => one[name] === other[name]);
}

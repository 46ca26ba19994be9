// Who did what, when and why: newest first, a page at a time.

import { badge, empty, h, show, table, versionName } from "./elements.js";
import { fullTime, clock } from "./format.js";

const LIMIT = 50;
const KINDS = {
  promoted: ["good", "✓"],
  admitted: ["good", "✓"],
  released: ["good", "✓"],
  rolled_back: ["bad", "↩"],
  reverted: ["bad", "↩"],
  quarantined: ["bad", "✕"],
  dropped: ["bad", "✕"],
  drifted: ["bad", "!"],
  paused: ["warn", "❙❙"],
  started: ["info", "▸"],
  stepped: ["info", "▸"],
  resumed: ["info", "▸"],
};

/** The pages of the history; the first is what the overview has. */
export class History {
  #place;
  #desk;
  #pages = []; // Older pages that were gone to: what is asked for with `before`.
  #older = null; // The events of the page that is shown; null: the newest.
  #problem = "";

  constructor(place, desk) {
    this.#place = place;
    this.#desk = desk;
  }

  update(overview) {
    this.#show(overview.events);
  }

  #show(newest) {
    const events = this.#older ?? newest;
    show(this.#place, [events, this.#pages.length, this.#problem], () => [
      events.length
        ? table(
            this.#pages.length ? `Page ${this.#pages.length + 1}` : "The newest",
            ["When", "Who", "What", "About", "Change", "Why"],
            events.map(row),
          )
        : empty("Nothing has happened yet."),
      this.#problem ? h("p", { class: "problem", role: "alert" }, this.#problem) : null,
      h(
        "div",
        { class: "pages" },
        this.#pages.length
          ? h(
              "button",
              { type: "button", "data-key": "newer", onclick: () => this.#go(this.#pages.slice(0, -1)) },
              "Newer",
            )
          : null,
        events.length === LIMIT && events.at(-1).number > 1
          ? h(
              "button",
              { type: "button", "data-key": "older", onclick: () => this.#go([...this.#pages, events.at(-1).number]) },
              "Older",
            )
          : null,
      ),
    ]);
  }

  async #go(pages) {
    this.#problem = "";
    try {
      this.#older = pages.length ? await this.#desk.api.get(`history?limit=${LIMIT}&before=${pages.at(-1)}`) : null;
      this.#pages = pages;
    } catch (error) {
      this.#problem = error.message;
    }
    if (this.#desk.overview) this.#show(this.#desk.overview.events);
  }
}

function row(event) {
  const [kind, sign] = KINDS[event.kind] ?? ["plain", ""];
  const change = event.before && event.after ? `${event.before} → ${event.after}` : event.after || event.before;
  return {
    "data-number": event.number,
    cells: [
      h("time", { title: fullTime(event.at) }, clock(event.at)),
      h("span", { class: "who" }, event.actor),
      badge(kind, event.kind.replaceAll("_", " "), sign),
      [
        event.rollout ? h("span", { class: "id" }, event.rollout, " ") : null,
        event.version ? versionName(event.version) : null,
      ],
      h("span", { class: "note" }, change),
      h("span", { class: "reason" }, event.reason),
    ],
  };
}

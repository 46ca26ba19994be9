// What each version did: requests, errors, latency; and how fast, from one look to the next.

import { badge, empty, show, table, versionName } from "./elements.js";
import { count, number, percent } from "./format.js";

const MAX_LOOKS = 40;
const SHORTEST_SECONDS = 2;
const MANY = 0.01; // Of requests that failed.
const name = (arm) => `${arm.rollout}/${arm.version}/${arm.arm}`;
const requestsOf = (arm) => arm.num_answered + arm.num_failed + arm.num_refused;

/** Requests in a second, from counts at the last looks: a bounded series. */
export class Rates {
  #looks = [];
  #overview = null;

  take(overview) {
    const counts = new Map(overview.arms.map((arm) => [name(arm), requestsOf(arm)]));
    this.#looks.push({ at: overview.at, counts });
    if (this.#looks.length > MAX_LOOKS) this.#looks.shift();
    this.#overview = overview;
  }

  /** Of one arm; null while that cannot be said. */
  of(arm) {
    const last = this.#looks.at(-1);
    const first = this.#looks.find((look) => look.counts.has(name(arm)));
    if (!first || last.at - first.at < SHORTEST_SECONDS) return null;
    const grown = last.counts.get(name(arm)) - first.counts.get(name(arm));
    return grown < 0 ? null : grown / (last.at - first.at); // It falls when a replica that counted goes.
  }

  /** Of all users' requests together. */
  total() {
    const arms = (this.#overview?.arms ?? []).filter(isUsers);
    const rates = arms.map((arm) => this.of(arm));
    const requests = arms.reduce((sum, arm) => sum + requestsOf(arm), 0);
    const failed = arms.reduce((sum, arm) => sum + arm.num_failed, 0);
    const stable = arms.find((arm) => arm.arm === "stable" && arm.version === this.#overview.stable);
    return {
      perSecond: rates.every((rate) => rate === null)
        ? null
        : rounded(rates.reduce((sum, rate) => sum + (rate ?? 0), 0)),
      failedShare: requests ? failed / requests : null,
      p99: stable?.latency_p99 ?? null,
    };
  }
}

/** Whether an arm counts users' requests, each once: stable's stand under the rollouts a second time. */
function isUsers(arm) {
  return arm.arm === "candidate" || (arm.arm === "stable" && arm.rollout === "");
}

function rounded(value) {
  return Number(value.toPrecision(3));
}

/** Shows a line for each version and role. */
export function showNumbers(place, overview, rates) {
  const arms = overview.arms.filter((arm) => isUsers(arm) || arm.arm === "shadow");
  const lines = arms
    .map((arm) => ({ arm, rate: rates.of(arm) }))
    .sort((a, b) => b.arm.version.localeCompare(a.arm.version));
  show(
    place,
    lines.map(({ arm, rate }) => ({ ...arm, rate: rate === null ? null : rounded(rate) })),
    (all) =>
      all.length
        ? table(
            "All that was counted, also on replicas that ended in the last 7 days",
            ["Version", "Role", "Requests", "Rate", "Failed", "Degraded", "p50 / p99"],
            all.map(row),
          )
        : empty("No request has been answered yet."),
  );
}

function row(arm) {
  const requests = requestsOf(arm);
  const failed = requests ? arm.num_failed / requests : null;
  return {
    cells: [
      versionName(arm.version),
      arm.rollout ? `${arm.arm}, ${arm.rollout}` : arm.arm,
      count(requests),
      arm.rate === null ? "–" : `${number(arm.rate)} /s`,
      failed >= MANY ? badge("bad", `${percent(failed)} (${count(arm.num_failed)})`, "!") : percent(failed),
      percent(arm.num_answered ? arm.num_degraded / arm.num_answered : null),
      `${milliseconds(arm.latency_p50)} / ${milliseconds(arm.latency_p99)} ms`,
    ],
  };
}

function milliseconds(seconds) {
  return seconds === null ? "–" : number(seconds * 1000);
}

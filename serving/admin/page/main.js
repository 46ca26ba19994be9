// Signs in, polls the overview, and has each part of the page show its share of it.

import { Api, Problem, Unreachable } from "./api.js";
import { connectConfirmation, ask } from "./confirmation.js";
import { badge, h, show } from "./elements.js";
import { clock, duration, now, setClock, tick } from "./format.js";
import { History } from "./history.js";
import { Rates, showNumbers } from "./numbers.js";
import { showFreshness, showReplicas, showTiers } from "./replicas.js";
import { showRollouts } from "./rollouts.js";
import { connectStarting, openStarting } from "./starting.js";
import { showSummary } from "./summary.js";
import { Traffic } from "./traffic.js";
import { showVersions } from "./versions.js";

const KEY = "rankhouse.key";
const POLL_SECONDS = 1.5;
const HIDDEN_SECONDS = 20;
const LONGEST_SECONDS = 30;
const STALE_SECONDS = 6;

const place = (id) => document.getElementById(id);

const desk = {
  api: null,
  caller: null,
  overview: null,
  get canOperate() {
    return this.caller !== null && this.caller.role !== "viewer";
  },
  ask: (action) => ask(desk, action),
  start: (yaml) => openStarting(desk, yaml),
  lookNow: () => poll(),
};
const rates = new Rates();
const traffic = new Traffic(place("traffic-range"), place("traffic"));
const history = new History(place("history"), desk);

let timer,
  tried,
  seenAt,
  failure,
  numFailures = 0,
  session = 0;

// --- the key

function storedKey() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null; // The browser keeps nothing for this page; the key lives as long as the page then.
  }
}

function keepKey(key) {
  try {
    if (key === null) sessionStorage.removeItem(KEY);
    else sessionStorage.setItem(KEY, key);
  } catch {
    // As above.
  }
}

function begin(key) {
  session += 1;
  desk.api = new Api(key);
  desk.caller = desk.overview = null;
  numFailures = 0;
  seenAt = failure = undefined;
  place("sign-in").hidden = true;
  place("liveness").replaceChildren("Connecting …");
  poll();
}

function signOut(problem = "") {
  session += 1;
  clearTimeout(timer);
  keepKey(null);
  desk.api = desk.caller = desk.overview = null;
  failure = undefined;
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  place("operations").hidden = place("account").hidden = true;
  place("sign-in").hidden = false;
  place("sign-in-problem").hidden = !problem;
  place("sign-in-problem").textContent = problem;
  place("model").textContent = "Operations";
  place("liveness").replaceChildren();
  showTrouble();
  place("key").focus();
}

place("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = place("key").value.trim();
  place("key").value = "";
  if (!/^[\x21-\x7e]+$/.test(key)) {
    signOut("A key is one word of letters, digits and signs; this is none.");
    return;
  }
  keepKey(key);
  begin(key);
});
place("sign-out").addEventListener("click", () => signOut());

// --- polling

async function poll() {
  clearTimeout(timer);
  const mine = session;
  tried = undefined;
  try {
    const { api } = desk;
    if (desk.caller === null) {
      const caller = await api.get("whoami");
      if (mine !== session) return;
      desk.caller = caller;
    }
    const overview = await api.get("overview");
    if (mine !== session) return;
    numFailures = 0;
    failure = undefined;
    seenAt = performance.now();
    render(overview);
  } catch (error) {
    if (mine !== session) return;
    if (!(error instanceof Problem || error instanceof Unreachable)) throw error;
    if (error.status === 401) {
      const [what] = error.message.split(";"); // What follows is for programs: the header to send.
      signOut(`The gateway does not take the key: ${what}. Paste the key itself, not the name of its file.`);
      return;
    }
    if (error.status === 403) desk.caller = null; // Its role has changed.
    numFailures += 1;
    failure = { error, at: failure?.at ?? Date.now() };
  } finally {
    if (mine === session && desk.api !== null) schedule();
  }
  showTrouble();
}

function schedule() {
  const wait = numFailures ? Math.min(POLL_SECONDS * 2 ** numFailures, LONGEST_SECONDS) : POLL_SECONDS;
  const seconds = document.hidden ? Math.max(wait, HIDDEN_SECONDS) : wait;
  tried = Date.now() + seconds * 1000;
  clearTimeout(timer);
  timer = setTimeout(poll, seconds * 1000);
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && desk.api !== null) poll();
});

// --- what is shown

function render(overview) {
  desk.overview = overview;
  setClock(overview.at);
  rates.take(overview);
  place("operations").hidden = place("account").hidden = false;
  place("model").textContent = overview.model;
  document.title = `${overview.model} · Rankhouse operations`;
  show(place("caller"), desk.caller, ({ name, role }) => [h("span", { class: "who" }, name), badge("plain", role)]);
  place("start").hidden = !desk.canOperate;
  show(place("warnings"), overview.warnings, (warnings) =>
    warnings.length
      ? h(
          "ul",
          { class: "warnings" },
          warnings.map((text) => h("li", {}, text)),
        )
      : null,
  );
  showSummary(place("summary"), desk, rates);
  showRollouts(place("rollouts"), desk);
  traffic.update(overview);
  showNumbers(place("numbers"), overview, rates);
  showReplicas(place("replicas"), overview);
  showVersions(place("versions"), desk);
  showTiers(place("tiers"), overview);
  showFreshness(place("freshness"), overview);
  history.update(overview);
}

function isStale() {
  return seenAt === undefined || failure !== undefined || performance.now() - seenAt > STALE_SECONDS * 1000;
}

/** Says how old all this is, and what is in the way of something newer. */
function showTrouble() {
  const stale = isStale();
  document.body.classList.toggle("stale", stale && desk.overview !== null);
  for (const button of document.querySelectorAll("button[data-command], #start")) button.disabled = stale;
  if (desk.overview !== null) {
    const old = (performance.now() - seenAt) / 1000;
    const text = stale ? `Stale: as of ${duration(Math.max(old, 1))} ago` : "Live";
    show(place("liveness"), [stale, text], () => badge(stale ? "bad" : "good", text, stale ? "!" : "●"));
  }
  place("trouble").hidden = failure === undefined;
  if (failure === undefined) return;
  const { error, at } = failure;
  const what = error instanceof Unreachable ? "The gateway cannot be reached" : "The gateway cannot say how things are";
  show(place("trouble"), [what, error.message, at, desk.overview?.at], () => [
    h(
      "p",
      {},
      h("strong", {}, `${what} since ${clock(now() - (Date.now() - at) / 1000)}: `),
      error.message,
      desk.overview === null ? "" : `. What you see is of ${clock(desk.overview.at)}; commands wait until it answers.`,
    ),
    h(
      "p",
      {},
      h("span", { id: "next-try" }),
      " ",
      h("button", { type: "button", "data-key": "try-now", onclick: () => poll() }, "Try now"),
    ),
  ]);
  const wait = tried === undefined ? 0 : Math.ceil((tried - Date.now()) / 1000);
  place("next-try").textContent = wait > 0 ? `Next try in ${wait} s.` : "Trying …";
}

connectConfirmation();
connectStarting();
place("start").addEventListener("click", () => desk.start());
setInterval(() => {
  if (desk.api === null) return;
  tick();
  showTrouble();
}, 500);

const known = storedKey();
if (known === null) signOut();
else begin(known);

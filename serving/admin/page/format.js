// Numbers, times and sizes as people read them.

import { h } from "./elements.js";

let offset = 0; // From this machine's clock to the gateway's, in seconds.

/** Takes note of the gateway's clock. */
export function setClock(at) {
  offset = at - Date.now() / 1000;
}

/** The gateway's time, in unix seconds. */
export function now() {
  return Date.now() / 1000 + offset;
}

/** How long ago something was, in an element that keeps itself true. */
export function ago(at) {
  const element = h("time", { datetime: new Date(at * 1000).toISOString(), title: fullTime(at), "data-since": at });
  element.textContent = agoText(at);
  return element;
}

/** Makes all of `ago` true again. */
export function tick() {
  for (const element of document.querySelectorAll("[data-since]")) {
    const text = agoText(Number(element.dataset.since));
    if (element.textContent !== text) element.textContent = text;
  }
}

function agoText(at) {
  const seconds = Math.max(now() - at, 0);
  return seconds < 5 ? "just now" : `${duration(seconds < 60 ? Math.floor(seconds) : seconds)} ago`;
}

/** A time span in one or two units. */
export function duration(seconds) {
  if (seconds < 1) return `${number(seconds * 1000)} ms`;
  if (seconds < 10) return `${number(seconds)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return two(seconds, 60, "min", 1, "s", 600);
  if (seconds < 86400) return two(seconds, 3600, "h", 60, "min", 36000);
  return two(seconds, 86400, "d", 3600, "h", 864000);
}

function two(seconds, unit, name, part, partName, from) {
  const whole = Math.floor(seconds / unit);
  const rest = Math.floor((seconds - whole * unit) / part);
  return rest && seconds < from ? `${whole} ${name} ${rest} ${partName}` : `${whole} ${name}`;
}

/** The time of day, with the date where that is another day. */
export function clock(at) {
  const date = new Date(at * 1000);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  if (date.toDateString() === new Date(now() * 1000).toDateString()) return time;
  return `${date.toLocaleDateString([], { month: "short", day: "numeric" })} ${time}`;
}

/** Date and time. */
export function fullTime(at) {
  return new Date(at * 1000).toLocaleString([], { hour12: false, timeZoneName: "short" });
}

/** A number in three digits. */
export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 1000) return Math.round(value).toLocaleString("en");
  if (size !== 0 && size < 0.0001) return value.toExponential(1);
  return String(Number(value.toPrecision(3)));
}

/** A whole number. */
export function count(value) {
  return Math.round(value).toLocaleString("en");
}

/** A share of 1 as a percentage. */
export function percent(share) {
  return share === null || share === undefined ? "–" : `${number(share * 100)} %`;
}

/** Bytes in a unit that fits. */
export function bytes(value) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return `${number(value)} ${unit}`;
    value /= 1024;
  }
  return `${number(value)} TiB`;
}

/** "1 replica", "2 replicas". */
export function plural(quantity, noun) {
  return `${count(quantity)} ${noun}${quantity === 1 ? "" : "s"}`;
}

// The page is asked for again every second, and what differs is changed in place: nothing else moves.
"use strict";

const EVERY_MS = 1000;
const LIMIT_MS = 8000;
const AWAY_MS = 5000;

// What the user has changed stays as it is: typed text, opened details, where the focus and the scroll bars are.
const KEPT = new Set(["open", "value", "checked", "selected"]);

function key(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.id || node.getAttribute("name") || "" : "";
}

function alike(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && key(one) === key(other);
}

function morphAttributes(into, from) {
  for (const { name } of [...into.attributes]) {
    if (!from.hasAttribute(name) && !KEPT.has(name)) into.removeAttribute(name);
  }
  for (const { name, value } of from.attributes) {
    if (into.getAttribute(name) !== value && !(KEPT.has(name) && into.tagName !== "INPUT")) {
      if (name === "value" && (into === document.activeElement || into.value !== into.defaultValue)) continue;
      into.setAttribute(name, value);
    }
  }
}

function morph(into, from) {
  if (into.nodeType !== Node.ELEMENT_NODE) {
    if (into.nodeValue !== from.nodeValue) into.nodeValue = from.nodeValue;
    return;
  }
  if (into.isEqualNode(from)) return;
  morphAttributes(into, from);
  if (into.tagName === "SELECT") return;
  const named = new Map();
  for (const child of into.children) if (child.id) named.set(child.id, child);
  let at = into.firstChild;
  for (const wanted of [...from.childNodes]) {
    const known = wanted.id ? named.get(wanted.id) : undefined;
    if (known && known !== at) into.insertBefore(known, at);
    else if (at === null || !alike(at, wanted)) {
      into.insertBefore(document.importNode(wanted, true), at);
      continue;
    }
    const current = known && known !== at ? known : at;
    morph(current, wanted);
    at = current.nextSibling;
  }
  while (at !== null) {
    const gone = at;
    at = at.nextSibling;
    if (!(gone.nodeType === Node.ELEMENT_NODE && gone.hasAttribute("data-keep"))) gone.remove();
  }
}

function say(text) {
  const age = document.getElementById("age");
  if (!age) return;
  age.textContent = text;
  age.classList.add("bad");
}

async function look() {
  let wait = EVERY_MS;
  if (!document.hidden && document.body.hasAttribute("data-live")) {
    const began = performance.now();
    try {
      const answer = await fetch(location.href, { signal: AbortSignal.timeout(LIMIT_MS), redirect: "manual" });
      if (answer.type === "opaqueredirect") return location.reload();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!page.getElementById("main")) throw new Error("no page");
      morph(document.querySelector("header"), page.querySelector("header"));
      morph(document.getElementById("main"), page.getElementById("main"));
      wait = Math.max(0, EVERY_MS - (performance.now() - began));
    } catch {
      say("the console does not answer");
      wait = AWAY_MS;
    }
  }
  setTimeout(look, wait);
}

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const find = document.querySelector(".filter input:not([type=hidden])");
    if (find) { find.focus(); find.select(); event.preventDefault(); }
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) look.now?.(); });

setTimeout(look, EVERY_MS);

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
  const named = new Map(), staying = new Set();
  for (const child of from.children) if (child.id) staying.add(child.id);
  for (const child of [...into.children]) {
    if (child.id && !staying.has(child.id) && !kept(child)) child.remove();
    else if (child.id) named.set(child.id, child);
  }
  const all = [...from.childNodes];
  let at = into.firstChild;
  all.forEach((wanted, number) => {
    const known = wanted.id ? named.get(wanted.id) : undefined;
    const rest = all.slice(number + 1, number + 20);
    // What stays is not moved because of what goes, so that it keeps its focus.
    while (at !== null && at !== known && (kept(at) || (!alike(at, wanted) && !needed(at, wanted, rest)))) {
      const past = at;
      at = at.nextSibling;
      if (!kept(past)) past.remove();
    }
    if (known === undefined && (at === null || !alike(at, wanted))) {
      into.insertBefore(document.importNode(wanted, true), at);
      return;
    }
    const current = known ?? at;
    if (current !== at) into.insertBefore(current, at);
    morph(current, wanted);
    at = current.nextSibling;
  });
  while (at !== null) {
    const gone = at;
    at = at.nextSibling;
    if (!kept(gone)) gone.remove();
  }
}

// Whether a node has its place among those that are still to come.
function needed(node, wanted, rest) {
  if (node.nodeType === Node.TEXT_NODE) return wanted.nodeType === Node.TEXT_NODE || node.nodeValue.trim() !== "";
  return Boolean(node.id) || rest.some((one) => alike(node, one));
}

function kept(node) {
  return node.nodeType === Node.ELEMENT_NODE && node.hasAttribute("data-keep");
}

// What is wrong, above what was seen last. It is told once, however often it is asked again.
function warn(text) {
  const main = document.getElementById("main");
  let notice = document.getElementById("trouble");
  if (!notice) {
    notice = Object.assign(document.createElement("p"), { id: "trouble", className: "notice bad" });
    notice.setAttribute("role", "alert");
    main.prepend(notice);
  }
  if (notice.textContent !== text) notice.textContent = text;
}

// A row that moved among others takes the focus along.
function show(page) {
  const focus = document.activeElement;
  morph(document.querySelector("header"), page.querySelector("header"));
  const problem = page.getElementById("problem");
  if (problem && document.body.hasAttribute("data-shown")) {
    warn(`${problem.textContent}. What is shown here is what was seen last.`);
  } else {
    morph(document.getElementById("main"), page.getElementById("main"));
    if (!problem) document.body.setAttribute("data-shown", "");
  }
  if (focus !== document.activeElement && focus.isConnected) focus.focus({ preventScroll: true });
}

let timer = 0;
let asking = false;

async function look() {
  if (asking) return;
  clearTimeout(timer);
  let wait = EVERY_MS;
  if (!document.hidden && document.body.hasAttribute("data-live")) {
    const began = performance.now();
    asking = true;
    try {
      const answer = await fetch(location.href, { signal: AbortSignal.timeout(LIMIT_MS), redirect: "manual" });
      if (answer.type === "opaqueredirect") return location.reload();
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (!page.getElementById("main")) throw new Error("no page");
      show(page);
      wait = Math.max(0, EVERY_MS - (performance.now() - began));
    } catch {
      const age = document.getElementById("age");
      if (age) { age.textContent = "no answer"; age.classList.add("bad"); }
      warn("The console does not answer. What is shown here is what was seen last; it goes on by itself.");
      wait = AWAY_MS;
    } finally {
      asking = false;
    }
  }
  timer = setTimeout(look, wait);
}

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") {
    const find = document.querySelector(".filter input:not([type=hidden])");
    if (find) { find.focus(); find.select(); event.preventDefault(); }
  }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });

if (!document.getElementById("problem")) document.body.setAttribute("data-shown", "");
timer = setTimeout(look, EVERY_MS);

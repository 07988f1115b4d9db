"use strict";

// Three comforts, none of them needed to read the page: keys between turns, a filter for the list, and following what still runs.

const cards = () => [...document.querySelectorAll("article.card[id]")];

function step(direction) {
  const places = cards();
  const line = 80;
  const at = places.findIndex((card) => card.getBoundingClientRect().bottom > line);
  const target = places[Math.min(Math.max((at < 0 ? places.length : at) + direction, 0), places.length - 1)];
  if (target) location.replace(`#${target.id}`); // scrolls there, and the address can be shared
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target instanceof HTMLInputElement) return;
  if (event.key === "j") step(1);
  if (event.key === "k") step(-1);
});

const filter = document.getElementById("filter");
if (filter) {
  const apply = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of document.querySelectorAll("#rollouts tbody tr")) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
    }
  };
  filter.addEventListener("input", apply);
  apply();
}

const nav = document.querySelector("nav.turns");
if (nav && "IntersectionObserver" in window) {
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const link = nav.querySelector(`a[href="#${CSS.escape(entry.target.id)}"]`);
      if (link) link.classList.toggle("here", entry.isIntersecting);
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  const watch = () => cards().forEach((card) => seen.observe(card));
  watch();
  document.addEventListener("parts-changed", watch);
}

// A live page is fetched again every few seconds. Parts that changed are replaced, new ones appended; what the reader opened stays open.
async function refresh() {
  const answer = await fetch(location.href, { cache: "no-store" });
  if (!answer.ok) return true;
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (fresh.body.dataset.page !== document.body.dataset.page) {
    location.reload(); // evidence has come, or the last page of a rollout that had none
    return false;
  }
  const known = new Map([...document.querySelectorAll("[data-part]")].map((part) => [part.dataset.part, part]));
  let changed = false;
  let before = null; // the part that stands before the next one, so that a new part goes where the fresh page has it
  for (const part of fresh.querySelectorAll("[data-part]")) {
    const old = known.get(part.dataset.part);
    known.delete(part.dataset.part);
    if (old && (old.outerHTML === part.outerHTML || old.querySelector("details[open]"))) {
      before = old;
      continue;
    }
    changed = true;
    const inCards = part.parentElement.id === "cards";
    const node = document.adoptNode(part);
    if (old) old.replaceWith(node);
    else if (before && (!inCards || before.parentElement.id === "cards")) before.after(node);
    else (document.getElementById("cards") || document.querySelector("main")).prepend(node);
    before = node;
  }
  for (const gone of known.values()) gone.remove();
  if (changed) document.dispatchEvent(new Event("parts-changed"));
  return fresh.body.dataset.live !== undefined;
}

const period = Number(document.body.dataset.live);
if (period > 0) {
  const tick = async () => {
    let again = true;
    try {
      if (!document.hidden) again = await refresh();
    } catch {
      again = true; // the server is away for a moment
    }
    if (again) setTimeout(tick, period * 1000);
  };
  setTimeout(tick, period * 1000);
}

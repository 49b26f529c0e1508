// Comforts only: every page works without it. "/" focuses the search, what is live is fetched again, commands are copied.
"use strict";

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key !== "/" || typing || event.ctrlKey || event.metaKey || event.altKey) return;
  const search = document.querySelector("input[type=search]");
  if (search) { event.preventDefault(); search.focus(); search.select(); }
});

for (const box of document.querySelectorAll(".command")) {
  if (!navigator.clipboard) break;
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(box.querySelector("code").textContent);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
  box.append(button);
}

// The part of the page that changes is drawn by the server, which escapes what documents say. What differs replaces what was
// there, but not while a reader is inside it with the keyboard or has selected some of its text. Answers that have come since
// are marked; screen readers say how far it is twice a minute, and at its end.
const SLOWEST_MS = 60000;
const SPOKEN_MS = 30000;
const live = document.querySelector("[data-live]");
if (live) {
  const every = Number(live.dataset.every) * 1000;
  const spoken = document.getElementById("spoken");
  let wait = every, spokenAt = Date.now();
  const busy = () => {
    const selected = document.getSelection();
    return live.querySelector(":focus-visible") || (selected && !selected.isCollapsed && live.contains(selected.anchorNode));
  };
  const note = (text) => {
    const said = live.querySelector("[data-age]");
    if (said) said.textContent = text;
  };
  const draw = (drawn) => {
    const open = [...live.querySelectorAll("details[open][id]")].map((one) => one.id);
    const known = new Set([...live.querySelectorAll("[data-doc]")].map((one) => one.dataset.doc));
    [...drawn].forEach((one, place) => {
      const was = live.children[place];
      if (!was) live.append(one);
      else if (!was.isEqualNode(one)) was.replaceWith(one);
    });
    while (live.children.length > drawn.length) live.lastElementChild.remove();
    for (const id of open) { const one = document.getElementById(id); if (one) one.open = true; }
    for (const one of live.querySelectorAll("[data-doc]")) one.classList.toggle("came", !known.has(one.dataset.doc));
  };
  const say = (hasEnded) => {
    const said = live.querySelector("[data-spoken]");
    if (!spoken || !said || (!hasEnded && Date.now() - spokenAt < SPOKEN_MS)) return;
    spoken.textContent = said.dataset.spoken;
    spokenAt = Date.now();
  };
  const again = async () => {
    if (!document.hidden && busy()) note("Held while you read it.");
    else if (!document.hidden) {
      try {
        const answer = await fetch(live.dataset.live, { headers: { accept: "text/html" }, redirect: "error" });
        if (answer.status === 404 || answer.status === 401) { location.reload(); return; }
        if (!answer.ok) throw new Error(String(answer.status));
        const drawn = new DOMParser().parseFromString(await answer.text(), "text/html").body.children;
        if (!busy()) {
          draw([...drawn]);
          const hasEnded = live.querySelector("[data-ended]");
          say(hasEnded);
          if (hasEnded) return;
        }
        wait = every;
      } catch {
        wait = Math.min(wait * 2, SLOWEST_MS);
        note(`no answer from the server; asked again in ${Math.round(wait / 1000)} s`);
      }
    }
    setTimeout(again, wait);
  };
  setTimeout(again, wait);
}

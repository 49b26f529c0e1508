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

// The part of the page that changes is drawn by the server, which escapes what documents say; it replaces the old one whole,
// but not while a reader is inside it with the keyboard or has selected some of its text.
const SLOWEST_MS = 60000;
const live = document.querySelector("[data-live]");
if (live) {
  const every = Number(live.dataset.every) * 1000;
  let wait = every;
  const busy = () => {
    const selected = document.getSelection();
    return live.contains(document.activeElement) || (selected && !selected.isCollapsed && live.contains(selected.anchorNode));
  };
  const again = async () => {
    if (!document.hidden && !busy()) {
      try {
        const answer = await fetch(live.dataset.live, { headers: { accept: "text/html" }, redirect: "error" });
        if (answer.status === 404 || answer.status === 401) { location.reload(); return; }
        if (!answer.ok) throw new Error(String(answer.status));
        const text = await answer.text();
        if (!busy()) {
          const open = [...live.querySelectorAll("details[open][id]")].map((one) => one.id);
          live.replaceChildren(...new DOMParser().parseFromString(text, "text/html").body.childNodes);
          for (const id of open) { const one = document.getElementById(id); if (one) one.open = true; }
        }
        wait = every;
        if (live.querySelector("[data-ended]")) return;
      } catch {
        wait = Math.min(wait * 2, SLOWEST_MS);
        const said = live.querySelector("[data-age]");
        if (said) said.textContent = `no answer from the server; asked again in ${Math.round(wait / 1000)} s`;
      }
    }
    setTimeout(again, wait);
  };
  setTimeout(again, wait);
}

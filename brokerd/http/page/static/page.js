// What the page can do beyond its HTML: it keeps itself up to date, copies commands, and knows the
// key "/". Everything works without it, by links and forms.

const main = document.getElementById("main");
const pause = document.getElementById("pause");
const search = document.getElementById("search");
const isLive = main?.dataset.live !== undefined;

const SHORTEST = 5000; // ms between two looks; more if the daemon takes long to answer
const LONGEST = 60000;

let timer = 0;
let isPaused = false;

function offerCopies(root) {
  if (!navigator.clipboard) {
    return;
  }
  for (const button of root.querySelectorAll("button[data-copy]")) {
    button.hidden = false;
  }
}

async function copy(button) {
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "copied";
  } catch {
    button.textContent = "select it by hand";
  }
}

// A part that somebody reads or types in is not replaced.
function isInUse() {
  const selection = document.getSelection();
  const selects = selection && !selection.isCollapsed && main.contains(selection.anchorNode);
  const at = document.activeElement;
  const types = at && main.contains(at) && at.matches("input, select, textarea, summary");
  return Boolean(selects || types);
}

function keepOpen(fresh) {
  const open = [...main.querySelectorAll("details")].map((one) => one.open);
  fresh.querySelectorAll("details").forEach((one, at) => {
    one.open = Boolean(open[at]);
  });
}

// Focus goes back to the same link, or to what is in its place now.
function rememberFocus() {
  const at = document.activeElement;
  if (!at || at === main || !main.contains(at)) {
    return () => {};
  }
  const href = at.getAttribute("href");
  const place = [...main.querySelectorAll("a, button")].indexOf(at);
  return () => {
    const all = [...main.querySelectorAll("a, button")];
    const same = all.find((one) => href && one.getAttribute("href") === href) || all[place];
    same?.focus({ preventScroll: true });
  };
}

async function refresh() {
  const began = performance.now();
  const address = new URL(location.href);
  address.searchParams.delete("done");
  try {
    const answer = await fetch(address, { headers: { Accept: "text/html" } });
    document.body.classList.toggle("stale", !answer.ok);
    const text = await answer.text();
    if (answer.ok && !isInUse() && !isPaused) {
      show(new DOMParser().parseFromString(text, "text/html"));
    }
  } catch {
    document.body.classList.add("stale");
  }
  schedule(Math.min(LONGEST, Math.max(SHORTEST, (performance.now() - began) * 20)));
}

function show(fresh) {
  const content = fresh.getElementById("main");
  if (!content) {
    return;
  }
  keepOpen(content);
  const restoreFocus = rememberFocus();
  main.replaceChildren(...content.childNodes);
  offerCopies(main);
  restoreFocus();
  document.getElementById("as-of")?.replaceWith(fresh.getElementById("as-of"));
}

function schedule(wait) {
  clearTimeout(timer);
  if (isLive && !isPaused && !document.hidden) {
    timer = setTimeout(refresh, wait);
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button[data-copy]");
  if (button) {
    copy(button);
  }
});

document.addEventListener("keydown", (event) => {
  const types = event.target.closest("input, select, textarea");
  if (event.key === "/" && !types && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    search.focus();
    search.select();
  }
});

document.addEventListener("visibilitychange", () => schedule(0));

if (isLive) {
  pause.hidden = false;
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    pause.setAttribute("aria-pressed", String(isPaused));
    pause.textContent = isPaused ? "go on" : "pause";
    schedule(0);
  });
}

offerCopies(document);
schedule(SHORTEST);

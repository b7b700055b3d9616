// Makes the pages a little quicker. Everything works without it. It must never build markup from text.
"use strict";
(() => {
  const POLL_MS = 3000; // between two looks for new mail
  const PAUSE_FACTOR = 20; // pause at least so many times as long as the last look took
  const MAX_POLL_MS = 60000; // even if a look waited for the network, or for a laptop to wake up
  const MAX_ROWS = 500; // of a growing list
  const DOUBLE_CLICK_MS = 1000; // in which a second submit is ignored
  const $ = (id, root = document) => root.getElementById(id);

  // ---- times in the reader's time zone

  const same = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit" });
  const other = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
  const older = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const days = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

  function local(root) {
    const now = new Date();
    const shape = (when) => (when.toDateString() === now.toDateString() ? same : when.getFullYear() === now.getFullYear() ? other : older);
    for (const time of root.querySelectorAll("time[datetime]:not([title])")) {
      const when = new Date(time.dateTime);
      time.title = time.textContent;
      time.textContent = (/:\d\d:/.test(time.title) ? exact : shape(when)).format(when);
    }
    for (const text of root.querySelectorAll("svg text[data-time]")) {
      text.textContent = (Number(text.dataset.span) >= 172800 ? days : same).format(new Date(1000 * Number(text.dataset.time)));
    }
  }

  // ---- a form's change appears in the page without loading it again

  const read = (text) => new DOMParser().parseFromString(text, "text/html");

  async function send(form, button) {
    const data = new FormData(form, button);
    const body = form.enctype === "multipart/form-data" ? data : new URLSearchParams(data);
    const answer = await fetch(form.action, { method: "POST", body }).catch(() => null);
    if (!answer) { showNoAnswer(form); button?.removeAttribute("aria-busy"); return; } // a plain submit would show the browser's error page
    if (answer.redirected && !answer.ok) { location.assign(answer.url); return; } // it is done; only the next page failed
    if (!answer.ok) throw new Error(String(answer.status));
    const page = read(await answer.text());
    local(page);
    const row = form.closest("[id^='m-']") || $(`m-${new URL(form.action).pathname.split("/").at(-2)}`); // the second: of "Undo" in a notice
    const next = row && $(row.id, page);
    const notice = $("notice", page);
    if (!notice || (row && !next) || row?.closest(".verdicts")) { location.assign(answer.url); return; }
    $("notice").replaceChildren(...notice.childNodes);
    if (row) { row.replaceWith(next); (next.querySelector("button") || next.querySelector("a")).focus(); }
  }

  function showNoAnswer(form) {
    const alert = form.querySelector("[role=alert]") || form.appendChild(document.createElement("p"));
    alert.setAttribute("role", "alert");
    alert.textContent = "No answer. The filter may be restarting: try again in a moment.";
  }

  const sent = new WeakMap(); // forms, and when they were submitted
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.hasAttribute("data-here") || form.dataset.plain) {
      if (event.timeStamp - (sent.get(form) ?? -DOUBLE_CLICK_MS) < DOUBLE_CLICK_MS) event.preventDefault();
      else sent.set(form, event.timeStamp);
      return;
    }
    event.preventDefault();
    const button = event.submitter;
    if (button?.hasAttribute("aria-busy")) return;
    button?.setAttribute("aria-busy", "true");
    send(form, button).catch(() => { // a plain submit shows what is wrong
      form.dataset.plain = "1";
      button?.removeAttribute("aria-busy");
      form.requestSubmit(button);
    });
  });

  // ---- new mail appears by itself, but nothing moves under a pointer

  function watch(list) {
    let waiting = 0;
    const fresh = $("fresh");
    let over = false; // whether a mouse is over the list: the button it is about to click must not move
    list.addEventListener("pointerenter", (event) => { over = event.pointerType === "mouse"; });
    list.addEventListener("pointerleave", () => { over = false; if (waiting) again(0); });

    function take(page) {
      const before = new Set([...list.children].map((row) => row.id));
      const rows = [...page.children];
      const added = rows.filter((row) => !before.has(row.id));
      const gap = before.size > 0 && added.length > 0 && (added.length === rows.length || before.size + added.length > MAX_ROWS);
      if (added.length && (over || (gap && document.activeElement?.closest("#mail, form")))) { waiting = added.length; return false; }
      if (gap) { location.reload(); return true; } // there may be more new mail than one look brings, and "Older" would skip it
      for (const row of rows) {
        const old = $(row.id);
        if (!old) {
          row.classList.add("fresh");
          list.insertBefore(row, [...list.children].find((other) => other.id < row.id) || null);
        } else if (old.innerHTML !== row.innerHTML && !old.contains(document.activeElement)) old.replaceWith(row);
      }
      if (added.length) $("empty")?.remove();
      waiting = 0;
      return true;
    }

    async function look() {
      if (document.hidden) return true;
      const address = new URL(list.dataset.live, location.href);
      address.searchParams.set("seen", list.dataset.seen);
      const answer = await fetch(address, { redirect: "error" });
      if (answer.status === 204) return true;
      if (answer.status === 401) location.reload(); // shows that the session has ended
      if (!answer.ok) return answer.status !== 401;
      const page = $("mail", read(await answer.text()));
      local(page);
      const seen = page.dataset.seen;
      if (take(page)) list.dataset.seen = seen;
      const text = waiting ? `${waiting} new: move the pointer off the list to see ${waiting === 1 ? "it" : "them"}` : "";
      if (fresh.textContent !== text) fresh.textContent = text;
      return true;
    }

    let timer = 0;
    function again(wait) {
      clearTimeout(timer);
      timer = setTimeout(async () => {
        const began = performance.now();
        if (await look().catch(() => true)) again(Math.min(Math.max(POLL_MS, PAUSE_FACTOR * (performance.now() - began)), MAX_POLL_MS));
      }, wait);
    }
    again(POLL_MS);
  }

  local(document);
  const list = $("mail");
  if (list?.dataset.live) watch(list);
})();

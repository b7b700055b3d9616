// Makes the pages a little quicker. Everything works without it; it must never put text into a page as markup of its own.
"use strict";
(() => {
  const POLL = 3000; // milliseconds between two looks for new mail
  const PAUSE = 20; // times as long as the last look took, at least: a search through much must not keep the filter busy
  const LONGEST = 60000; // milliseconds: a look may have waited for the network, or for a laptop to wake up
  const MOST = 500; // rows of a list that grows
  const TWICE = 1000; // milliseconds in which a second click is meant to be none
  const $ = (id, root = document) => root.getElementById(id);

  // ---- times in the reader's own zone

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

  // ---- one click: what a form changes is put into the page without loading it anew

  const read = (text) => new DOMParser().parseFromString(text, "text/html");

  async function send(form, button) {
    const data = new FormData(form, button);
    const body = form.enctype === "multipart/form-data" ? data : new URLSearchParams(data);
    const answer = await fetch(form.action, { method: "POST", body }).catch(() => null);
    if (!answer) { unanswered(form); button?.removeAttribute("aria-busy"); return; } // the plain way would leave for a page of the browser's own
    if (answer.redirected && !answer.ok) { location.assign(answer.url); return; } // it was done, only the page after it cannot be shown
    if (!answer.ok) throw new Error(String(answer.status));
    const page = read(await answer.text());
    local(page);
    const row = form.closest("[id^='m-']") || $(`m-${new URL(form.action).pathname.split("/").at(-2)}`); // of the undo in a notice
    const next = row && $(row.id, page);
    const notice = $("notice", page);
    if (!notice || (row && !next) || row?.closest(".verdicts")) { location.assign(answer.url); return; }
    $("notice").replaceChildren(...notice.childNodes);
    if (row) { row.replaceWith(next); (next.querySelector("button") || next.querySelector("a")).focus(); }
  }

  function unanswered(form) {
    const told = form.querySelector("[role=alert]") || form.appendChild(document.createElement("p"));
    told.setAttribute("role", "alert");
    told.textContent = "No answer, the filter may be starting anew: try again in a moment.";
  }

  const sent = new WeakMap(); // forms, and when
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.hasAttribute("data-here") || form.dataset.plain) {
      if (event.timeStamp - (sent.get(form) ?? -TWICE) < TWICE) event.preventDefault();
      else sent.set(form, event.timeStamp);
      return;
    }
    event.preventDefault();
    const button = event.submitter;
    if (button?.hasAttribute("aria-busy")) return;
    button?.setAttribute("aria-busy", "true");
    send(form, button).catch(() => { // the plain way tells what is wrong
      form.dataset.plain = "1";
      button?.removeAttribute("aria-busy");
      form.requestSubmit(button);
    });
  });

  // ---- new mail shows up by itself, but nothing moves under a pointer

  function watch(list) {
    let waiting = 0;
    const fresh = $("fresh");
    let over = false; // a mouse is: what it is about to click must stay where it is
    list.addEventListener("pointerenter", (event) => { over = event.pointerType === "mouse"; });
    list.addEventListener("pointerleave", () => { over = false; if (waiting) again(0); });

    function take(page) {
      const before = new Set([...list.children].map((row) => row.id));
      const rows = [...page.children];
      const added = rows.filter((row) => !before.has(row.id));
      const gap = before.size > 0 && added.length > 0 && (added.length === rows.length || before.size + added.length > MOST);
      if (added.length && (over || (gap && document.activeElement?.closest("#mail, form")))) { waiting = added.length; return false; }
      if (gap) { location.reload(); return true; } // more may have come than one look tells, and "Older" would not lead there
      for (const row of rows) {
        const old = $(row.id);
        if (!old) {
          row.classList.add("fresh");
          list.insertBefore(row, [...list.children].find((one) => one.id < row.id) || null);
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
      if (answer.status === 401) location.reload(); // which says so
      if (!answer.ok) return answer.status !== 401;
      const page = $("mail", read(await answer.text()));
      local(page);
      const seen = page.dataset.seen;
      if (take(page)) list.dataset.seen = seen;
      const text = waiting ? `${waiting} new: move away from the list to see ${waiting === 1 ? "it" : "them"}` : "";
      if (fresh.textContent !== text) fresh.textContent = text;
      return true;
    }

    let timer = 0;
    function again(wait) {
      clearTimeout(timer);
      timer = setTimeout(async () => {
        const began = performance.now();
        if (await look().catch(() => true)) again(Math.min(Math.max(POLL, PAUSE * (performance.now() - began)), LONGEST));
      }, wait);
    }
    again(POLL);
  }

  local(document);
  const list = $("mail");
  if (list?.dataset.live) watch(list);
})();

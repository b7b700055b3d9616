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

  function read(text) { // and take over the counts of its navigation
    const page = new DOMParser().parseFromString(text, "text/html");
    local(page);
    const pages = $("pages", page);
    if (pages && !$("pages")?.contains(document.activeElement)) $("pages")?.replaceWith(pages);
    return page;
  }

  async function send(form, button) {
    const data = new FormData(form, button);
    const body = form.enctype === "multipart/form-data" ? data : new URLSearchParams(data);
    const answer = await fetch(form.action, { method: "POST", body }).catch(() => null);
    if (!answer) { showNoAnswer(form); button?.removeAttribute("aria-busy"); return; } // a plain submit would show the browser's error page
    if (answer.redirected && !answer.ok) { location.assign(answer.url); return; } // it is done; only the next page failed
    if (!answer.ok) throw new Error(String(answer.status));
    const page = read(await answer.text());
    const row = form.closest("[id^='m-']") || $(`m-${form.elements.class?.value?.trim()}`); // the second: of "Undo" in a notice
    const next = row && $(row.id, page);
    const notice = $("notice", page);
    if (!notice || (row && !next) || document.querySelector(".verdicts")) { location.assign(answer.url); return; }
    $("notice").replaceChildren(...notice.childNodes);
    if (row) { row.replaceWith(next); go(next); }
    else if (queue && $("queue", page) && !sending) renew(page, true);
  }

  function showNoAnswer(form) {
    const alert = form.querySelector("[role=alert]") || form.appendChild(document.createElement("p"));
    alert.setAttribute("role", "alert");
    alert.textContent = "No answer. The filter may be restarting: try again in a moment.";
  }

  const sent = new WeakMap(); // forms, and when they were submitted
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form === queue && !form.dataset.plain) { event.preventDefault(); say(event.submitter); return; }
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

  // ---- lists: one is at the row that has the focus, or to which the address leads; keys press its buttons

  const queue = $("queue");
  const rows = () => [...document.querySelectorAll(".mail li:not([hidden])")];
  const box = (row) => row?.querySelector("input[type=checkbox]");
  const here = () => document.activeElement?.closest(".mail li:not([hidden])")
    ?? (document.activeElement === document.body ? document.querySelector(".mail li:target") : null);
  const go = (row, how) => row?.querySelector("a.subject").focus(how);
  const find = (root, key) => root?.querySelector(`[data-key="${CSS.escape(key)}"]`);

  document.addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (event.ctrlKey || event.altKey || event.metaKey || event.isComposing) return;
    if (target.matches("input:not([type=checkbox]), textarea, select")) return;
    const shown = rows();
    const row = here();
    const step = { j: 1, k: -1 }[key];
    const chosen = shown.some((one) => box(one)?.checked) ? document.querySelector(".several") : row;
    if (key === "Enter" && target.matches(".mail button, .mail input, .several button")) row?.querySelector("a.subject").click();
    else if (key === "/") document.querySelector("input[type=search]")?.focus();
    else if (key === "?" && $("help")) $("help").open = !$("help").open;
    else if (key === " " && box(row) && target.matches("a")) box(row).checked = !box(row).checked;
    else if (step && shown.length) go(row ? shown[shown.indexOf(row) + step] : shown[0]);
    else if (event.repeat) return;
    else if (key === "u" && queue) last = last.then(() => find($("notice"), key)?.click());
    else if (find(chosen, key)) find(chosen, key).click();
    else if (shown.length && !chosen && find(document, key)) go(shown[0]);
    else return;
    event.preventDefault();
  });

  if ($("keys")) {
    $("keys").hidden = false;
    if (queue && document.activeElement === document.body && !location.hash) go(rows()[0], { preventScroll: true });
  }

  // ---- the queue: a word hides its rows at once, and they are sent one after the other

  let sending = 0;
  let last = Promise.resolve();

  function say(button) {
    const own = button.closest("li");
    const chosen = own ? [own] : rows().filter((row) => box(row).checked);
    if (!chosen.length) { go(rows()[0]); return; }
    const body = new URLSearchParams({ [button.name]: button.value });
    if (!own) for (const row of chosen) body.append(box(row).name, box(row).value);
    const shown = rows();
    const at = shown.indexOf(chosen.at(-1));
    for (const row of chosen) row.hidden = true;
    go([...shown.slice(at), ...shown.slice(0, at).reverse()].find((row) => !row.hidden));
    sending += 1;
    last = last.then(() => tell(body, chosen, button));
  }

  async function tell(body, chosen, button) {
    const answer = await fetch(queue.action, { method: "POST", body }).catch(() => null);
    sending -= 1;
    if (answer?.ok) {
      const page = read(await answer.text());
      $("notice").replaceChildren(...$("notice", page).childNodes);
      if (!sending) renew(page, false); // else it shows rows that are still to be sent
    } else {
      for (const row of chosen) { row.hidden = false; box(row).checked = !button.closest("li"); }
      if (!answer) showNoAnswer(queue);
      else { queue.dataset.plain = "1"; queue.requestSubmit(button); } // a plain submit shows what is wrong
    }
  }

  function renew(page, undone) {
    const before = new Map(rows().map((row) => [row.id, box(row).checked]));
    const focused = here()?.id;
    const free = focused || document.activeElement === document.body || $("notice").contains(document.activeElement);
    queue.replaceChildren(...$("queue", page).childNodes);
    for (const row of rows()) box(row).checked = before.get(row.id) || false;
    const back = undone && rows().find((row) => !before.has(row.id));
    if (free) go(back || $(focused) || rows()[0]);
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-all]");
    if (!link) return;
    event.preventDefault();
    const boxes = [...link.closest("form").elements].filter((one) => one.type === "checkbox" && !one.closest("[hidden]"));
    const checked = boxes.some((one) => !one.checked);
    for (const one of boxes) one.checked = checked;
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
      const whole = read(await answer.text());
      const page = $("mail", whole);
      if ($("absent").innerHTML !== $("absent", whole).innerHTML) $("absent").replaceWith($("absent", whole));
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

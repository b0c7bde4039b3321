// Keys, synchronised zoom, flicker, difference. Everything else works without this file.
"use strict";

const find = (selector) => document.querySelector(selector);
const all = (selector) => [...document.querySelectorAll(selector)];

// ---- keys: an element with data-key is clicked by that key -------------------------------------------

const typing = (target) => target.matches("input:not([type=checkbox]), textarea, select");

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  const help = find("#help");
  if (event.key === "?") return help.open ? help.close() : help.showModal();
  if (help.open) return;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key; // caps lock
  // Enter on what has the focus does what that says; the arrows scroll what scrolls.
  if (key === "Enter" && event.target.matches("a, button, summary")) return;
  if (key.startsWith("Arrow") && event.target.matches(".scroll")) return;
  // A key that is held down looks at many groups, but decides one.
  if (event.repeat && !key.startsWith("Arrow") && !"+-".includes(key)) return event.preventDefault();
  if (compare && compare(key, event.shiftKey)) return event.preventDefault();
  const control = all("[data-key]").find((element) => element.dataset.key === key && !element.disabled);
  if (control) {
    event.preventDefault();
    control.click();
  }
});

find("#keys")?.addEventListener("click", () => find("#help").showModal());

// ---- a long removal says that it is at work, and is not sent twice ---------------------------------------

for (const form of all("form[data-busy]")) form.addEventListener("submit", (event) => {
  const button = event.submitter || form.querySelector("button");
  setTimeout(() => { button.disabled = true; }); // after the form has been sent
  button.setAttribute("aria-busy", "true");
  button.textContent = form.dataset.busy;
});

// ---- work in the background says how far it is; the page that only waits for it goes on when it has ended ----

const work = find("[data-work]");
if (work) {
  const part = (name) => work.querySelector(`[data-${name}]`);
  const wait = "leave" in work.dataset;
  const ask = async () => {
    let state;
    try {
      const answer = await fetch(work.dataset.work);
      if (!answer.ok) throw new Error("refused");
      state = await answer.json();
    } catch {
      part("left").textContent = "photodup does not answer: was it stopped?";
      return setTimeout(ask, 3000);
    }
    if (work.dataset.first && state.is_running && state.is_open) return location.replace(work.dataset.first);
    if (!state.is_running) {
      if (wait) return location.replace(work.dataset.after);
      for (const line of work.querySelectorAll("p")) line.hidden = line !== part("ended");
      return;
    }
    part("doing").textContent = state.doing;
    part("count").textContent = state.total ? `${state.done.toLocaleString("en")} of ${state.total.toLocaleString("en")}` : "";
    part("left").textContent = state.left;
    const shown = work.querySelector("progress");
    if (shown && state.total) { shown.max = state.total; shown.value = state.done; } else shown?.removeAttribute("value");
    setTimeout(ask, 500);
  };
  setTimeout(ask, 300);
}

// ---- a picture that did not come (the network changed, the machine slept) is asked for again --------------

const again = (picture) => {
  picture.classList.add("broken");
  const tries = Number(picture.dataset.tries || 0);
  if (tries >= 3) return;
  picture.dataset.tries = String(tries + 1);
  setTimeout(() => { picture.src = picture.src; }, 300 * 4 ** tries);
};
document.addEventListener("error", (event) => { if (event.target instanceof HTMLImageElement) again(event.target); }, true);
document.addEventListener("load", (event) => { if (event.target instanceof HTMLImageElement) event.target.classList.remove("broken"); }, true);
for (const picture of document.images) if (picture.complete && !picture.naturalWidth && picture.src) again(picture);

// ---- the next page's pictures are made and fetched while this one is looked at: 40 megapixels take a while ---

addEventListener("load", () => {
  for (const element of all("[data-ahead]")) {
    for (const source of element.dataset.ahead.split(" ").filter(Boolean)) new Image().src = source;
  }
});

// ---- comparing -----------------------------------------------------------------------------------------

let compare = null;
const stage = find("#stage");

if (stage) {
  const views = all(".view");
  const pictures = all(".view img, .view .places");
  let scale = 1, x = 0, y = 0; // x and y: shift as a share of the pane, the same for both

  const show = () => {
    const most = (scale - 1) / 2;
    x = Math.min(most, Math.max(-most, x));
    y = Math.min(most, Math.max(-most, y));
    for (const picture of pictures) {
      picture.style.transform = `translate(${x * 100}%, ${y * 100}%) scale(${scale})`;
      if (scale > 1.2 && picture.dataset.large) {
        const large = new Image();
        const source = picture.dataset.large;
        large.onload = () => { picture.src = source; };
        large.src = source;
        delete picture.dataset.large;
      }
    }
    stage.classList.toggle("zoomed", scale > 1);
    find("#zoom").setAttribute("aria-pressed", String(scale > 1));
  };

  const zoomAt = (view, clientX, clientY, factor) => {
    const box = view.getBoundingClientRect();
    const atX = (clientX - box.left) / box.width - 0.5, atY = (clientY - box.top) / box.height - 0.5;
    const next = Math.min(16, Math.max(1, scale * factor));
    x = atX - (atX - x) * (next / scale);
    y = atY - (atY - y) * (next / scale);
    scale = next;
    show();
  };
  const zoomBy = (factor) => {
    const box = views[0].getBoundingClientRect();
    zoomAt(views[0], box.left + box.width / 2, box.top + box.height / 2, factor);
  };
  const pan = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  const toggleZoom = () => {
    if (scale > 1) { scale = 1; x = 0; y = 0; } else scale = 3;
    show();
  };

  for (const view of views) {
    const pointers = new Map();
    view.addEventListener("wheel", (event) => {
      event.preventDefault();
      zoomAt(view, event.clientX, event.clientY, Math.exp(-event.deltaY / 300));
    }, { passive: false });
    view.addEventListener("dblclick", (event) => {
      if (scale > 1) toggleZoom(); else zoomAt(view, event.clientX, event.clientY, 3);
    });
    view.addEventListener("pointerdown", (event) => {
      view.setPointerCapture(event.pointerId);
      pointers.set(event.pointerId, event);
    });
    view.addEventListener("pointermove", (event) => {
      const before = pointers.get(event.pointerId);
      if (!before) return;
      const box = view.getBoundingClientRect();
      if (pointers.size === 2) {
        const other = [...pointers.values()].find((pointer) => pointer.pointerId !== event.pointerId);
        const gap = (pointer) => Math.hypot(pointer.clientX - other.clientX, pointer.clientY - other.clientY);
        const middle = [(event.clientX + other.clientX) / 2, (event.clientY + other.clientY) / 2];
        if (gap(before) > 0) zoomAt(view, ...middle, gap(event) / gap(before));
      } else {
        x += (event.clientX - before.clientX) / box.width;
        y += (event.clientY - before.clientY) / box.height;
        show();
      }
      pointers.set(event.pointerId, event);
    });
    for (const name of ["pointerup", "pointercancel"]) {
      view.addEventListener(name, (event) => pointers.delete(event.pointerId));
    }
  }

  // Where the two differ is drawn by the server, once it is asked for.
  const map = find("[data-difference]");
  const say = (sentence) => {
    const said = document.createElement("p");
    said.className = "lost";
    said.role = "status";
    said.textContent = sentence;
    map.replaceChildren(said);
  };
  const drawDifference = async () => {
    if (map.firstChild) return;
    say("Laying one over the other…");
    try {
      const answer = await fetch(map.dataset.difference);
      if (answer.ok) {
        const bitmap = await createImageBitmap(await answer.blob());
        const drawn = Object.assign(document.createElement("canvas"), { width: bitmap.width, height: bitmap.height });
        drawn.getContext("bitmaprenderer").transferFromImageBitmap(bitmap);
        map.replaceChildren(drawn);
        pictures.push(drawn);
        show();
        find("#differs").textContent = answer.headers.get("Content-Description");
      } else {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        say(page.querySelector(".hero p")?.textContent || "The difference cannot be drawn.");
      }
    } catch {
      say("photodup does not answer: was it stopped?");
    }
  };

  // Both in one place, so the eye sees what changes: flicker shows one after the other, the slider a part of each.
  const modes = ["flicker", "slide", "difference"];
  let timer = null;
  const lay = (mode) => {
    const on = stage.dataset.mode !== mode;
    stage.dataset.mode = on ? mode : "side";
    for (const name of modes) find(`#${name}`)?.setAttribute("aria-pressed", String(on && name === mode));
    if (stage.dataset.mode === "difference") drawDifference();
    clearInterval(timer);
    stage.classList.remove("second");
    find("#cut").hidden = stage.dataset.mode !== "slide";
    const pause = matchMedia("(prefers-reduced-motion: reduce)").matches ? 1500 : 550;
    if (stage.dataset.mode === "flicker") timer = setInterval(() => stage.classList.toggle("second"), pause);
  };
  find("#cut").addEventListener("input", (event) => stage.style.setProperty("--cut", `${event.target.value}%`));

  const KEEP = "input[type=checkbox][name=keep]"; // what is protected has a hidden one beside it, which is sent
  const box = (id) => find(`${KEEP}[value="${id}"]`);
  const [left, right] = all(".pane").map((pane) => pane.dataset.photo);
  const update = () => {
    let kept = 0, bytes = 0, removed = 0;
    for (const input of all(KEEP)) {
      const verdict = input.checked ? "keep" : "remove";
      input.closest("li").dataset.verdict = verdict;
      for (const label of all(`.verdict[data-photo="${input.value}"]`)) {
        label.textContent = verdict;
        label.dataset.verdict = verdict;
      }
      if (input.checked) kept += 1; else { removed += 1; bytes += Number(input.dataset.bytes); }
    }
    const size = bytes > 1e6 ? `${(bytes / 1e6).toFixed(1)}\u00a0MB` : `${(bytes / 1e3).toFixed(1)}\u00a0kB`;
    const label = removed ? `Remove ${removed}, free ${size}` : "Keep all";
    find("#accept-label").textContent = kept ? label : "Keep at least one";
    find("button[value=accept]").disabled = kept === 0;
  };
  const mark = (id, keep) => { box(id).checked = keep || box(id).disabled; update(); };
  for (const input of all(KEEP)) input.addEventListener("change", update);

  const members = all(".strip a.member");
  const step = (by) => {
    const place = members.findIndex((link) => link.getAttribute("aria-current"));
    const next = members[place + by];
    if (next) sessionStorage.setItem("keep", JSON.stringify(all(KEEP).map((i) => [i.value, i.checked])));
    if (next) next.click();
  };
  const current = find(".strip li:has([aria-current])"), strip = find(".strip");
  if (current) strip.scrollLeft = current.offsetLeft - strip.offsetLeft - (strip.clientWidth - current.clientWidth) / 2;
  // Marks made before looking at the next photo of the same group are not lost on the way.
  const stored = JSON.parse(sessionStorage.getItem("keep") || "[]");
  sessionStorage.removeItem("keep");
  for (const [id, keep] of stored) if (box(id)) box(id).checked = keep || box(id).disabled;
  for (const link of members) link.addEventListener("click", () => {
    sessionStorage.setItem("keep", JSON.stringify(all(KEEP).map((i) => [i.value, i.checked])));
  });

  for (const name of modes) find(`#${name}`)?.addEventListener("click", () => lay(name));
  find("#zoom").addEventListener("click", toggleZoom);
  const keys = {
    ArrowLeft: () => step(-1), ArrowRight: () => step(1), k: () => mark(right, true), x: () => mark(right, false),
    o: () => mark(left, !box(left).checked), f: () => lay("flicker"), l: () => lay("slide"), z: toggleZoom,
    "+": () => zoomBy(1.5), "=": () => zoomBy(1.5), "-": () => zoomBy(1 / 1.5),
  };
  compare = (key, shift) => {
    if (shift && pan[key]) {
      x += pan[key][0] / 10;
      y += pan[key][1] / 10;
      show();
      return true;
    }
    if (!keys[key]) return false;
    keys[key]();
    return true;
  };
  update();
}

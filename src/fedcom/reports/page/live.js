// A page that is served while runs go on asks for a newer one every few seconds and takes over what has changed.

const EVERY = 2000; // milliseconds
let newest = null; // the tag of the page that is shown

function takeOver(fresh) {
  for (const part of document.querySelectorAll("[data-part]")) {
    const other = fresh.querySelector(`[data-part="${part.dataset.part}"]`);
    if (!other || other.innerHTML === part.served) continue;
    const open = [...part.querySelectorAll("details[open] > summary")].map((summary) => summary.textContent);
    part.innerHTML = part.served = other.innerHTML;
    for (const summary of part.querySelectorAll("details > summary")) {
      if (open.includes(summary.textContent)) summary.parentElement.open = true;
    }
  }
  document.title = fresh.title;
  data = JSON.parse(fresh.getElementById("data").textContent);
  renew();
}

function say(words, gone = false) {
  get("live").textContent = words;
  get("live").classList.toggle("gone", gone);
}

async function ask() {
  const headers = newest ? { "If-None-Match": newest } : {};
  const answer = await fetch(location.pathname, { headers, cache: "no-store" }).catch(() => null);
  const text = await answer?.text().catch(() => null);
  if (!answer || text === null) {
    newest = null;
    say("the server has ended; this is its last page", true);
  } else if (answer.status === 200) {
    newest = answer.headers.get("ETag");
    takeOver(new DOMParser().parseFromString(text, "text/html"));
    say(`live, as of ${new Date().toLocaleTimeString()}`);
  } else if (answer.status !== 304) {
    say(text, true);
  }
}

function startLive() {
  if (root.dataset.kind !== "live") return;
  get("live").hidden = false;
  const again = async () => {
    await ask();
    setTimeout(again, EVERY);
  };
  again();
}

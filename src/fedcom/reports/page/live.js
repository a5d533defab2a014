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

async function ask() {
  const sign = get("live");
  try {
    const answer = await fetch(location.pathname, { headers: newest ? { "If-None-Match": newest } : {}, cache: "no-store" });
    if (!answer.ok && answer.status !== 304) throw new Error(await answer.text());
    if (answer.status !== 304) {
      newest = answer.headers.get("ETag");
      takeOver(new DOMParser().parseFromString(await answer.text(), "text/html"));
      sign.textContent = `live, as of ${new Date().toLocaleTimeString()}`;
    }
    sign.classList.remove("gone");
  } catch {
    sign.textContent = "the server has ended; this is its last page";
    sign.classList.add("gone");
  }
}

function startLive() {
  if (root.dataset.kind !== "live") return;
  for (const part of document.querySelectorAll("[data-part]")) part.served = part.innerHTML;
  get("live").hidden = false;
  const again = async () => {
    await ask();
    setTimeout(again, EVERY);
  };
  again();
}

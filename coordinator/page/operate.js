"use strict";
// The login with the code of the address, and the commands of the buttons.
const KEY = "protofleet-key", PAUSES = [0, 1000, 3000];
let secret = stored(), sending = false;

function stored() {
  try { return localStorage.getItem(KEY) ?? ""; } catch { return ""; }  // A browser may forbid storage.
}

function post(path, body, headers = {}) {
  return fetch(path, {method: "POST", headers: {"Content-Type": "application/json", ...headers}, body: JSON.stringify(body)});
}

const said = (words) => text($("result"), words);

// Exchange the code of the address for a cookie and a key. The code leaves the address, because it is used now.
async function login() {
  const code = /^#c=([\w-]+)$/.exec(location.hash)?.[1];
  if (!code) return;
  history.replaceState(null, "", location.pathname);
  const answer = await post("login", {code}).catch(() => null);
  if (!answer?.ok) {
    const why = answer ? (await answer.text()).trim() : "the coordinator does not answer";
    said(`You are not logged in: ${why}. "protofleet page RUN" prints a new address.`);
    return;
  }
  secret = (await answer.json()).key;
  said("");
  try { localStorage.setItem(KEY, secret); } catch { /* Then the login lasts until the page is closed. */ }
}

// Send a command. Each try has the same id, so the command has one effect.
async function send(verb) {
  if (sending) return;
  sending = true;
  drawButtons();
  said(`${verb}: sent`);
  const id = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  let words = "the coordinator does not answer";
  for (const pause of PAUSES) {
    await new Promise((done) => setTimeout(done, pause));
    const answer = await post("command", {id, verb, reason: $("reason").value}, {"X-Protofleet": secret}).catch(() => null);
    if (!answer) continue;
    const result = answer.ok ? await answer.json() : {verdict: answer.status === 503 ? "unknown" : "refused", words: await answer.text()};
    words = result.words;
    if (answer.status === 401) load().catch(() => {});
    if (result.verdict === "done") $("reason").value = "";
    if (result.verdict !== "unknown") break;
  }
  sending = false;
  said(`${verb}: ${words}`);
  drawButtons();
}

function drawButtons() {
  const run = now.run, ended = run?.state === "ended", may = Boolean(run && now.operator && secret && !ended);
  if (!may && $("confirm").open) $("confirm").close();
  if (!may && $("operate").contains(document.activeElement)) $("top").focus();
  $("operate").hidden = !may;
  text($("hint"), may || !run || ended ? "" : 'To pause or stop the run here, log in: "protofleet page RUN" prints the address.');
  if (!may) return;
  text($("hold"), run.held ? "Resume" : "Pause");
  for (const id of ["hold", "stop"]) $(id).setAttribute("aria-disabled", sending);
  text($("operator"), `Logged in as ${now.operator}. A pause begins at the end of the open round.`);
}

function confirmStop() {
  if (sending) return;
  text($("confirm-title"), `Stop ${now.run.name}?`);
  text($("confirm-words"), `The run ${now.run.name} ends for ever in round ${now.run.round} of ${now.run.planned}. Its files are kept.`);
  text($("really"), `Stop ${now.run.name}`);
  $("confirm").showModal();
  $("keep").focus();
}

$("hold").addEventListener("click", () => send(now.run.held ? "resume" : "pause"));
$("stop").addEventListener("click", confirmStop);
$("keep").addEventListener("click", () => $("confirm").close());
$("really").addEventListener("click", () => { $("confirm").close(); send("stop"); });

const start = () => login().then(listen);
addEventListener("hashchange", start);
start();

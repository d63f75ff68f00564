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
  const [, code, run] = /^#c=([\w-]+)(?:&run=(.*))?$/.exec(location.hash) ?? [];
  if (!code) return;
  history.replaceState(null, "", run ? `#run=${run}` : location.pathname);
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

// Send a command for one run. Each try has the same id, so the command has one effect.
async function send(run, verb, args, rev = found(run).row?.revision) {
  if (sending) return;
  sending = true;
  choose(run);
  drawButtons();
  const which = now.queue ? `${verb} ${run}` : verb;
  said(`${which}: sent`);
  const id = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  let words = "the coordinator does not answer";
  for (const pause of PAUSES) {
    await new Promise((done) => setTimeout(done, pause));
    const answer = await post("command", {id, verb, run, reason: $("reason").value, ...(rev === undefined ? {} : {rev}), ...args}, {"X-Protofleet": secret}).catch(() => null);
    if (!answer) continue;
    const result = answer.ok ? await answer.json() : {verdict: answer.status === 503 ? "unknown" : "refused", words: await answer.text()};
    words = result.words;
    if (answer.status === 401) load().catch(() => {});
    if (result.verdict === "done") $("reason").value = "";
    if (result.verdict !== "unknown") break;
  }
  sending = false;
  said(`${which}: ${words}`);
  drawButtons();
}

function drawButtons() {
  const one = found(shown), ended = isOver(one), known = one.row || one.live;
  const may = Boolean(known && now.operator && secret && !ended);
  if (!may && $("confirm").open) $("confirm").close();
  if (!may && $("operate").contains(document.activeElement)) $("top").focus();
  $("operate").hidden = !may;
  text($("hint"), may || !known || ended || now.operator && secret ? "" : 'To pause or stop a run here, log in: "protofleet page RUN" prints the address.');
  if (!may) return;
  text($("h-operate"), `Operate ${shown}`);
  text($("hold"), isHeld(one) ? "Resume" : "Pause");
  $("of-extend").hidden = !now.verbs.includes("extend");
  const rounds = $("rounds"), planned = String(one.row?.rounds ?? one.live.run.planned), of = `${shown} ${planned}`;
  if (rounds.dataset.of !== of) {  // A number that a person has entered stays until the run has another number.
    rounds.dataset.of = of;
    rounds.value = planned;
  }
  for (const id of ["hold", "stop", "extend"]) $(id).setAttribute("aria-disabled", sending);
  text($("operator"), `Logged in as ${now.operator}. A pause begins at the end of the open round.`);
}

// The row of the queue says what is wanted of a run, also before the run begins.
const isHeld = ({row, live}) => (row ? ["paused", "pausing"].includes(row.state) : live.run.held);

// A person who changes a run goes on to see it, also when it is over.
function choose(run) {
  chosen = run;
  if (now.queue) history.replaceState(null, "", `#run=${encodeURIComponent(run)}`);
}

function confirmStop() {
  if (sending) return;
  choose(shown);
  const {row, live} = found(shown), round = live ? ` in round ${live.run.round} of ${live.run.planned}` : "";
  $("really").dataset.run = shown;
  $("really").dataset.rev = row?.revision ?? "";
  text($("confirm-title"), `Stop ${shown}?`);
  text($("confirm-words"), `The run ${shown} ends for ever${round}. ${live || row?.begun ? "Its files are kept." : "It has not begun."}`);
  text($("really"), `Stop ${shown}`);
  $("confirm").showModal();
  $("keep").focus();
}

function extend() {
  const rounds = $("rounds").valueAsNumber;
  if (rounds >= 1) send(shown, "extend", {args: {rounds}}); else said("extend: enter the number of all rounds");
}

$("hold").addEventListener("click", () => send(shown, isHeld(found(shown)) ? "resume" : "pause"));
$("stop").addEventListener("click", confirmStop);
$("extend").addEventListener("click", extend);
$("keep").addEventListener("click", () => $("confirm").close());
$("really").addEventListener("click", ({target}) => { $("confirm").close(); send(target.dataset.run, "stop", {}, target.dataset.rev ? +target.dataset.rev : undefined); });

// The part of the address after # has the code of a login, or the run that the page shows.
function follow() {
  const [, name] = /^#run=(.+)$/.exec(location.hash) ?? [];
  try { chosen = name ? decodeURIComponent(name) : ""; } catch { chosen = ""; }
  schedule();
}

const start = () => login().then(follow).then(listen);
addEventListener("hashchange", () => { if (location.hash.startsWith("#c=")) start(); else follow(); });
start();

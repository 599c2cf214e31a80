// Audio of a microphone or a file to the server's WebSocket, and its words onto the page.
"use strict";

const byId = (id) => document.getElementById(id);
const MOST_WAITING = 1 << 20; // bytes that the server has not taken yet

// The token comes in the fragment, which no server sees; it stays with this tab and leaves the address.
if (location.hash.startsWith("#token=")) {
  sessionStorage.setItem("token", location.hash.slice("#token=".length));
  history.replaceState(null, "", location.pathname);
}

let socket = null;
let close = () => {};

const token = () => sessionStorage.getItem("token") ?? "";

function say(text) {
  byId("status").textContent = text;
}

function ended() {
  close();
  close = () => {};
  socket = null;
  byId("microphone").disabled = byId("file").disabled = false;
  byId("stop").disabled = true;
}

function show(message) {
  byId("partial").textContent = message.text;
  if (message.type === "final") {
    const line = document.createElement("p");
    line.className = "final";
    line.textContent = message.text;
    if (message.text) byId("words").insertBefore(line, byId("partial"));
    byId("partial").textContent = "";
  }
}

// A socket that is open and tells at which rate audio comes; resolves to what the server says about itself.
function connected(rate) {
  return new Promise((resolve, reject) => {
    const address = new URL("stream", location.href);
    address.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    const opened = new WebSocket(address, ["megahour.v1", `token.${token()}`]);
    let told = false;
    socket = opened;
    byId("microphone").disabled = byId("file").disabled = true;
    byId("stop").disabled = false;
    opened.onopen = () => opened.send(JSON.stringify({ rate_hz: rate }));
    opened.onmessage = (event) => {
      const message = JSON.parse(event.data);
      if (message.type === "ready") resolve(message);
      else if (message.type === "error") { told = true; say(`${message.error}. ${message.remedy ?? ""}`); }
      else if (message.type === "end") {
        told = true;
        say(`${message.seconds} s heard; words ${message.delay_ms} ms after a chunk of ${message.latency_ms} ms.`);
      } else show(message);
    };
    opened.onclose = () => {
      if (!told) say("The server refused or ended the connection: is the token right, and is it running?");
      ended();
      reject(new Error("closed"));
    };
  });
}

// What the server says about itself; an error where it does not know the token.
async function about() {
  const answer = await fetch("about", { headers: { Authorization: `Bearer ${token()}` } });
  if (!answer.ok) throw new Error(`${(await answer.text()).trim()}. Open the address that megahour listen has printed.`);
  return answer.json();
}

async function microphone() {
  const context = new AudioContext();
  try {
    const media = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    const stop = () => { media.getTracks().forEach((track) => track.stop()); context.close(); };
    try {
      await context.audioWorklet.addModule("worklet.js");
      const { model } = await about();
      await connected(context.sampleRate);
      const node = new AudioWorkletNode(context, "pcm");
      node.port.onmessage = (event) => socket?.readyState === WebSocket.OPEN && socket.send(event.data);
      context.createMediaStreamSource(media).connect(node).connect(context.destination); // it writes silence
      close = stop;
      say(`Listening with ${model || "the model"}.`);
    } catch (error) {
      stop();
      if (error.message !== "closed") say(`The microphone: ${error.message}`);
    }
  } catch (error) {
    context.close();
    say(`No microphone: ${error.message}`);
  }
}

async function fileChosen(file) {
  byId("file").value = "";
  try {
    const { rate_hz: rate } = await about();
    const audio = await new OfflineAudioContext(1, 1, rate).decodeAudioData(await file.arrayBuffer());
    await connected(rate);
    say(`Reading ${file.name}.`);
    const step = Math.round(rate / 2);
    for (let first = 0; first < audio.length && socket; first += step) {
      while (socket?.bufferedAmount > MOST_WAITING) await new Promise((next) => setTimeout(next, 50));
      socket?.send(pcm(audio, first, Math.min(audio.length, first + step)));
    }
    stop();
  } catch (error) {
    if (error.message !== "closed") say(`${file.name}: ${error.message}`);
  }
}

function pcm(audio, first, end) {
  const samples = new Int16Array(end - first);
  const channels = Array.from({ length: audio.numberOfChannels }, (_, i) => audio.getChannelData(i));
  for (let i = first; i < end; i++) {
    const mean = channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length;
    samples[i - first] = Math.max(-32768, Math.min(32767, Math.round(mean * 32768)));
  }
  return samples.buffer;
}

function stop() {
  close();
  close = () => {};
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ end: true }));
}

about().catch((error) => say(error.message));
byId("microphone").addEventListener("click", microphone);
byId("stop").addEventListener("click", stop);
byId("file").addEventListener("change", (event) => event.target.files[0] && fileChosen(event.target.files[0]));

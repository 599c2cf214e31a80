// Float samples of the microphone as 16-bit ones, a tenth of a second at a time.
"use strict";

class Pcm extends AudioWorkletProcessor {
  constructor() {
    super();
    this.block = new Int16Array(Math.round(sampleRate / 10));
    this.filled = 0;
  }

  process(inputs) {
    for (const sample of inputs[0][0] ?? []) {
      this.block[this.filled++] = Math.max(-32768, Math.min(32767, Math.round(sample * 32768)));
      if (this.filled === this.block.length) {
        this.port.postMessage(this.block.slice().buffer);
        this.filled = 0;
      }
    }
    return true;
  }
}

registerProcessor("pcm", Pcm);

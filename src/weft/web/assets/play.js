// Play: a moment runs through the step, and what comes after it is veiled.

export class Player {
  constructor(app) {
    this.app = app;
    this.seconds = 12; // that a whole step takes
    this.isPlaying = false;
    this.onchange = () => {};
  }

  toggle() {
    if (this.isPlaying) this.pause();
    else this.play();
  }

  play() {
    const { app } = this;
    if (app.cursor === null || app.cursor >= app.extent) app.cursor = 0;
    this.isPlaying = true;
    this.onchange(true);
    this.last = performance.now();
    requestAnimationFrame((now) => this.step(now));
  }

  pause() {
    this.isPlaying = false;
    this.onchange(false);
  }

  stop() {
    this.pause();
    this.app.cursor = null;
    this.app.drawOverlay();
  }

  step(now) {
    if (!this.isPlaying) return;
    const { app } = this;
    app.cursor += (Math.max(0, now - this.last) / 1000) * (app.extent / this.seconds);
    this.last = now;
    if (app.cursor >= app.extent) {
      this.stop();
      return;
    }
    this.follow();
    app.drawOverlay();
    requestAnimationFrame((next) => this.step(next));
  }

  /** Turn the page where the moment leaves the view. */
  follow() {
    const { from, to } = this.app.view;
    const { cursor } = this.app;
    if (cursor < from || cursor > to) this.app.show(cursor, cursor + (to - from));
  }
}

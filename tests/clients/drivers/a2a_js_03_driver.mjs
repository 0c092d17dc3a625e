// @a2a-js/sdk 0.3: the JavaScript SDK's client for the older protocol version.
import { randomUUID } from 'node:crypto';
import { ClientFactory } from '@a2a-js/sdk/client';
import { decoded, drive, encoded } from './driving.mjs';

class Driver {
  constructor(url) {
    this.client = new ClientFactory().createFromUrl(url);
  }

  async send({ text }) {
    return { text: reply(await this.turn(message(text))) };
  }

  async stream({ text }) {
    const client = await this.client;
    const artifacts = new Map();
    const pieces = [];
    for await (const event of client.sendMessageStream({ message: message(text) })) {
      if (event.kind !== 'artifact-update') continue;
      const piece = texts(event.artifact.parts);
      pieces.push(piece);
      const before = event.append ? (artifacts.get(event.artifact.artifactId) ?? '') : '';
      artifacts.set(event.artifact.artifactId, before + piece);
    }
    return { pieces, text: [...artifacts.values()].join('') };
  }

  async context({ first, second }) {
    const { contextId } = await this.turn(message(first));
    return { text: reply(await this.turn(message(second, [], { contextId }))) };
  }

  async cancel({ text }) {
    const client = await this.client;
    const states = [];
    let taskId;
    for await (const event of client.sendMessageStream({ message: message(text) })) {
      taskId ??= event.id ?? event.taskId;
      if (event.kind === 'artifact-update' && !states.length)
        states.push((await client.cancelTask({ id: taskId })).status.state);
      if (event.kind === 'status-update' && event.final) states.push(event.status.state);
    }
    return { states };
  }

  async answer({ text, answer }) {
    const asked = await this.turn(message(text));
    const done = await this.turn(message(answer, [], { taskId: asked.id }));
    return { question: texts(asked.status.message.parts), text: reply(done) };
  }

  async attach({ text, name, content }) {
    const file = { bytes: encoded(content), name, mimeType: 'application/octet-stream' };
    return { text: reply(await this.turn(message(text, [{ kind: 'file', file }]))) };
  }

  async receive({ text }) {
    const parts = (await this.turn(message(text))).artifacts.flatMap((a) => a.parts);
    const files = parts.filter((p) => p.kind === 'file').map((p) => p.file);
    return { files: Object.fromEntries(files.map((f) => [f.name, decoded(f.bytes)])) };
  }

  async fail({ text }) {
    return { text: texts((await this.turn(message(text))).status.message.parts) };
  }

  async turn(sent) {
    return (await this.client).sendMessage({ message: sent });
  }
}

const message = (text, parts = [], ids = {}) => ({
  kind: 'message',
  role: 'user',
  messageId: randomUUID(),
  parts: [{ kind: 'text', text }, ...parts],
  ...ids,
});
const reply = (task) => (task.artifacts ?? []).map((a) => texts(a.parts)).join('');
const texts = (parts) => parts.map((p) => (p.kind === 'text' ? p.text : `<${p.kind}>`)).join('');

await drive(Driver);

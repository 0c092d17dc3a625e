// @a2a-js/sdk 1.x: the JavaScript SDK's client.
import { randomUUID } from 'node:crypto';
import { Role, TaskState } from '@a2a-js/sdk';
import { ClientFactory } from '@a2a-js/sdk/client';
import { drive } from './driving.mjs';

class Driver {
  constructor(url) {
    this.client = new ClientFactory().createFromUrl(url);
  }

  async send({ text }) {
    return { text: reply(await this.turn(message(text))) };
  }

  async stream({ text }) {
    const artifacts = new Map();
    const pieces = [];
    for await (const { payload } of await this.events(message(text))) {
      if (payload.$case !== 'artifactUpdate') continue;
      const { artifact, append } = payload.value;
      const piece = texts(artifact.parts);
      pieces.push(piece);
      const before = append ? (artifacts.get(artifact.artifactId) ?? '') : '';
      artifacts.set(artifact.artifactId, before + piece);
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
    for await (const { payload } of await this.events(message(text))) {
      if (payload.$case === 'artifactUpdate' && !states.length)
        states.push(state(await client.cancelTask({ id: payload.value.taskId, tenant: '' })));
      if (payload.$case === 'statusUpdate' && states.length) states.push(state(payload.value));
    }
    return { states };
  }

  async answer({ text, answer }) {
    const asked = await this.turn(message(text));
    const done = await this.turn(message(answer, [], { taskId: asked.id }));
    return { question: texts(asked.status.message.parts), text: reply(done) };
  }

  async attach({ text, name, content }) {
    const file = part({ $case: 'raw', value: Buffer.from(content) }, name, 'application/octet-stream');
    return { text: reply(await this.turn(message(text, [file]))) };
  }

  async receive({ text }) {
    const parts = (await this.turn(message(text))).artifacts.flatMap((a) => a.parts);
    const files = parts.filter((p) => p.content.$case === 'raw');
    return { files: Object.fromEntries(files.map((f) => [f.filename, f.content.value.toString()])) };
  }

  async fail({ text }) {
    return { text: texts((await this.turn(message(text))).status.message.parts) };
  }

  async turn(sent) {
    return (await this.client).sendMessage(request(sent));
  }

  async events(sent) {
    return (await this.client).sendMessageStream(request(sent));
  }
}

const request = (message) => ({ tenant: '', message, configuration: undefined, metadata: undefined });
const part = (content, filename = '', mediaType = '') => ({ content, filename, mediaType, metadata: undefined });
const message = (text, parts = [], ids = {}) => ({
  messageId: randomUUID(),
  contextId: '',
  taskId: '',
  role: Role.ROLE_USER,
  parts: [part({ $case: 'text', value: text }), ...parts],
  metadata: undefined,
  extensions: [],
  referenceTaskIds: [],
  ...ids,
});
const state = ({ status }) => TaskState[status.state].replace('TASK_STATE_', '').toLowerCase();
const reply = (task) => task.artifacts.map((a) => texts(a.parts)).join('');
const texts = (parts) =>
  parts.map(({ content }) => (content.$case === 'text' ? content.value : `<${content.$case}>`)).join('');

await drive(Driver);

class Reply {
  constructor(data) {
    Object.assign(this, { specversion: '1.0', type: 'reply', source: '/test', id: 'own', data });
  }
}
const act = {
  echo: (event, context) => ({
    id: event.id, subject: event.subject, data: event.data, bytes: Buffer.isBuffer(event.data),
    function: context.function, namespace: context.namespace, attempt: context.attempt,
    lanesequence: context.lanesequence, previousid: context.previousid, orderstatus: context.orderstatus,
    traceparent: context.traceparent, left: context.deadline - Date.now() > 0,
  }),
  nothing: () => undefined,
  text: () => 'grüße',
  later: async () => { await new Promise((done) => setTimeout(done, 10)); return { later: true }; },
  event: () => ({ specversion: '1.0', type: 'reply', source: '/test', data: { n: 1 } }),
  events: () => [
    { specversion: '1.0', type: 'reply', source: '/test', id: 'own', traceparent: '00-ff-ff-01' },
    { specversion: '1.0', type: 'reply', source: '/test', data: Buffer.from([0, 255]) },
  ],
  fail: () => { throw new TypeError('broken'); },
  final: () => { throw Object.assign(new Error('never'), { retry: false }); },
  log: (event, context) => { context.log.info('seen', { n: 7 }); },
  exit: () => process.exit(3),
  number: () => ({ n: NaN }),
  mixed: () => [
    { specversion: '1.0', type: 'reply', source: '/test', data: new Uint8Array([0, 255]) },
    new Reply({ n: 1 }),
  ],
  slow: async (event) => { await new Promise((done) => setTimeout(done, event.data.ms)); return { slow: true }; },
};
exports.handler = (event, context) => act[event.type](event, context);

const test = require('node:test');
const assert = require('node:assert');
const { handler } = require('./index.js');

const context = { log: { info() {} } };

test('greets by name', async () => {
  const event = { type: 'order.placed', data: { name: 'Ada' } };
  assert.deepStrictEqual(await handler(event, context), { hello: 'Ada' });
});

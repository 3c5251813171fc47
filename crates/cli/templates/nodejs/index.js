// Called for every event, in order per key. Returns the answer; throws to have the event tried again.
exports.handler = async (event, context) => {
  context.log.info('order placed', { name: event.data.name });
  return { hello: event.data.name };
};

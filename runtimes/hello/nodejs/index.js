exports.handler = (event) => ({ hello: event.data.name });

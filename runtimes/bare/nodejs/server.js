require('http').createServer((request, response) => {
  response.setHeader('content-type', 'application/json');
  response.end('{"hello":"world"}');
}).listen(Number(process.env.PORT), '127.0.0.1');

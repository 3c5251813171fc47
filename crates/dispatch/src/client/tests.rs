mod caller;
mod functions;
mod guard;
mod http1;
mod http2;
mod https;
mod speed;
mod unasked;
